"""Time models: monotonic in work, rates and workers, and exact where the rate is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.costs import blocked_product_words, copy_seconds, permute_seconds, product_seconds
from tilewise.machine import Machine

BOX = Machine("box", cores=4, gemm_rates=((4, 1.0), (64, 16.0), (512, 20.0)), copy_rate=12.0, permute_rate=6.0)


@given(st.floats(1, 1e12), st.floats(1, 1000), st.floats(1, 10))
def test_products_take_longer_with_more_work_and_less_with_larger_blocks(
    flops: float, edge: float, factor: float
) -> None:
    seconds = product_seconds(flops, edge, BOX)
    assert product_seconds(flops * factor, edge, BOX) >= seconds
    assert product_seconds(flops, edge * factor, BOX) <= seconds


@pytest.mark.parametrize(("edge", "rate"), BOX.gemm_rates)
def test_known_edge_has_its_own_rate(edge: int, rate: float) -> None:
    assert product_seconds(1e9, edge, BOX) == 1 / rate
    assert product_seconds(1e9, edge, BOX, itemsize=4) == 0.5 / rate


@given(st.floats(0, 1e12), st.integers(1, 8))
def test_moving_takes_less_with_more_workers_up_to_the_cores(moved: float, workers: int) -> None:
    for model in (copy_seconds, permute_seconds):
        assert model(moved, BOX, workers + 1) <= model(moved, BOX, workers)
        assert model(moved, BOX, 100) == model(moved, BOX, BOX.cores)
    assert copy_seconds(moved, BOX, workers) <= permute_seconds(moved, BOX, workers)


def test_all_cores_copy_at_the_rate_of_the_machine() -> None:
    assert copy_seconds(12e9, BOX, 4) == 1.0
    assert permute_seconds(12e9, replace(BOX, cores=1), 1) == 2.0


@given(*[st.integers(1, 3000)] * 3, st.integers(3, 10**6), st.integers(1, 10))
def test_blocked_product_moves_less_through_a_larger_level(m: int, n: int, k: int, capacity: int, factor: int) -> None:
    words = blocked_product_words(m, n, k, capacity)
    assert blocked_product_words(m, n, k, capacity * factor) <= words
    assert words >= m * k + k * n + m * n
    np.testing.assert_array_equal(blocked_product_words([m, m], n, k, capacity), [words, words])
