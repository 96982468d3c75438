"""Moving a tensor to other tiles of the same ranges."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from tilewise.errors import InputError
from tilewise.patterns import Pattern, expand
from tilewise.spaces import Space
from tilewise.tensors.create import parse_modes
from tilewise.tensors.tensor import BlockTensor


def retile(tensor: BlockTensor, spaces: Sequence[Space]) -> BlockTensor:
    """The same elements in blocks of other tiles.

    A block of the result is stored if it overlaps a stored block of the tensor; a permutational symmetry is
    kept where the new spaces allow it.

    Examples
    --------
    >>> import numpy as np, tilewise as tw
    >>> fine, coarse = tw.Space([1, 1, 2]), tw.Space([2, 2])
    >>> t = tw.from_dense(np.diag([1.0, 0.0, 0.0, 0.0]), (fine, fine))
    >>> tw.retile(t, (coarse, coarse)).pattern.index.tolist()
    [[0, 0]]
    """
    if not isinstance(tensor, BlockTensor):
        raise InputError(
            f"retile was given a {type(tensor).__name__}. Expected a BlockTensor. Make one of an array with "
            "tw.from_dense(array, spaces)."
        )
    new = parse_modes(spaces)
    if tuple(s.size for s in new) != tensor.shape:
        raise InputError(
            f"retile to spaces of sizes {tuple(s.size for s in new)} of a tensor of shape {tensor.shape}. "
            "Expected equal extents. Only the tiles may differ."
        )
    full = expand(tensor.pattern)
    touched = {index for block in full.index.tolist() for index in product(*_overlaps(tensor.spaces, new, block))}
    symmetry = tensor.symmetry
    if symmetry is not None:
        try:
            symmetry.check_spaces(new)
            touched = {symmetry.locate(index)[0] for index in touched}
        except InputError:
            symmetry = None
    pattern = Pattern(new, np.array(sorted(touched), np.int64).reshape(len(touched), len(new)), None, symmetry)
    arena = tensor.engine.allocate(pattern, tensor.dtype, zero=True)
    out = BlockTensor(pattern, arena, tensor.engine, tensor.error_bound)
    for row, target in arena.parts(pattern):
        index = pattern.index[row].tolist()
        for block in product(*_overlaps(new, tensor.spaces, index)):
            here, there = (
                zip(
                    *(_common(a, s, b, t) for a, s, b, t in zip(index, new, block, tensor.spaces, strict=True)),
                    strict=True,
                )
                if index
                else ((), ())
            )
            target[here] = tensor.block(block)[there]
    out.replace_norms(arena.norms())
    return out


def _overlaps(spaces: tuple[Space, ...], others: tuple[Space, ...], index: Sequence[int]) -> list[range]:
    """Tiles of the other spaces that share elements with a block."""
    ranges = []
    for space, other, tile in zip(spaces, others, index, strict=True):
        first = int(np.searchsorted(other.offsets, space.offsets[tile], side="right")) - 1
        last = int(np.searchsorted(other.offsets, space.offsets[tile + 1], side="left"))
        ranges.append(range(first, last))
    return ranges


def _common(tile: int, space: Space, other_tile: int, other: Space) -> tuple[slice, slice]:
    """The elements two tiles share, counted from the start of each."""
    begin = max(int(space.offsets[tile]), int(other.offsets[other_tile]))
    end = min(int(space.offsets[tile + 1]), int(other.offsets[other_tile + 1]))
    a, b = int(space.offsets[tile]), int(other.offsets[other_tile])
    return slice(begin - a, end - a), slice(begin - b, end - b)
