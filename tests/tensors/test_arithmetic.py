"""Sums, multiples, conjugates, types, transposes and maps of tensors against NumPy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from references import assert_close, assert_sound, dense, stored_bytes, true_norm
from strategies import DTYPES, symmetries, tensors
from tilewise.patterns import Pattern, transposed
from tilewise.tensors.protocol import Scalar

I = tw.Space([2, 3, 1], name="I")  # noqa: E741
J = tw.Space([1, 4], name="J")

Array = npt.NDArray[Any]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[tw.BlockTensor, tw.BlockTensor]:
    """Two tensors over the same spaces; symmetry, blocks and types may differ."""
    left = draw(tensors())
    if draw(st.booleans()):
        return left, draw(tensors(left.spaces))
    every = Pattern.dense(left.spaces, left.symmetry)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kept = every.index[rng.random(every.nnz_blocks) < draw(st.sampled_from((0.3, 1.0)))]
    pattern = Pattern(left.spaces, kept, None, left.symmetry)
    return left, tw.random(pattern=pattern, seed=5, dtype=draw(st.sampled_from(DTYPES)))


@pytest.mark.parametrize("sign", [operator.add, operator.sub], ids=["plus", "minus"])
def test_sums_and_differences(sign: Callable[[Any, Any], Any]) -> None:
    @settings(max_examples=100)
    @given(pairs())
    def check(both: tuple[tw.BlockTensor, tw.BlockTensor]) -> None:
        left, right = both
        before = stored_bytes(left), stored_bytes(right)
        expected = np.asarray(sign(dense(left), dense(right)))
        assert_close(sign(left, right), expected, true_norm(dense(left)) + true_norm(dense(right)))
        assert (stored_bytes(left), stored_bytes(right)) == before

    check()


@given(pairs())
def test_the_sum_keeps_a_symmetry_that_both_have(both: tuple[tw.BlockTensor, tw.BlockTensor]) -> None:
    left, right = both
    assert (left + right).symmetry == (left.symmetry if left.symmetry == right.symmetry else None)


def test_a_tensor_minus_itself_is_zero() -> None:
    tensor = tw.random((I, J), density=0.5)
    assert not (tensor - tensor).to_dense().any()
    assert (tensor - tensor).norm() == 0.0


def test_sums_add_error_bounds() -> None:
    left, right = tw.random((I, J), 0.5), tw.random((I, J), 0.5, seed=1)
    left.error_bound, right.error_bound = 0.25, 0.5
    assert (left + right).error_bound == (left - right).error_bound == 0.75
    assert (-3 * left).error_bound == 0.75
    for same in (left.copy(), left.conj(), left.astype(np.complex128), left.transpose(), -left):
        assert same.error_bound == 0.25
    assert tw.retile(left, (tw.Space([6]), J)).error_bound == 0.25


def test_unknown_errors_stay_unknown_or_vanish() -> None:
    """Zero times an infinite bound is no number; nothing times anything is exact."""
    tensor = tw.random((I, J))
    tensor.error_bound = float("inf")
    for result in (0 * tensor, tw.einsum("ij->ji", tensor, alpha=0), tensor - tensor, 2 * tensor):
        assert result.error_bound in (0.0, float("inf"))


FACTORS: list[Scalar] = [0, 1, -1, 2, 0.1, -1e-3, 1 / 3, 1j, 0.3 - 0.7j]


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_multiples(dtype: str, factor: Scalar) -> None:
    for seed in range(10):
        tensor = tw.random((I, J), 0.6, seed, dtype)
        expected = dense(tensor) * factor
        for result in (tensor * factor, factor * tensor):
            assert_close(result, expected, abs(factor) * true_norm(dense(tensor)))


@pytest.mark.parametrize("divisor", [2, -4.0, 0.3, 1j, 1 - 2j])
@pytest.mark.parametrize("dtype", DTYPES)
def test_quotients(dtype: str, divisor: Scalar) -> None:
    for seed in range(10):
        tensor = tw.random((I, J), 0.6, seed, dtype)
        assert_close(tensor / divisor, dense(tensor) / divisor, true_norm(dense(tensor)) / abs(divisor))


def test_numpy_numbers_multiply_too() -> None:
    tensor = tw.random((I, J), 0.5)
    factors: list[Any] = [np.float64(2.5), np.int64(3), np.float32(0.5), np.complex128(1j)]
    for factor in factors:
        for result in (factor * tensor, tensor * factor):
            assert isinstance(result, tw.BlockTensor)
            assert true_norm(result.to_dense() - factor * dense(tensor)) <= 1e-14


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), complex("nan"), -float("inf")])
def test_factors_that_are_not_finite_are_refused(factor: Scalar) -> None:
    with pytest.raises(tw.InputError, match=r"(nan|inf).*finite"):
        tw.random((I,)) * factor


@pytest.mark.parametrize("zero", [0, 0.0, 0j, np.float64(0.0)], ids=["int", "float", "complex", "NumPy"])
def test_a_division_by_zero_is_refused(zero: Any) -> None:
    with pytest.raises(tw.InputError, match="0"):
        tw.random((I,)) / zero


@pytest.mark.parametrize("other", ["2", None, [1.0], np.ones(3)])
@pytest.mark.parametrize("sign", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_what_is_no_number_and_no_tensor_is_refused(sign: Callable[[Any, Any], Any], other: Any) -> None:
    with pytest.raises(TypeError):
        sign(tw.random((I,)), other)


def test_a_tensor_times_a_tensor_is_refused() -> None:
    with pytest.raises(TypeError):
        tw.random((I,)) * tw.random((I,))  # type: ignore[operator]


def test_sums_over_different_spaces_are_refused() -> None:
    for other in (tw.random((J, I)), tw.random((I,)), tw.random((I, tw.Space([4, 1])))):
        with pytest.raises(tw.InputError, match=r"'I'.*'J'.*tile by tile.*retile"):
            tw.random((I, J)) + other


@given(tensors())
def test_negative_conjugate_and_copy(tensor: tw.BlockTensor) -> None:
    array = dense(tensor)
    for result, expected in ((-tensor, -array), (tensor.conj(), array.conj()), (tensor.copy(), array)):
        assert_close(result, expected, 0.0)
        assert result.symmetry == tensor.symmetry
        assert not np.shares_memory(result.arena.own, tensor.arena.own)


@given(tensors(symmetric=False))
def test_a_copy_is_independent(tensor: tw.BlockTensor) -> None:
    before, other = stored_bytes(tensor), tensor.copy()
    other.arena.own[...] = 7
    assert stored_bytes(tensor) == before


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_types(dtype: str, to: str) -> None:
    for seed in range(10):
        tensor = tw.random((I, I), 0.6, seed, dtype, symmetry=tw.Symmetry(((0, 1), -1)))
        if dtype.startswith("complex") and to.startswith("float"):
            with pytest.raises(tw.InputError, match=rf"astype\({to}\).*{dtype}.*map"):
                tensor.astype(to)
        else:
            assert_close(tensor.astype(to), dense(tensor).astype(to), 0.0)


@pytest.mark.parametrize("to", ["float16", "object", "longdouble", "no type"])
def test_types_a_tensor_cannot_have_are_refused(to: str) -> None:
    with pytest.raises(tw.InputError, match=r"float32, float64, complex64, complex128"):
        tw.random((I,)).astype(to)


def test_a_type_too_narrow_for_the_elements_is_refused() -> None:
    with pytest.raises(tw.InputError, match="float32"):
        tw.from_dense(np.full(6, 1e100), (I,)).astype(np.float32)


@pytest.mark.parametrize("symmetric", [False, True], ids=["plain", "symmetric"])
def test_transposes(symmetric: bool) -> None:
    @settings(max_examples=100)
    @given(tensors(symmetric=symmetric), st.randoms(use_true_random=False))
    def check(tensor: tw.BlockTensor, random: Any) -> None:
        axes: list[Any] = list(range(tensor.ndim))
        random.shuffle(axes)
        together: Any = axes
        before = stored_bytes(tensor)
        for result in (tensor.transpose(*axes), tensor.transpose(together)) if axes else (tensor.transpose(),):
            assert_close(result, dense(tensor).transpose(axes), 1.0 + true_norm(dense(tensor)))
            expected = transposed(tensor.pattern, axes)
            assert result.symmetry == expected.symmetry
            np.testing.assert_array_equal(result.pattern.index, expected.index)
        assert_close(tensor.transpose(), dense(tensor).transpose(), 1.0 + true_norm(dense(tensor)))
        assert stored_bytes(tensor) == before

    check()


@pytest.mark.parametrize("sign", [1, -1])
def test_every_transpose_of_three_exchangeable_modes(sign: int) -> None:
    symmetry = tw.Symmetry(((0, 1, 3), sign))
    tensor = tw.random((I, I, J, I), 0.7, symmetry=symmetry)
    for axes in permutations(range(4)):
        assert_close(tensor.transpose(*axes), dense(tensor).transpose(axes), true_norm(dense(tensor)))


def test_negative_axes_count_from_the_end() -> None:
    tensor = tw.random((I, J))
    np.testing.assert_array_equal(tensor.transpose(-1, 0).to_dense(), dense(tensor).T)


@pytest.mark.parametrize("axes", [(0, 0), (0,), (0, 1, 2), (0, 2), (0.5, 1), ("i", "j")])
def test_axes_that_are_no_permutation_are_refused(axes: tuple[Any, ...]) -> None:
    with pytest.raises(tw.InputError, match=r"permutation.*0 to 1"):
        tw.random((I, J)).transpose(*axes)


@given(tensors())
def test_map_sees_every_stored_block_and_its_offsets(tensor: tw.BlockTensor) -> None:
    """A function symmetric in the modes keeps a symmetric tensor symmetric."""
    places = [np.arange(1.0, size + 1) for size in tensor.shape]

    def divide(block: Array, at: tuple[int, ...]) -> Array:
        total = np.zeros(block.shape)
        for mode, (begin, size) in enumerate(zip(at, block.shape, strict=True)):
            line = places[mode][begin : begin + size]
            total = total + line.reshape([-1 if d == mode else 1 for d in range(block.ndim)])
        return np.asarray(block / (total + 1.0)).astype(block.dtype)

    before = stored_bytes(tensor)
    expected = divide(dense(tensor), (0,) * tensor.ndim)
    result = tensor.map(divide)
    assert_close(result, expected, 0.0)
    assert result.symmetry == tensor.symmetry
    assert stored_bytes(tensor) == before


def test_map_may_change_the_type() -> None:
    tensor = tw.random((I, J), dtype="complex64")
    assert_close(tensor.map(lambda block, at: block.real), dense(tensor).real, 0.0)
    assert_close(tensor.map(lambda block, at: np.abs(block)), np.abs(dense(tensor)), 0.0)
    assert tensor.map(lambda block, at: np.ones(block.shape, int)).dtype == np.float64
    assert tw.zeros((I, J), "complex64").map(lambda block, at: block).dtype == np.complex64


def test_map_cannot_write_into_the_tensor() -> None:
    def write(block: Array, at: tuple[int, ...]) -> Array:
        block[...] = 0
        return block

    tensor = tw.random((I, J))
    before = stored_bytes(tensor)
    with pytest.raises(ValueError, match="read-only"):
        tensor.map(write)
    assert stored_bytes(tensor) == before


def test_map_names_blocks_of_wrong_shape_or_value() -> None:
    tensor = tw.random(pattern=Pattern((I, J), [(1, 1)]))
    with pytest.raises(tw.InputError, match=r"\(12,\).*block \(1, 1\).*\(3, 4\)"):
        tensor.map(lambda block, at: block.ravel())
    for bad in (np.nan, np.inf, complex(0, np.inf)):
        with pytest.raises(tw.InputError, match=r"not finite in block \(1, 1\)"):
            tensor.map(lambda block, at, bad=bad: block * 0 + bad)  # type: ignore[misc]
    with pytest.raises(tw.InputError, match="float32, float64"):
        tensor.map(lambda block, at: block.astype("float16"))


def test_map_does_not_promise_more_than_it_knows_of_the_error() -> None:
    """A function may enlarge an error, so the old bound does not hold for what it returns."""
    tensor = tw.random((I, J))
    tensor.error_bound = 1e-3
    assert tensor.map(lambda block, at: 100 * block).error_bound >= 0.1
    tensor.error_bound = 0.0
    assert tensor.map(lambda block, at: 100 * block).error_bound == 0.0


@given(st.data())
def test_symmetric_sums_stay_consistent(data: st.DataObject) -> None:
    """Sums of tensors with equal symmetry are stored by unique blocks, and are still right in full."""
    symmetry = data.draw(symmetries(3))
    left, right = (tw.random((I, I, I), 0.5, seed, symmetry=symmetry) for seed in (0, 1))
    total = left + 2.0 * right - left
    np.testing.assert_allclose(total.to_dense(), 2 * dense(right), atol=1e-14)
    assert total.symmetry == left.symmetry
    assert_sound(total)


@pytest.mark.parametrize("modes", [26, 27, 60])
def test_tensors_of_many_modes_are_transposed_and_added(modes: int) -> None:
    spaces = [tw.Space([2]), *[tw.Space([1])] * (modes - 2), tw.Space([3])]
    tensor = tw.random(spaces)
    np.testing.assert_array_equal(dense(tensor.transpose()), dense(tensor).T)
    np.testing.assert_array_equal(dense(tensor + tensor), 2 * dense(tensor))


def test_map_needs_a_function() -> None:
    with pytest.raises(tw.InputError, match="no function"):
        tw.random((tw.Space([2]),)).map(None)  # type: ignore[arg-type]
