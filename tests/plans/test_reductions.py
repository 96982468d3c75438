"""Plans of steps on one operand: permutations, diagonals, traces, sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import tilewise as tw
from references import element_mask, tile_mask
from strategies import EinsumCase, einsum_cases
from tilewise.plans import Plan, Sum


def source_of(plan: Plan) -> Sum:
    assert isinstance(plan.work, Sum)
    return plan.work


@settings(max_examples=100)
@given(einsum_cases(1))
def test_every_block_that_holds_a_summed_element_is_a_source_once(case: EinsumCase) -> None:
    plan = tw.plan(case.text, *case.tensors)
    assert isinstance(plan, Plan)
    work, index = source_of(plan), plan.operands[0].blocks.index
    assert plan.kernel == "reduction"
    mask = tile_mask(case.tensors[0].pattern)
    operand, result = plan.label.split("->")
    found = []
    for block, row in enumerate(plan.result.index.tolist()):
        for source in work.source[work.ptr[block] : work.ptr[block + 1]].tolist():
            tiles = dict(zip(operand, index[source].tolist(), strict=True))
            assert [tiles[letter] for letter in result] == row
            found.append(source)
    assert len(set(found)) == len(found)
    needed = int(np.einsum(f"{operand}->", mask))
    assert len(found) == plan.products == needed
    np.testing.assert_array_equal(plan.result.index, np.argwhere(np.asarray(np.einsum(plan.label, mask))))


@settings(max_examples=50)
@given(einsum_cases(1))
def test_flops_are_the_elements_that_are_added(case: EinsumCase) -> None:
    plan = tw.plan(case.text, *case.tensors)
    operand, result = plan.label.split("->")
    elements = int(np.einsum(f"{operand}->", element_mask(case.tensors[0].pattern)))
    assert plan.flops == (elements if set(operand) - set(result) else 0)


@pytest.mark.parametrize("text", ["ijk->kji", "iij->ij", "iij->j", "ijk->"])
def test_symmetric_operands_are_read_through_their_expansion(text: str) -> None:
    space = tw.Space([2, 1, 3])
    symmetry = tw.Symmetry(((0, 1), -1))
    tensor = tw.random((space,) * 3, 0.5, symmetry=symmetry)
    plan = tw.plan(text, tensor)
    assert isinstance(plan, Plan)
    assert plan.result.symmetry is None
    assert len(plan.operands[0].blocks.index) == tile_mask(tensor.pattern).sum()
