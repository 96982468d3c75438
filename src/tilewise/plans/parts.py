"""One rank's part of a step that several ranks share, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tilewise.plans.cells import keep_blocks, keep_rows
from tilewise.plans.inspector import buffer_bytes, inspect_part
from tilewise.plans.plan import Plan
from tilewise.plans.projection import blocks_of_cells
from tilewise.plans.reduction import reduction_blocks
from tilewise.plans.shares import Shares, panels_of_blocks
from tilewise.plans.sides import Side
from tilewise.plans.work import Product, Sum

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """What a rank computes in one stage."""

    plan: Plan
    """The work, as a plan of its own."""
    slots: Ints
    """Where each result block of it is among those of the whole."""

    @cached_property
    def stored_blocks(self) -> tuple[Ints, ...]:
        """The stored blocks of each operand that are read."""
        work, operands = self.plan.work, self.plan.operands
        if isinstance(work, Sum):
            return (np.unique(operands[0].blocks.source[work.source]),)
        rows, cols = blocks_of_cells(self.plan, work)
        left, right = (cols, rows) if work.swapped else (rows, cols)
        return tuple(np.unique(o.blocks.source[b]) for o, b in zip(operands, (left, right), strict=True))


def part_of_rank(plan: Plan, shares: Shares, stages: Ints, rank: int, stage: int) -> Part | None:
    """What a rank does in a stage; None if that is nothing.

    Parameters
    ----------
    plan : Plan
        The whole step.
    shares : Shares
        Who does what.
    stages : array of int
        Stage of each k segment.
    rank, stage : int
        Which one.
    """
    segments = np.flatnonzero(stages == stage)
    if not len(segments):
        return None
    wanted = shares.wanted(rank, int(shares.group[segments[0]]))
    if not wanted.any():
        return None
    if isinstance(plan.work, Sum):
        chosen = np.flatnonzero(wanted)
        return Part(reduction_blocks(plan, chosen), chosen)
    if len(segments) == len(stages):
        return keep_part(plan, plan.work, wanted)
    return _cut_off(plan, plan.work, wanted, segments)


def keep_part(plan: Plan, work: Product, wanted: Flags) -> Part:
    """The cells of some result blocks; the others are there, with nothing to do."""
    return Part(_kept(plan, work, wanted), np.arange(plan.result.nnz_blocks))


def _kept(plan: Plan, work: Product, wanted: Flags) -> Plan:
    strips, cells = keep_rows(work.row_strips, keep_blocks(work.cells, wanted))
    kept = replace(work, row_strips=strips, cells=cells)
    packed, buffers = buffer_bytes(plan.kernel, kept, plan.dtype)
    partial = cells.pieces * plan.result_bytes if cells.pieces > 1 else 0
    flops = int(cells.flops.sum())
    return replace(plan, work=kept, flops=flops, packed_bytes=packed + partial, worker_bytes=buffers, runs=[])


def _cut_off(plan: Plan, work: Product, wanted: Flags, segments: Ints) -> Part | None:
    """Some result blocks, summed over some k segments."""
    chosen = np.zeros(work.choices.segments, np.bool_)
    chosen[segments] = True
    row, col = panels_of_blocks(plan)
    rows = _entries(work.rows, row[wanted], chosen[work.choices.segment])
    cols = _entries(work.cols, col[wanted], chosen[work.choices.segment])
    left, right = (cols, rows) if work.swapped else (rows, cols)
    if not len(left) or not len(right):
        return None
    part = inspect_part(plan, left, right)
    slots = plan.result.find(part.result.index)
    assert isinstance(part.work, Product)
    return Part(_kept(part, part.work, wanted[slots]), slots)


def _entries(side: Side, panels: Ints, inner: Flags) -> Ints:
    """Blocks of some panels that have some k tiles."""
    needed = np.zeros(len(side.ptr) - 1, np.bool_)
    needed[panels] = True
    kept = np.repeat(needed, np.diff(side.ptr)) & inner[side.inner]
    return np.sort(side.block[kept])
