"""Which compiled loop a product runs on."""

from __future__ import annotations

import pytest

import tilewise as tw
from tilewise.plans import Plan


def kernel_of(tiles: list[int]) -> str:
    """The loop for a product of two dense square matrices."""
    pattern = tw.Pattern.dense((tw.Space(tiles),) * 2)
    plan = tw.plan("ij,jk->ik", pattern, pattern)
    assert isinstance(plan, Plan)
    return plan.kernel


def test_few_large_blocks_are_packed_and_many_go_to_blas() -> None:
    """BLAS takes whole cells of half a thousand columns: with a handful of them workers would wait."""
    assert kernel_of([1000]) == "packed"
    assert kernel_of([1000] * 5) == "gemm"


def test_a_plan_of_far_too_many_cells_is_refused_before_they_are_listed() -> None:
    pattern = tw.Pattern.dense((tw.Space([10**5] * 100),))
    with pytest.raises(tw.TilewiseError, match=r"cut into 1\.\d+e\+09 cells\. A plan lists at most"):
        tw.plan("i,j->ij", pattern, pattern)
