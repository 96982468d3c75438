"""Cutting the result of a product into cells and tasks.

A panel with many free elements is cut into strips, a result block into the cells of its strips.  Strips of
columns are gathered into groups that stay in the last-level cache.  A task is a run of cells of one group, row
by row: a strip of rows stays in the second-level cache while it meets the group's columns.
"""

from __future__ import annotations

from dataclasses import dataclass

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
"""With fewer cells than this, and work for more tasks, the terms of a cell are cut into pieces."""

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
) -> Cells:
    """Cut result blocks into cells, order them by column group, and cut the order into tasks.

    `slot` is the place of each joined block in the result's pattern; `flop_factor` is 2 for real elements
    and 8 for complex ones.
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
    pieces = _count_pieces(flops, end - begin)
    piece = np.zeros(len(block), np.int64)
    if pieces > 1:
        piece = np.tile(np.arange(pieces), len(block))
        block, row, col, flops = (np.repeat(a, pieces) for a in (block, row, col, flops / pieces))
        begin, end = _cut_terms(begin, end, pieces)
    target = max(float(flops.sum()) / TASKS, LEAST_TASK_FLOPS)
    tasks = cut_tasks(group_of_col[col], flops, target)
    return Cells(slot[block], piece, row, col, begin, end, flops, tasks, group_of_col, group_ptr)


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


def _count_pieces(flops: npt.NDArray[np.float64], terms: Ints) -> int:
    """Pieces that the terms of each cell are cut into: enough to keep workers busy, from the pattern alone."""
    if not 0 < len(terms) < FEW_CELLS:
        return 1
    work = int(float(flops.sum()) / len(terms) / LEAST_TASK_FLOPS)
    return max(1, min(MOST_PIECES, -(-FEW_CELLS // len(terms)), work, int(terms.min())))


def _cut_terms(begin: Ints, end: Ints, pieces: int) -> tuple[Ints, Ints]:
    """Ranges of terms of each piece of each cell."""
    cuts = begin[:, None] + (end - begin)[:, None] * np.arange(pieces + 1) // pieces
    return cuts[:, :-1].ravel(), cuts[:, 1:].ravel()
