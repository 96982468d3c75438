"""The block products of a plan one by one, with the stored blocks of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.plans.plan import Plan
from tilewise.plans.work import Product

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The block products of a plan."""

    left: Ints
    """Stored block of the left operand."""
    right: Ints
    """Stored block of the right operand."""
    target: Ints
    """Result block."""
    segment: Ints
    """Segment of k."""
    flops: Floats
    """Floating-point operations of each."""


def list_pairs(plan: Plan) -> Pairs:
    """Every block product that a plan does, ordered by row panel and k tile."""
    work = plan.work
    assert isinstance(work, Product)
    rows, cols, tiles = work.rows, work.cols, work.choices.tiles
    by_inner = cols.by_inner(tiles.size)
    row = np.repeat(np.arange(len(rows.size)), np.diff(rows.ptr))
    count = np.diff(by_inner.ptr)[rows.inner]
    entry = np.repeat(np.arange(len(rows.inner)), count)
    within = np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count)
    other = by_inner.ptr[rows.inner[entry]] + within
    if work.choices.drop >= 0:
        first, second = rows.norms[entry], by_inner.norms[other]
        with np.errstate(invalid="ignore"):
            kept = np.where((first == 0) | (second == 0), 0.0, first * second) > work.choices.drop
        entry, other = entry[kept], other[kept]
    own, met = rows.block[entry], by_inner.number[other]
    left, right = (met, own) if work.swapped else (own, met)
    lengths = tile_lengths(plan, work)
    col, inner = by_inner.other[other], rows.inner[entry]
    factor = 8 if plan.dtype.kind == "c" else 2
    sizes = (rows.size * rows.batch)[row[entry]] * cols.size[col] * lengths[inner]
    return Pairs(
        left=plan.operands[0].blocks.source[left],
        right=plan.operands[1].blocks.source[right],
        target=_targets(work, row[entry], col),
        segment=work.choices.segment[inner],
        flops=factor * sizes.astype(np.float64),
    )


def tile_lengths(plan: Plan, work: Product) -> Ints:
    """Elements of each k tile, without those of the batch."""
    names = work.contraction.batch + work.contraction.k
    spaces = [plan.operands[0].pattern.spaces[work.contraction.left.index(name)] for name in names]
    return work.choices.tiles.sizes(spaces, range(len(work.contraction.batch), len(names)))


def _targets(work: Product, row: Ints, col: Ints) -> Ints:
    """The result block that each pair of panels gives."""
    cells, width = work.cells, max(len(work.cols.size), 1)
    keys = work.row_strips.panel[cells.row] * width + work.col_strips.panel[cells.col]
    known, first = np.unique(keys, return_index=True)
    return cells.block[first][np.searchsorted(known, row * width + col)]
