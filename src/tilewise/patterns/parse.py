"""Arguments of a pattern as they come from a user: spaces, block indices, norms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.patterns.permutation import Symmetry
from tilewise.spaces import Space
from tilewise.spaces.integers import parse_integers

__all__ = ["check_inside", "parse_index", "parse_norms", "parse_spaces"]

_Ints = npt.NDArray[np.int64]


def parse_spaces(spaces: Sequence[Space], symmetry: Symmetry | None) -> tuple[tuple[Space, ...], Symmetry | None]:
    """The spaces as a tuple, and the symmetry that fits them; a symmetry without groups is None."""
    remedy = "Pass a tuple with one Space per mode, such as (occ, occ, vir, vir)."
    if isinstance(spaces, Space):
        raise InputError(f"spaces is the single {spaces!r}. One space per mode is expected. {remedy}")
    modes = tuple(spaces)
    for mode, space in enumerate(modes):
        if not isinstance(space, Space):
            raise InputError(f"The space of mode {mode} is {space!r}. A Space is expected. {remedy}")
    if symmetry is None:
        return modes, None
    if not isinstance(symmetry, Symmetry):
        raise InputError(f"symmetry is {symmetry!r}. A Symmetry or None is expected. Write Symmetry(((0, 1), -1)).")
    symmetry.check_spaces(modes)
    return modes, symmetry if symmetry.groups else None


def parse_index(index: npt.ArrayLike, spaces: tuple[Space, ...], symmetry: Symmetry | None) -> _Ints:
    """Block indices as int64 (blocks, ndim), each inside the spaces and, with a symmetry, a unique block."""
    ndim = len(spaces)
    remedy = f"Pass one row of {ndim} tile numbers per block."
    blocks = parse_integers(index, "The block indices of a pattern", remedy)
    if blocks.shape == (0,):
        blocks = blocks.reshape(0, ndim)
    if blocks.ndim != 2 or blocks.shape[1] != ndim:
        raise InputError(
            f"The block indices of a pattern have shape {blocks.shape}. "
            f"Shape (blocks, {ndim}) is expected for {ndim} modes. {remedy}"
        )
    if ndim == 0 and len(blocks) > 1:
        raise InputError(f"A scalar has {len(blocks)} blocks. It has one or none. Pass [()] or [].")
    check_inside(blocks, spaces)
    if symmetry is not None:
        _check_unique(blocks, symmetry)
    return blocks


def check_inside(blocks: _Ints, spaces: tuple[Space, ...]) -> None:
    """Raise an `InputError` if a block names a tile that its space does not have."""
    for mode, space in enumerate(spaces):
        column = blocks[:, mode]
        if not column.size or (column.min() >= 0 and column.max() < space.ntiles):
            continue
        row = int(np.flatnonzero((column < 0) | (column >= space.ntiles))[0])
        numbers = f"are numbered from 0 to {space.ntiles - 1}" if space.ntiles else "do not exist in this space"
        raise InputError(
            f"Block {tuple(blocks[row].tolist())} names tile {column[row]} in mode {mode} ({space!r}). "
            f"Tiles {numbers}. Correct the index or the space."
        )


def _check_unique(blocks: _Ints, symmetry: Symmetry) -> None:
    bad = np.flatnonzero(~symmetry.ascends(blocks))
    if bad.size:
        block = blocks[bad[:1]]
        raise InputError(
            f"Block {tuple(block[0].tolist())} is not a unique block of {symmetry!r}. "
            "Tile numbers must not decrease within a group of modes. "
            f"List {tuple(symmetry.ascending(block)[0].tolist())} in its place."
        )


def parse_norms(norms: npt.ArrayLike | None, blocks: int) -> npt.NDArray[np.float64]:
    """One non-negative bound per block as float64; a single number serves all, None is infinite (unknown)."""
    remedy = "Pass one non-negative number per block, or None if the norms are unknown."
    if norms is None:
        return np.full(blocks, np.inf)
    try:
        bounds = np.array(norms, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise InputError(f"The norms of a pattern cannot be read as numbers: {error}. {remedy}") from error
    if bounds.ndim == 0:
        bounds = np.full(blocks, bounds)
    if bounds.shape != (blocks,):
        raise InputError(f"The norms have shape {bounds.shape} for {blocks} blocks. ({blocks},) is expected. {remedy}")
    bad = np.flatnonzero(~(bounds >= 0))
    if bad.size:
        raise InputError(
            f"The norm of block {bad[0]} is {bounds[bad[0]]}. "
            f"A bound is at least 0, and infinite where it is unknown. {remedy}"
        )
    return bounds
