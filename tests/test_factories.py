"""zeros, random, from_dense and from_blocks, and what from_function takes."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from references import assert_close, assert_sound, dense, stored_bytes, true_norm
from strategies import DTYPES, patterns, symmetric_patterns, symmetries, tensors

I = tw.Space([2, 3, 1], name="I")  # noqa: E741
J = tw.Space([1, 4], name="J")
SYMMETRIC, ANTISYMMETRIC = tw.Symmetry(((0, 1), 1)), tw.Symmetry(((0, 1), -1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros(dtype: str) -> None:
    empty = tw.zeros((I, J), dtype)
    full = tw.zeros(pattern=tw.Pattern.dense((I, J)), dtype=dtype)
    assert (empty.pattern.nnz_blocks, full.pattern.nnz_blocks) == (0, 6)
    for tensor in (empty, full):
        assert_close(tensor, np.zeros((6, 5), dtype), 0.0)
        assert tensor.norm() == tensor.pattern.norm == 0.0


@given(st.one_of(patterns(), symmetric_patterns()), st.sampled_from(DTYPES), st.integers(0, 2**32 - 1))
def test_random_tensors_of_a_pattern(pattern: tw.Pattern, dtype: str, seed: int) -> None:
    """The same seed gives the same bits; finite norms are met, other elements lie in [-1, 1)."""
    tensor = tw.random(pattern=pattern, seed=seed, dtype=dtype)
    assert stored_bytes(tensor) == stored_bytes(tw.random(pattern=pattern, seed=seed, dtype=dtype))
    np.testing.assert_array_equal(tensor.pattern.index, pattern.index)
    assert tensor.symmetry == pattern.symmetry
    assert_sound(tensor)
    for (_, block), norm in zip(tensor.blocks(), pattern.norms.tolist(), strict=True):
        if np.isinf(norm):
            assert np.abs(block.real).max() <= 1
            assert np.abs(block.imag).max() <= 1
        else:
            assert true_norm(block) <= norm * (1 + 1e-6)


@given(symmetric_patterns(), st.sampled_from(DTYPES))
def test_random_tensors_have_their_symmetry(pattern: tw.Pattern, dtype: str) -> None:
    array = dense(tw.random(pattern=pattern, dtype=dtype))
    assert pattern.symmetry is not None
    scale = 1e-6 * np.abs(array).max(initial=0.0)
    for axes, sign in zip(*pattern.symmetry.operations(pattern.ndim), strict=True):
        assert np.abs(array - sign * array.transpose(axes)).max(initial=0.0) <= scale


def test_random_is_decided_by_its_seed() -> None:
    one, same, other = (tw.random((I, J), 0.5, seed) for seed in (3, 3, 4))
    assert stored_bytes(one) == stored_bytes(same) != stored_bytes(other)
    assert one.density >= 0.5
    assert one.pattern.index.tolist() == tw.Pattern.random((I, J), 0.5, 3).index.tolist()


@pytest.mark.parametrize("seed", [-1, 0.5, "x"])
def test_seeds_that_are_none_are_named(seed: Any) -> None:
    for density in (0.5, 1.0):
        with pytest.raises(tw.InputError, match="seed"):
            tw.random((I, J), density, seed)


@settings(max_examples=100)
@given(tensors())
def test_from_dense_and_back(tensor: tw.BlockTensor) -> None:
    array = dense(tensor)
    again = tw.from_dense(array, tensor.spaces, symmetry=tensor.symmetry)
    assert_close(again, array, 0.0)
    assert again.symmetry == tensor.symmetry
    assert all(block.any() for _, block in again.blocks())
    assert not np.shares_memory(again.arena.own, array)


@settings(max_examples=100)
@given(tensors(), st.sampled_from((0.0, 0.3, 1.0, 2.0, 1e3)))
def test_from_dense_keeps_blocks_above_the_threshold(tensor: tw.BlockTensor, threshold: float) -> None:
    found = tw.from_dense(dense(tensor), tensor.spaces, threshold, symmetry=tensor.symmetry)
    kept = [index for index, block in tensor.blocks() if true_norm(block) > threshold]
    assert [index for index, _ in found.blocks()] == kept
    for index in kept:
        np.testing.assert_array_equal(found.block(index), tensor.block(index))


@pytest.mark.parametrize("dtype", [int, "int32", "bool"])
def test_integers_are_no_element_type_to_ask_for(dtype: Any) -> None:
    with pytest.raises(tw.InputError, match="not an element type"):
        tw.zeros((I,), dtype)
    with pytest.raises(tw.InputError, match="not an element type"):
        tw.random((I,), dtype=dtype)
    with pytest.raises(tw.InputError, match="not an element type"):
        tw.random((I,)).astype(dtype)


@pytest.mark.parametrize("seed", [-1, None, 0.5])
def test_a_seed_is_a_number_from_zero(seed: Any) -> None:
    with pytest.raises(tw.InputError, match="seed"):
        tw.random((I,), seed=seed)
    with pytest.raises(tw.InputError, match="seed"):
        tw.Pattern.random((I,), 0.5, seed)


@pytest.mark.parametrize("dtype", [*DTYPES, "int32", "uint8", "bool"])
def test_from_dense_takes_these_types(dtype: str) -> None:
    array = np.arange(30).reshape(6, 5).astype(dtype)
    tensor = tw.from_dense(array, (I, J))
    assert tensor.dtype == (dtype if dtype in DTYPES else "float64")
    np.testing.assert_array_equal(tensor.to_dense(), array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_foreign_byte_orders_become_native(dtype: str) -> None:
    """Arrays read from files may be big-endian; compiled loops know the machine's own order only."""
    foreign = np.dtype(dtype).newbyteorder("S")
    array = np.arange(30).reshape(6, 5)
    made = [
        tw.from_dense(array.astype(foreign), (I, J)),
        tw.from_blocks({(0, 0): np.ones((2, 1), foreign)}, (I, J)),
        tw.zeros(pattern=tw.Pattern.dense((I, J)), dtype=foreign),
        tw.random((I, J), dtype=foreign),
        tw.random((I, J), dtype=dtype).astype(foreign),
    ]
    for tensor in made:
        assert tensor.dtype.isnative
        assert tensor.dtype == dtype
        np.testing.assert_array_equal(tensor.transpose().to_dense(), tensor.to_dense().T)


def test_from_dense_reads_any_layout_and_lists() -> None:
    array = np.arange(30.0).reshape(5, 6)
    for view in (array.T, np.asfortranarray(array.T), array.T.copy()[:, ::-1][:, ::-1], array.T.tolist()):
        np.testing.assert_array_equal(tw.from_dense(view, (I, J)).to_dense(), array.T)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_from_dense_names_an_element_that_is_not_finite(bad: float) -> None:
    for dtype in DTYPES:
        array = np.zeros((6, 5), dtype)
        array[4, 2] = bad
        with pytest.raises(tw.InputError, match=r"\(4, 2\).*(nan|inf).*finite"):
            tw.from_dense(array, (I, J))


WRONG_ARRAYS = [
    pytest.param(np.ones((6, 4)), (I, J), {}, r"\(6, 4\).*\(6, 5\)", id="too short"),
    pytest.param(np.ones((5, 6)), (I, J), {}, r"\(5, 6\).*\(6, 5\).*order", id="turned"),
    pytest.param(np.ones(6), (I, J), {}, r"\(6,\).*\(6, 5\)", id="too few axes"),
    pytest.param(np.ones((6, 5)), (I, J), {"threshold": -1.0}, r"threshold=-1", id="negative threshold"),
    pytest.param(np.ones((6, 5)), (I, J), {"threshold": float("nan")}, r"threshold=nan", id="NaN threshold"),
    pytest.param(np.ones((6, 5)), (I, J), {"threshold": "x"}, r"threshold", id="threshold of letters"),
    pytest.param(np.ones((6, 5), "float16"), (I, J), {}, r"float16.*float32, float64", id="half precision"),
    pytest.param(np.full((6, 5), "a"), (I, J), {}, r"float32, float64", id="letters"),
    pytest.param([[1.0], [1.0, 2.0]], (I, J), {}, r"array", id="ragged list"),
    pytest.param(np.ones(6), I, {}, r"Space.*per mode", id="one space"),
    pytest.param(np.ones((6, 5)), (6, 5), {}, r"Space", id="sizes for spaces"),
    pytest.param(
        np.ones((6, 5)),
        (I, J),
        {"symmetry": SYMMETRIC},
        r"'I'.*'J'.*equal spaces",
        id="symmetry over two spaces",
    ),
    pytest.param(
        np.ones((6, 6)),
        (I, I),
        {"symmetry": ANTISYMMETRIC},
        r"\(1, 0\).*-1.*differ by up to 2",
        id="not antisymmetric",
    ),
    pytest.param(
        np.arange(36.0).reshape(6, 6),
        (I, I),
        {"symmetry": SYMMETRIC},
        r"not symmetric.*Symmetrise",
        id="not symmetric",
    ),
]


@pytest.mark.parametrize(("array", "spaces", "options", "message"), WRONG_ARRAYS)
def test_wrong_arrays_are_named(array: Any, spaces: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.InputError, match=message):
        tw.from_dense(array, spaces, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_arrays_symmetric_up_to_rounding_are_taken(dtype: str, sign: int) -> None:
    """Symmetrised sums differ in their last digits, of which single precision has few."""
    symmetry = tw.Symmetry(((0, 1, 2), sign))
    raw = np.random.default_rng(0).standard_normal((6, 6, 6)).astype(dtype)
    array = np.zeros_like(raw)
    for axes, factor in zip(*symmetry.operations(3), strict=True):
        array += array.dtype.type(factor / 6) * raw.transpose(axes)
    tensor = tw.from_dense(array, (I, I, I), symmetry=symmetry)
    assert true_norm(tensor.to_dense() - array) <= 1e-5


@settings(max_examples=100)
@given(tensors())
def test_from_blocks_and_back(tensor: tw.BlockTensor) -> None:
    blocks = {index: block.copy() for index, block in reversed(list(tensor.blocks()))}
    again = tw.from_blocks(blocks, tensor.spaces, symmetry=tensor.symmetry)
    if blocks:
        assert again.dtype == tensor.dtype
    np.testing.assert_array_equal(again.to_dense(), dense(tensor))
    assert_sound(again)
    for block in blocks.values():
        block[...] = 7
    np.testing.assert_array_equal(again.to_dense(), dense(tensor))


def test_from_blocks_promotes_types_as_numpy_does() -> None:
    blocks: dict[tuple[int, ...], Any] = {(0, 0): np.ones((2, 1), "float32"), (1, 1): np.ones((3, 4), "complex64")}
    assert tw.from_blocks(blocks, (I, J)).dtype == np.complex64
    assert tw.from_blocks({(0, 0): [[1], [2]]}, (I, J)).dtype == np.float64
    assert tw.from_blocks({(0, 0): np.ones((2, 1), "float32")}, (I, J)).dtype == np.float32


WRONG_BLOCKS = [
    pytest.param({(0, 0): np.ones((2, 2))}, (I, J), {}, r"Block \(0, 0\).*\(2, 2\).*\(2, 1\)", id="wrong shape"),
    pytest.param({(0, 0): np.ones(2)}, (I, J), {}, r"Block \(0, 0\).*\(2,\).*\(2, 1\)", id="too few axes"),
    pytest.param({(3, 0): np.ones((2, 1))}, (I, J), {}, r"tile 3 in mode 0.*'I'.*0 to 2", id="no such tile"),
    pytest.param({(0, -1): np.ones((2, 4))}, (I, J), {}, r"tile -1 in mode 1", id="negative tile"),
    pytest.param({(0,): np.ones(2)}, (I, J), {}, r"2 modes|2 tile", id="short index"),
    pytest.param({(0, 0, 0): np.ones((2, 1, 1))}, (I, J), {}, r"2 modes|2 tile", id="long index"),
    pytest.param({(0, 0): np.ones((2, 1)), (1,): np.ones(3)}, (I, J), {}, r"2 modes|2 tile", id="ragged indices"),
    pytest.param({(0.5, 0): np.ones((2, 1))}, (I, J), {}, r"0\.5|integer", id="fractional tile"),
    pytest.param({(0, 0): np.full((2, 1), np.nan)}, (I, J), {}, r"Block \(0, 0\).*not finite", id="not finite"),
    pytest.param({(0, 0): np.full((2, 1), "a")}, (I, J), {}, r"float32, float64", id="letters"),
    pytest.param(
        {(1, 0): np.ones((3, 2))},
        (I, I),
        {"symmetry": SYMMETRIC},
        r"\(1, 0\).*not a unique block.*\(0, 1\)",
        id="not unique",
    ),
    pytest.param(
        {(0, 0): np.array([[0.0, 1.0], [2.0, 0.0]])},
        (I, I),
        {"symmetry": SYMMETRIC},
        r"\(0, 0\).*symmetr",
        id="diagonal not symmetric",
    ),
    pytest.param(
        {(0, 0): np.ones((2, 2))},
        (I, I),
        {"symmetry": ANTISYMMETRIC},
        r"\(0, 0\).*symmetr",
        id="diagonal not antisymmetric",
    ),
    pytest.param([np.ones((2, 1))], (I, J), {}, r"mapping|dict", id="no mapping"),
    pytest.param({(0, 0): np.ones((2, 1))}, (6, 5), {}, r"Space", id="sizes for spaces"),
]


@pytest.mark.parametrize(("blocks", "spaces", "options", "message"), WRONG_BLOCKS)
def test_wrong_blocks_are_named(blocks: Any, spaces: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.InputError, match=message):
        tw.from_blocks(blocks, spaces, **options)


NO_SPACES: Any = (I, 3)
ONE_SPACE: Any = I

WRONG_MAKERS = [
    pytest.param(lambda: tw.zeros(), r"spaces.*pattern", id="zeros of nothing"),
    pytest.param(lambda: tw.random(), r"spaces.*pattern", id="random of nothing"),
    pytest.param(lambda: tw.zeros((I,), "float16"), r"float16.*float32, float64", id="half precision"),
    pytest.param(lambda: tw.zeros((I,), "no type"), r"no type.*float32, float64", id="unknown type"),
    pytest.param(lambda: tw.random((I,), dtype="object"), r"object.*float32, float64", id="objects"),
    pytest.param(lambda: tw.random((I,), density=1.5), r"1\.5.*0 to 1", id="density above one"),
    pytest.param(lambda: tw.random((I,), density=float("nan")), r"nan.*0 to 1", id="density NaN"),
    pytest.param(
        lambda: tw.random((I, J), symmetry=SYMMETRIC),
        r"'I'.*'J'.*equal spaces",
        id="symmetry over two spaces",
    ),
    pytest.param(lambda: tw.zeros(NO_SPACES), r"mode 1 is 3.*Space", id="no space"),
    pytest.param(lambda: tw.zeros(ONE_SPACE), r"single.*per mode", id="one space"),
    pytest.param(
        lambda: tw.zeros((I,), pattern=tw.Pattern.dense((I, J))), r"spaces.*pattern", id="zeros of two things"
    ),
    pytest.param(
        lambda: tw.random((I,), pattern=tw.Pattern.dense((I, J))),
        r"spaces.*pattern",
        id="random of two things",
    ),
    pytest.param(
        lambda: tw.from_function(np.zeros, (I,), working_bytes=-8), r"working_bytes=-8.*least 0.*integer", id="negative"
    ),
    pytest.param(
        lambda: tw.from_function(np.zeros, (I,), working_bytes=2.5),  # type: ignore[arg-type]
        r"working_bytes= is 2\.5.*integer",
        id="half a byte",
    ),
    pytest.param(lambda: tw.Space([2, 0]), r"0", id="empty tile"),
    pytest.param(lambda: tw.Space([2, -1]), r"-1", id="negative tile"),
    pytest.param(lambda: tw.Space([2.5]), r"2\.5", id="fractional tile"),
]


@pytest.mark.parametrize(("make", "message"), WRONG_MAKERS)
def test_wrong_makers_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(tw.InputError, match=message):
        make()


def summed(index: tuple[int, ...]) -> Any:
    """A block, made of four of its size."""
    return np.ones((4, 100, 100)).sum(axis=0)


def test_what_a_function_takes_besides_a_block_counts() -> None:
    """Once for each block that is made at once, as Python's own memory tracer sees it."""
    space, besides = tw.Space([100] * 4), 4 * 80_000
    plain, honest = (tw.from_function(summed, (space, space), working_bytes=said) for said in (0, besides))
    with tw.engine("threads", workers=3):
        peaks = [tw.plan("ij->", each, memory="1GB").peak_bytes for each in (plain, honest)]
        assert peaks[1] - peaks[0] == 3 * (besides - 80_000)  # in place of what checking a block takes
        with pytest.raises(tw.MemoryBudgetError) as error:
            tw.plan("ij->", honest, memory=0)
        least = error.value.least_bytes
        tw.einsum("ij->", honest, memory=least)
        tracemalloc.start()
        tw.einsum("ij->", honest, memory=least)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert besides < peak <= least + 100_000  # objects of Python


def test_another_process_knows_what_making_a_block_takes() -> None:
    made = tw.from_function(summed, (I, I), working_bytes=800)
    storage, copied = made.storage, pickle.loads(pickle.dumps(made)).storage  # noqa: S301
    assert (copied.working_bytes, copied.largest_bytes) == (800, storage.largest_bytes)  # type: ignore[attr-defined]


@given(st.data())
def test_pattern_symmetry_reaches_the_tensor(data: st.DataObject) -> None:
    symmetry = data.draw(symmetries(4))
    tensor = tw.random((I, I, I, I), 0.2, symmetry=symmetry)
    assert tensor.symmetry == symmetry
    assert_sound(tensor)


def test_tensors_belong_to_the_engine_in_use() -> None:
    with tw.engine("threads", workers=1) as engine:
        assert tw.zeros((I,)).engine is engine
        assert tw.random((I,)).engine is engine
        assert tw.from_dense(np.ones(6), (I,)).engine is engine
        assert tw.from_blocks({(0,): np.ones(2)}, (I,)).engine is engine
    assert tw.zeros((I,)).engine is not engine
