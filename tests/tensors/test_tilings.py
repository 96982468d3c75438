"""retile: the same elements in other blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewise as tw
from references import assert_close, dense, element_mask, stored_bytes, tile_mask, true_norm
from strategies import tensors


@st.composite
def tilings(draw: st.DrawFn, size: int) -> tw.Space:
    """A space of that many elements, cut anywhere."""
    cuts = sorted(draw(st.sets(st.integers(1, max(size - 1, 1)), max_size=3))) if size > 1 else []
    return tw.Space(np.diff([0, *cuts, size]).tolist() if size else [])


def expected_mask(old: tw.BlockTensor, spaces: Sequence[tw.Space]) -> Any:
    """New blocks that overlap a stored block of the old tensor."""
    mask = element_mask(old.pattern) > 0
    for mode, space in enumerate(spaces):
        parts = [
            mask.take(range(int(b), int(e)), axis=mode).any(axis=mode, keepdims=True)
            for b, e in zip(space.offsets[:-1], space.offsets[1:], strict=True)
        ]
        mask = np.concatenate(parts, axis=mode) if parts else mask
    return mask


@given(st.data(), tensors())
def test_retile_moves_no_element(data: st.DataObject, tensor: tw.BlockTensor) -> None:
    new = {space: data.draw(tilings(space.size)) for space in dict.fromkeys(tensor.spaces)}
    spaces = [new[space] for space in tensor.spaces]
    before = stored_bytes(tensor)
    result = tw.retile(tensor, spaces)
    assert result.spaces == tuple(spaces)
    assert_close(result, dense(tensor), 1.0 + true_norm(dense(tensor)) if tensor.symmetry else 0.0)
    assert result.symmetry == tensor.symmetry
    np.testing.assert_array_equal(tile_mask(result.pattern) > 0, expected_mask(tensor, spaces))
    assert stored_bytes(tensor) == before
    assert not np.shares_memory(result.arena.own, tensor.arena.own)


@given(st.data(), tensors(symmetric=True))
def test_retile_drops_a_symmetry_that_the_new_tiles_break(data: st.DataObject, tensor: tw.BlockTensor) -> None:
    spaces = [data.draw(tilings(space.size)) for space in tensor.spaces]
    # Blocks of three and more exchanged modes are symmetric up to rounding only.
    assert_close(tw.retile(tensor, spaces), dense(tensor), 1.0 + true_norm(dense(tensor)))


def test_retiled_operands_fit_together() -> None:
    fine, coarse = tw.Space([1, 2, 3, 2]), tw.Space([3, 5])
    left, right = tw.random((fine, fine), 0.5), tw.random((coarse, coarse), 0.7)
    with pytest.raises(tw.InputError, match=r"tw\.retile"):
        tw.einsum("ij,jk->ik", left, right)
    result = tw.einsum("ij,jk->ik", tw.retile(left, (fine, coarse)), right)
    np.testing.assert_allclose(result.to_dense(), dense(left) @ dense(right), atol=1e-14)


@pytest.mark.parametrize("spaces", [(tw.Space([3]), tw.Space([3])), (tw.Space([4]),), ()])
def test_other_extents_are_named(spaces: tuple[tw.Space, ...]) -> None:
    sizes = tuple(space.size for space in spaces)
    with pytest.raises(tw.InputError) as caught:
        tw.retile(tw.random((tw.Space([2, 2]), tw.Space([1, 2]))), spaces)
    assert str(sizes) in str(caught.value)
    assert "(4, 3)" in str(caught.value)


@pytest.mark.parametrize("spaces", [(4, 3), tw.Space([4]), None])
def test_what_is_no_list_of_spaces_is_named(spaces: Any) -> None:
    with pytest.raises(tw.InputError, match="Space"):
        tw.retile(tw.random((tw.Space([2, 2]), tw.Space([1, 2]))), spaces)
