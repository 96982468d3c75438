"""Lower bounds: never above what a real schedule moves, and monotonic."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.costs import blocked_product_words, fused_bound_bytes, movement_bound_bytes, product_bound_words
from tilewise.errors import InputError

EXTENTS = st.integers(1, 5000)
CAPACITIES = st.integers(3, 10**7)


def compulsory(m: int, n: int, k: int) -> int:
    return m * k + k * n + m * n


@given(EXTENTS, EXTENTS, EXTENTS, CAPACITIES)
def test_blocked_product_moves_at_least_the_bound(m: int, n: int, k: int, capacity: int) -> None:
    bound = movement_bound_bytes(compulsory(m, n, k), m * n * k, 1, capacity)
    assert blocked_product_words(m, n, k, capacity) >= bound


@given(EXTENTS, CAPACITIES, st.integers(1, 100), st.integers(1, 24))
def test_bound_falls_with_capacity_and_uses_and_grows_with_work(
    extent: int, capacity: int, factor: int, uses: int
) -> None:
    bound = product_bound_words(extent**3, capacity)
    assert product_bound_words(extent**3, capacity * factor) <= bound
    assert product_bound_words(extent**3, capacity, uses) <= bound
    assert product_bound_words(extent**3 * factor, capacity) >= bound


@given(EXTENTS, CAPACITIES)
def test_naive_schedule_with_a_tiny_level_moves_more(extent: int, capacity: int) -> None:
    # Three words for each multiplication are enough at any capacity of at least three words.
    assert product_bound_words(extent**3, capacity) <= 3 * extent**3


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_what_fits_into_the_level_moves_once(m: int, k: int) -> None:
    words = compulsory(m, m, k)
    assert movement_bound_bytes(8 * words, m * m * k, 8, capacity_bytes=8 * words) == 8 * words


def test_bound_has_the_factor_of_its_derivation() -> None:
    capacity = 10**4
    segment = (2 * capacity / 3) ** 1.5
    assert product_bound_words(50 * segment, capacity) == pytest.approx(49 * capacity)
    assert product_bound_words(1e12, math.inf) == 0


@pytest.mark.parametrize(("work", "capacity", "uses"), [(-1, 10, 1), (1, 0, 1), (math.nan, 10, 1), (1, 10, 0.5)])
def test_wrong_counts_are_refused(work: float, capacity: float, uses: float) -> None:
    with pytest.raises(InputError, match="There is no bound"):
        product_bound_words(work, capacity, uses)


def test_fusion_spares_an_intermediate_but_not_the_operands() -> None:
    assert fused_bound_bytes(10, [100, 100], [30]) == 140
    assert fused_bound_bytes(10, [100, 100], [100]) == 10


@given(st.integers(1, 300), st.integers(1, 10**6))
def test_fused_bound_is_not_above_the_sum_of_the_steps(n: int, capacity: int) -> None:
    step = movement_bound_bytes(3 * n * n, n**3, 1, capacity)
    fused = fused_bound_bytes(4 * n * n, [step, step], [n * n])
    assert 4 * n * n <= fused <= 2 * step
