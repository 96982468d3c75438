"""Where the elements of a block lie: offset tables for groups of modes.

The position of an element in a stored block is a sum of one term per mode, so it splits into one table
for each group of modes (free, inner, batch).  With the tables, any order of modes, any permutational
symmetry and any diagonal is read in place; nothing is transposed beforehand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewise.engines.kernels.compile import compiled, inlined


class Blocks(NamedTuple):
    """The blocks of one tensor as the compiled loops see them."""

    data: Any
    """All elements; complex ones as pairs of reals."""
    start: Any
    """Element number at which each block's storage begins."""
    index: Any
    """Tile of each mode, one row per block."""
    perm: Any
    """Row of `perms` for each block."""
    perms: Any
    """Axes that turn stored blocks into blocks."""
    sign: Any
    """Factor that turns stored blocks into blocks."""
    tiles: Any
    """Tile sizes of all modes, one after the other."""
    tile_at: Any
    """Where each mode's sizes begin in `tiles`."""
    free: Any
    """Modes that the result keeps."""
    inner: Any
    """Modes that are summed."""
    batch: Any
    """Modes shared by both operands and the result."""


@compiled
def locate(blocks: Any, b: int, dims: Any, strides: Any) -> None:
    """Sizes and element strides of the modes of block `b`."""
    ndim = blocks.index.shape[1]
    perm = blocks.perm[b]
    for d in range(ndim):
        dims[d] = blocks.tiles[blocks.tile_at[d] + blocks.index[b, d]]
    _strides(blocks, perm, dims, strides)


@compiled
def _strides(blocks: Any, perm: int, dims: Any, strides: Any) -> None:
    """Mode d of a block is mode perms[perm, d] of its storage, which is in C order."""
    for d in range(len(dims)):
        step = 1
        for e in range(len(dims)):
            if blocks.perms[perm, e] > blocks.perms[perm, d]:
                step *= dims[e]
        strides[d] = step


@compiled
def fill(table: Any, modes: Any, dims: Any, strides: Any, width: int) -> int:
    """Offsets of a group of modes, the last mode fastest; `width` reals per element.  Returns their number."""
    table[0] = 0
    count = 1
    for mode in modes:
        size, step = dims[mode], strides[mode] * width
        for i in range(count - 1, -1, -1):
            base = table[i]
            at = i * size
            for j in range(size - 1, -1, -1):
                table[at + j] = base + j * step
        count *= size
    return count


class Tables(NamedTuple):
    """One worker's offset tables for the blocks of one tensor."""

    dims: Any
    """Sizes of the modes of the block that the tables are for."""
    perm: Any
    """Its permutation."""
    strides: Any
    """Element strides of its modes."""
    free: Any
    """Offsets, in reals, of the elements of the free modes."""
    inner: Any
    """Offsets of the elements of the inner modes."""
    batch: Any
    """Offsets of the elements of the batch modes."""
    count: Any
    """Number of free, inner and batch elements."""
    step: Any
    """Distance between neighbouring offsets of free and inner elements, 0 where it varies."""


@inlined
def look_up(blocks: Any, b: int, tables: Any, parts: int) -> None:
    """Make the tables those of block `b`; most blocks have the shape of the block before."""
    same = tables.perm[0] == blocks.perm[b]
    for d in range(blocks.index.shape[1]):
        size = blocks.tiles[blocks.tile_at[d] + blocks.index[b, d]]
        same = same and size == tables.dims[d]
        tables.dims[d] = size
    if same:
        return
    tables.perm[0] = blocks.perm[b]
    _fill_all(blocks, tables, parts)


@inlined
def look_up_cell(result: Any, row_tiles: Any, row: int, col_tiles: Any, col: int, tables: Any, parts: int) -> None:
    """Make the tables those of the result block of two panels, from the sizes of the panels' tiles.

    The result's blocks are visited in an order of their own; their indices would have to be fetched from
    far away.
    """
    same = tables.perm[0] == 0
    batches = len(result.batch)
    for i in range(row_tiles.shape[1]):
        d = result.batch[i] if i < batches else result.free[i - batches]
        same = same and row_tiles[row, i] == tables.dims[d]
        tables.dims[d] = row_tiles[row, i]
    for i in range(batches, col_tiles.shape[1]):
        d = result.inner[i - batches]
        same = same and col_tiles[col, i] == tables.dims[d]
        tables.dims[d] = col_tiles[col, i]
    if same:
        return
    tables.perm[0] = 0
    _fill_all(result, tables, parts)


@compiled
def _fill_all(blocks: Any, tables: Any, parts: int) -> None:
    _strides(blocks, tables.perm[0], tables.dims, tables.strides)
    tables.count[0] = fill(tables.free, blocks.free, tables.dims, tables.strides, parts)
    tables.count[1] = fill(tables.inner, blocks.inner, tables.dims, tables.strides, parts)
    tables.count[2] = fill(tables.batch, blocks.batch, tables.dims, tables.strides, parts)
    tables.step[0] = _common_step(tables.free, tables.count[0], parts)
    tables.step[1] = _common_step(tables.inner, tables.count[1], parts)


@compiled
def _common_step(table: Any, count: int, parts: int) -> int:
    if count == 1:
        return parts
    step = table[1] - table[0]
    for i in range(2, count):
        if table[i] - table[i - 1] != step:
            return 0
    return int(step)


def make_tables(blocks: Blocks) -> Tables:
    """Tables that fit any block of a tensor and are for none yet."""
    ndim = blocks.index.shape[1]
    free, inner, batch = (
        np.empty(largest(blocks, modes), np.int64) for modes in (blocks.free, blocks.inner, blocks.batch)
    )
    counts = np.zeros(3, np.int64), np.zeros(2, np.int64)
    return Tables(np.zeros(ndim, np.int64), np.full(1, -1), np.zeros(ndim, np.int64), free, inner, batch, *counts)


def largest(blocks: Blocks, modes: Any) -> int:
    """An upper bound on the elements of a group of modes in any block."""
    total = 1
    for mode in modes:
        sizes = blocks.tiles[blocks.tile_at[mode] : blocks.tile_at[mode + 1]]
        total *= int(sizes.max(initial=1))
    return total
