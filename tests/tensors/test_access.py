"""Reading tensors: blocks, dense arrays, numbers, norms, and what is refused."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import tilewise as tw
from references import assert_sound, dense, element_mask, place, precision, tile_mask, true_norm
from strategies import DTYPES, tensors
from tilewise.patterns import Pattern
from tilewise.tensors.storage import Arena

I = tw.Space([2, 3, 1], name="I")  # noqa: E741
J = tw.Space([1, 4], name="J")


@given(tensors())
def test_to_dense(tensor: tw.BlockTensor) -> None:
    array = tensor.to_dense()
    np.testing.assert_array_equal(array, dense(tensor), strict=True)
    assert not np.shares_memory(array, tensor.arena.own)


@given(tensors())
def test_every_block_of_the_full_tensor_can_be_read(tensor: tw.BlockTensor) -> None:
    array = dense(tensor)
    for index in product(*map(range, tensor.pattern.ntiles)):
        block = tensor.block(index)
        np.testing.assert_array_equal(block, array[place(tensor.spaces, index)], strict=True)
        assert block.flags.c_contiguous
        assert not np.shares_memory(block, tensor.arena.own)


@given(tensors())
def test_blocks_lists_what_is_stored_in_order(tensor: tw.BlockTensor) -> None:
    found = list(tensor.blocks())
    assert [index for index, _ in found] == [tuple(row) for row in tensor.pattern.index.tolist()]
    for index, block in found:
        np.testing.assert_array_equal(block, tensor.block(index), strict=True)
        assert not block.flags.writeable


@given(tensors())
def test_sizes(tensor: tw.BlockTensor) -> None:
    assert tensor.shape == dense(tensor).shape
    assert tensor.ndim == len(tensor.spaces) == len(tensor.shape)
    assert tensor.nbytes == sum(block.nbytes for _, block in tensor.blocks())
    total = math.prod(tensor.shape)
    assert tensor.density == (element_mask(tensor.pattern).sum() / total if total else 0.0)
    assert tensor.dtype.name in repr(tensor)
    assert str(tensor.pattern.nnz_blocks) in repr(tensor)


@given(tensors())
def test_norm(tensor: tw.BlockTensor) -> None:
    """Symmetric tensors count every block, not only the stored ones."""
    assert tensor.norm() == pytest.approx(true_norm(dense(tensor)), rel=precision(tensor.dtype) / 10, abs=0)


@given(tensors())
def test_new_tensors_are_sound_and_their_norm_bounds_tight(tensor: tw.BlockTensor) -> None:
    assert_sound(tensor)
    for (_, block), bound in zip(tensor.blocks(), tensor.pattern.norms.tolist(), strict=True):
        assert bound <= true_norm(block) * (1 + 1e-9)
    assert tensor.error_bound == 0.0


def test_asarray_raises_and_names_to_dense() -> None:
    tensor = tw.random((I, J))
    for convert in (np.asarray, np.array, np.ascontiguousarray):
        with pytest.raises(TypeError, match=r"to_dense\(\)"):
            convert(tensor)
    with pytest.raises(TypeError):
        np.add(tensor, tensor)
    with pytest.raises(TypeError):
        np.ones((6, 5)) * tensor


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalars_are_numbers(dtype: str) -> None:
    value = 2.5 - 1j if dtype.startswith("complex") else 2.5
    scalar = tw.from_dense(np.array(value, dtype), ())
    assert scalar.item() == value
    assert type(scalar.item()) is (complex if dtype.startswith("complex") else float)
    assert complex(scalar) == value
    assert scalar.norm() == pytest.approx(abs(value))
    if dtype.startswith("float"):
        assert float(scalar) == value
    else:
        with pytest.raises(TypeError):
            float(scalar)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_scalar_is_zero(dtype: str) -> None:
    scalar = tw.zeros((), dtype)
    assert scalar.item() == 0
    assert type(scalar.item()) is (complex if dtype.startswith("complex") else float)
    assert scalar.to_dense() == 0


def test_a_tensor_with_modes_is_no_number() -> None:
    tensor = tw.random((I, J))
    for convert in (float, complex, tw.BlockTensor.item):
        with pytest.raises(tw.InputError, match=r"2 modes.*block\(\)"):
            convert(tensor)


WRONG_BLOCKS: list[tuple[Any, str]] = [
    ((0,), r"\(0,\).*1 entr.*2 modes"),
    ((0, 0, 0), r"3 entries.*2 modes"),
    ((3, 0), r"tile 3 of mode 0.*0 to 2.*'I'"),
    ((0, -1), r"tile -1 of mode 1.*0 to 1.*'J'"),
    ((0.5, 0), r"0\.5"),
    (("a", 0), r"'a'"),
    (1, r"1.*2 modes"),
]


@pytest.mark.parametrize(("index", "message"), WRONG_BLOCKS)
def test_blocks_that_do_not_exist_are_named(index: Any, message: str) -> None:
    with pytest.raises(tw.InputError, match=message):
        tw.random((I, J)).block(index)


def test_check_finds_norms_below_the_truth() -> None:
    tensor = tw.random((I, J))
    tensor.check()
    norms = tensor.pattern.norms.copy()
    norms[2] *= 0.9
    tensor.replace_norms(norms)
    with pytest.raises(tw.TilewiseError, match=r"norm bound of block \(1, 0\)"):
        tensor.check()


def test_check_finds_storage_that_does_not_fit() -> None:
    tensor = tw.random((I, J))
    short = Arena(tensor.arena.own[:-1], tensor.arena.own_offsets)
    with pytest.raises(tw.TilewiseError, match="arena"):
        tw.BlockTensor(tensor.pattern, short, tensor.engine).check()


def test_density_counts_blocks_that_follow_by_symmetry() -> None:
    pattern = Pattern((I, I), [(0, 1)], symmetry=tw.Symmetry(((0, 1), -1)))
    tensor = tw.random(pattern=pattern)
    assert tensor.density == pytest.approx(12 / 36)
    assert tile_mask(pattern).sum() == 2
