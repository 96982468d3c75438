"""The block products of a plan, listed one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given

import tilewise as tw
from plans.enumeration import all_products, work_of
from strategies import EinsumCase, matrix_cases
from tilewise.plans import Plan
from tilewise.plans.pairs import list_pairs


@given(matrix_cases("float64", batches=1))
def test_every_block_product_is_listed_once(case: EinsumCase) -> None:
    plan = tw.plan(case.text, *[tensor.pattern for tensor in case.tensors])
    assert isinstance(plan, Plan)
    pairs = list_pairs(plan)
    left, right = (operand.pattern for operand in plan.operands)
    listed = Counter(
        (tuple(left.index[a].tolist()), tuple(right.index[b].tolist()), tuple(plan.result.index[c].tolist()))
        for a, b, c in zip(pairs.left, pairs.right, pairs.target, strict=True)
    )
    assert listed == all_products(work_of(plan).contraction, left, right)
    assert pairs.flops.sum() == plan.flops


def test_what_screening_drops_is_not_listed() -> None:
    space = tw.Space([4] * 6)
    near = np.exp(-np.abs(np.subtract.outer(np.arange(6), np.arange(6))))
    pattern = tw.Pattern((space, space), np.argwhere(near > 0), near.ravel())
    plan = tw.plan("ij,jk->ik", pattern, pattern, tol=0.1 * float(np.linalg.norm(near)))
    assert isinstance(plan, Plan)
    assert plan.screened_flops > 0
    assert list_pairs(plan).flops.sum() == plan.flops
