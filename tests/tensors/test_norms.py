"""Norm bounds of blocks whose squares vanish or overflow: never below the truth, never a warning."""

from __future__ import annotations

import numpy as np
import pytest

import tilewise as tw
from references import assert_sound, true_norm
from tilewise.tensors.storage import Arena, checked_norms

ONE = tw.Space([1], name="one")
PAIR = tw.Space([2], name="pair")

SIZES = [5e-324, 1e-310, 1e-200, 1e-162, 1e-150, 1e-20, 1.0, 1e20, 1e150, 1e160, 1e200, 1e300]


def matrix(value: float) -> tw.BlockTensor:
    return tw.from_blocks({(0, 0): np.array([[value, -value], [0.0, value]])}, (PAIR, PAIR))


@pytest.mark.parametrize("value", SIZES)
def test_bounds_are_not_below_the_truth(value: float) -> None:
    tensor = matrix(value)
    assert_sound(tensor)
    assert tensor.pattern.norms[0] >= true_norm(tensor.to_dense()) > 0


@pytest.mark.parametrize("value", SIZES)
def test_from_dense_keeps_every_block_that_is_not_zero(value: float) -> None:
    """The threshold of zero drops zeros only."""
    tensor = tw.from_dense(np.array([[value]]), (ONE, ONE))
    assert tensor.to_dense()[0, 0] == value
    assert_sound(tensor)


@pytest.mark.parametrize("value", [1e-300, 1e-200, 1e-165, 1e-150])
def test_a_tolerance_of_zero_drops_nothing_that_matters(value: float) -> None:
    small, large = matrix(value), matrix(1.0 / value)
    expected = small.to_dense() @ large.to_dense()
    result = tw.einsum("ij,jk->ik", small, large, tol=0.0)
    np.testing.assert_allclose(result.to_dense(), expected, rtol=1e-12)
    assert result.error_bound == 0.0


@pytest.mark.parametrize("value", [1e-300, 1e-200, 1e-165])
def test_error_bounds_cover_products_of_tiny_and_huge_blocks(value: float) -> None:
    small, large = matrix(value), matrix(1.0 / value)
    expected = small.to_dense() @ large.to_dense()
    result = tw.einsum("ij,jk->ik", small, large, tol=1e-3)
    assert true_norm(result.to_dense() - expected) <= result.error_bound + 1e-12
    assert result.error_bound <= 1e-3


@pytest.mark.parametrize("value", [1e-200, 1e-165, 1e160, 1e200])
def test_operations_on_tiny_and_huge_elements(value: float) -> None:
    tensor = matrix(value)
    for result in (
        tensor + tensor,
        0.5 * tensor,
        -tensor,
        tensor.conj(),
        tensor.transpose(),
        tensor.copy(),
        tw.einsum("ij->ji", tensor),
        tw.einsum("ij->j", tensor),
        tw.retile(tensor, (PAIR, PAIR)),
        tensor.map(lambda block, at: block),
        tensor.astype(np.complex128),
    ):
        assert_sound(result)
    assert tensor.norm() == pytest.approx(true_norm(tensor.to_dense()), rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("value", [1e-44, 1e-30, 1e-22, 1e20, 1e38])
def test_single_precision_reaches_its_own_ends(dtype: str, value: float) -> None:
    tensor = tw.from_blocks({(0, 0): np.array([[value, 0], [0, value]], dtype)}, (PAIR, PAIR))
    assert_sound(tensor)
    assert_sound(tw.einsum("ij->ji", tensor))
    assert_sound(0.1 * tensor)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_squares_that_vanish_or_overflow_are_looked_at_again(dtype: str) -> None:
    data = np.array([1e-200, 1e-200, 3.0, 1e200, 0.0, 0.0], dtype)
    arena = Arena(data, np.array([0, 2, 3, 4]))
    squares = np.array([0.0, 9.0, np.inf, 0.0])
    expected = [np.sqrt(2) * 1e-200, 3.0, 1e200, 0.0]
    np.testing.assert_allclose(checked_norms(squares, arena), expected, rtol=1e-11)
    rows = np.array([3, 0])
    np.testing.assert_allclose(checked_norms(squares[rows], arena, rows), [0.0, expected[0]], rtol=1e-11)


def test_unknown_norms_are_never_dropped() -> None:
    space = tw.Space([2] * 4)
    left, right = tw.random((space, space)), tw.random((space, space), seed=1)
    expected = left.to_dense() @ right.to_dense()
    left.replace_norms(np.full(16, np.inf))
    result = tw.einsum("ij,jk->ik", left, right, tol=1e6)
    np.testing.assert_allclose(result.to_dense(), expected, atol=1e-13)
    assert result.error_bound == 0.0
