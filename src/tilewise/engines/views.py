"""Plans and tensors as the compiled loops see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.kernels.blocks import Blocks
from tilewise.engines.kernels.microkernel import MAX_ROWS
from tilewise.engines.kernels.packing import Panels
from tilewise.engines.kernels.products import Cells
from tilewise.engines.kernels.reductions import Gather
from tilewise.patterns import Expansion, Pattern, expand
from tilewise.plans import Product, Sum
from tilewise.plans.cells import Strips
from tilewise.plans.sides import Modes, Side
from tilewise.tensors import BlockTensor

Ints = npt.NDArray[np.int64]


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only view: compiled loops know one type of array for everything they only read."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def integers(values: Sequence[int]) -> Ints:
    """A read-only integer array."""
    return frozen(np.array(values, np.int64))


def blocks_view(tensor: BlockTensor, expansion: Expansion, modes: Modes, data: npt.NDArray[Any]) -> Blocks:
    """An operand's or a result's blocks; `data` is the arena, as reals where the loop wants them."""
    tiles, tile_at = _tiles(tensor.pattern)
    return Blocks(
        data=data,
        start=frozen(tensor.arena.offsets[expansion.source]),
        index=frozen(expansion.index),
        perm=frozen(expansion.perm),
        perms=frozen(expansion.perms),
        sign=frozen(expansion.sign),
        tiles=tiles,
        tile_at=tile_at,
        free=integers(modes.free),
        inner=integers(modes.inner),
        batch=integers(modes.batch),
    )


def _tiles(pattern: Pattern) -> tuple[Ints, Ints]:
    sizes = [space.sizes for space in pattern.spaces]
    at = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum([len(s) for s in sizes], out=at[1:])
    return frozen(np.concatenate([*sizes, np.zeros(0, np.int64)])), frozen(at)


def result_view(out: BlockTensor, modes: Modes, data: npt.NDArray[Any]) -> Blocks:
    """The blocks of a result."""
    return blocks_view(out, expand(out.pattern), modes, data)


def panels_view(side: Side, strips: Strips) -> Panels:
    """An operand's panels and strips, and the slivers of its strips should it give the rows."""
    slivers = -(-strips.size // MAX_ROWS)
    narrow, wider = np.divmod(strips.size, slivers)
    return Panels(
        *map(
            frozen,
            (
                side.ptr,
                side.block,
                side.at,
                side.depth,
                side.tile_sizes(),
                strips.panel,
                strips.begin,
                strips.size,
                strips.batch,
                slivers,
                narrow,
                wider,
            ),
        )
    )


def cells_view(work: Product, target: BlockTensor, slots: Ints | None) -> Cells:
    """The work; `slots` gives the place of each result block in the tensor that is written to.

    Piece p of a cell is written p results further on.
    """
    cells = work.cells
    block = cells.block if slots is None else slots[cells.block]
    start = target.arena.offsets[block] + cells.piece * target.pattern.nnz_elements
    return Cells(
        *map(
            frozen,
            (
                block,
                start,
                cells.row,
                cells.col,
                cells.begin,
                cells.end,
                work.terms,
                cells.task_ptr,
                cells.group_of_col,
                cells.group_ptr,
            ),
        )
    )


def gather_view(work: Sum) -> Gather:
    """The work of a reduction."""
    kept_ptr, kept = _ragged(work.kept)
    summed_ptr, summed = _ragged(work.summed)
    return Gather(frozen(work.task_ptr), frozen(work.ptr), frozen(work.source), kept_ptr, kept, summed_ptr, summed)


def _ragged(groups: tuple[tuple[int, ...], ...]) -> tuple[Ints, Ints]:
    ptr = np.zeros(len(groups) + 1, np.int64)
    np.cumsum([len(g) for g in groups], out=ptr[1:])
    return frozen(ptr), integers([mode for g in groups for mode in g])
