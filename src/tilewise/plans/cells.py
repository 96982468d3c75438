"""Cutting the result of a product into cells and tasks.

A panel with many free elements is cut into strips, a result block into the cells of its strips.  Strips of
columns are gathered into groups that stay in the last-level cache.  A task is a run of cells of one group, row
by row: a strip of rows stays in the second-level cache while it meets the group's columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.plans.arrange import cut_strips, cut_tasks, group_columns, order_cells
from tilewise.plans.joins import Joined
from tilewise.plans.sides import Side

Ints = npt.NDArray[np.int64]

TASKS = 512
"""About how many tasks a product is cut into; fixed, so that a plan does not depend on the workers."""

LEAST_TASK_FLOPS = 2e6
"""Work below which a task costs more to hand out than to do."""

MOST_CELLS = 1 << 27
"""Cells that a plan lists at the most: some ten GB of it."""

FEW_CELLS = 64
"""With at most half as many cells, and work for more tasks, the terms of a cell are cut into pieces, up to so many in
all: with more cells, adding the pieces up takes longer than workers would wait."""

MOST_PIECES = 16
"""Pieces that a cell is cut into at the most; each needs a result of its own."""


@dataclass(frozen=True, slots=True)
class Strips:
    """Ranges of the free elements of panels."""

    panel: Ints
    """Panel of each strip."""
    begin: Ints
    """First free element of each strip."""
    size: Ints
    """Free elements of each strip."""
    batch: Ints
    """Batch elements of each strip."""
    first: Ints
    """First strip of each panel; one more at the end."""

    @classmethod
    def of(cls, side: Side, limit: int) -> Strips:
        """Cut panels into strips of nearly equal size, none larger than `limit`."""
        panel, begin, size, batch, first = cut_strips(side.size, side.batch, limit)
        return cls(panel, begin, size, batch, first)


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a product in the order of its tasks."""

    block: Ints
    """Result block of each cell."""
    piece: Ints
    """Which piece of its terms a cell sums; pieces are added up in order afterwards."""
    row: Ints
    """Row strip."""
    col: Ints
    """Column strip."""
    begin: Ints
    """First term."""
    end: Ints
    """One past the last term."""
    flops: npt.NDArray[np.float64]
    """Floating-point operations of each cell."""
    task_ptr: Ints
    """First cell of each task; one more at the end."""
    group_of_col: Ints
    """Group of each column strip."""
    group_ptr: Ints
    """First column strip of each group; one more at the end."""
    planned_pieces: int
    """Pieces that the segments of the whole product are cut into."""

    @property
    def pieces(self) -> int:
        """Pieces that each cell's terms are cut into."""
        return int(self.piece.max(initial=0)) + 1

    @property
    def task_flops(self) -> npt.NDArray[np.float64]:
        """Floating-point operations of each task."""
        shares = np.add.reduceat(self.flops, self.task_ptr[:-1]) if len(self.block) else np.zeros(0)
        return np.asarray(shares, np.float64)


def make_cells(
    joined: Joined,
    slot: Ints,
    rows: Strips,
    cols: Strips,
    col_bytes: Ints,
    group_bytes: int,
    flop_factor: int,
    segments: int,
    pieces: int | None,
) -> Cells:
    """Cut result blocks into cells, order them by column group, and cut the order into tasks.

    Parameters
    ----------
    joined : Joined
        The result blocks and their terms.
    slot : int64 array
        The place of each joined block in the result's pattern.
    rows, cols : Strips
        The strips of both operands.
    col_bytes : int64 array
        Packed bytes of each strip of columns.
    group_bytes : int
        Packed bytes of a group of columns.
    flop_factor : int
        2 for real elements, 8 for complex ones.
    segments : int
        Segments of the k tiles.
    pieces : int, optional
        Pieces that the segments of the whole product are cut into; chosen here if this is the whole product.
    """
    _check_number(joined, rows, cols)
    group_of_col, group_ptr = group_columns(col_bytes, group_bytes)
    block, row, col, flops = order_cells(
        joined.row,
        joined.col,
        joined.depth,
        rows.first,
        rows.size,
        rows.batch,
        cols.first,
        cols.size,
        group_of_col,
        len(group_ptr) - 1,
        flop_factor,
    )
    begin, end = joined.ptr[block], joined.ptr[block + 1]
    if pieces is None:
        pieces = _count_pieces(flops, segments)
    piece = np.zeros(len(block), np.int64)
    if pieces > 1 and len(block):
        piece, cell, begin, end, share = _cut_terms(begin, end, joined.terms, segments, pieces)
        block, row, col, flops = block[cell], row[cell], col[cell], flops[cell] * share
    target = max(float(flops.sum()) / TASKS, LEAST_TASK_FLOPS)
    tasks = cut_tasks(group_of_col[col], flops, target)
    return Cells(slot[block], piece, row, col, begin, end, flops, tasks, group_of_col, group_ptr, pieces)


def keep_blocks(cells: Cells, wanted: npt.NDArray[np.bool_]) -> Cells:
    """The cells of some result blocks, cut into tasks anew."""
    kept = wanted[cells.block]
    col, flops = cells.col[kept], cells.flops[kept]
    target = max(float(flops.sum()) / TASKS, LEAST_TASK_FLOPS)
    return replace(
        cells,
        block=cells.block[kept],
        piece=cells.piece[kept],
        row=cells.row[kept],
        col=col,
        begin=cells.begin[kept],
        end=cells.end[kept],
        flops=flops,
        task_ptr=cut_tasks(cells.group_of_col[col], flops, target),
    )


def keep_rows(rows: Strips, cells: Cells) -> tuple[Strips, Cells]:
    """Only the strips of rows that some cells have: others need not be packed."""
    used = np.unique(cells.row)
    if len(used) == len(rows.panel):
        return rows, cells
    first = np.searchsorted(rows.panel[used], np.arange(len(rows.first)))
    kept = Strips(rows.panel[used], rows.begin[used], rows.size[used], rows.batch[used], first)
    return kept, replace(cells, row=np.searchsorted(used, cells.row))


def _check_number(joined: Joined, rows: Strips, cols: Strips) -> None:
    """Raise if the result blocks are cut into more cells than a plan can list."""
    if len(rows.panel) * len(cols.panel) <= MOST_CELLS:
        return
    cells = float((np.diff(rows.first)[joined.row].astype(np.float64) * np.diff(cols.first)[joined.col]).sum())
    if cells > MOST_CELLS:
        raise InputError(
            f"The result would be cut into {cells:.3g} cells. A plan lists at most {MOST_CELLS}. Contract a part of "
            "the tensors at a time."
        )


def _count_pieces(flops: npt.NDArray[np.float64], segments: int) -> int:
    """Pieces that the terms of each cell are cut into: enough to keep workers busy, from the pattern alone."""
    cells = len(flops)
    if not 0 < cells < FEW_CELLS:
        return 1
    work = int(float(flops.sum()) / cells / LEAST_TASK_FLOPS)
    return max(1, min(MOST_PIECES, FEW_CELLS // cells, work, segments))


def piece_of_segment(segment: Ints, segments: int, pieces: int) -> Ints:
    """The piece that each segment belongs to: nearly equal numbers of segments in each."""
    return segment * pieces // max(segments, 1)


def _cut_terms(
    begin: Ints, end: Ints, terms: npt.NDArray[np.int32], segments: int, pieces: int
) -> tuple[Ints, Ints, Ints, Ints, npt.NDArray[np.float64]]:
    """Cells cut at the borders of pieces: piece (from zero), cell, first and last term of each, and share of the cell.

    Every cell is cut into the pieces that any cell has terms of.
    """
    piece = piece_of_segment(terms[:, 3].astype(np.int64) >> 1, segments, pieces)
    present = np.unique(piece)
    cuts = [first + np.searchsorted(piece[first:last], present) for first, last in zip(begin, end, strict=True)]
    borders = np.column_stack([np.array(cuts).reshape(len(begin), len(present)), end])
    first, last = borders[:, :-1].ravel(), borders[:, 1:].ravel()
    share = (last - first) / np.repeat(np.maximum(end - begin, 1), len(present))
    return (
        np.tile(np.arange(len(present)), len(begin)),
        np.repeat(np.arange(len(begin)), len(present)),
        first,
        last,
        share,
    )
