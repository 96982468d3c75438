"""Cutting a product into phases that keep to a memory budget (Herault et al. 2020, 3.2.2 and 3.2.3).

One operand is *stationary*: its panels are gathered into blocks of up to half the capacity, largest first into
the emptiest open block (worst fit), and each block is fetched once.  The other one is *streamed*: while a block
is held, chunks of up to a quarter of the capacity pass by, and the last quarter takes the next chunk while the
present one is multiplied.  A panel that does not fit is split along k.  Nothing is cut finer than one segment of k
of one panel, so that every phase has the bits of the whole product (see `tilewise.plans.work.Choices`).

Operands that are in memory already cost nothing to fetch; what packing adds is counted with the side it is for.
Blocks that a function makes are there twice until they are copied: as many of them as are made at once are counted.
A result that does not fit is *spilled*: the result blocks that a block of the stationary operand adds to are held with
it, and written to a scratch file when the next block comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tilewise.errors import MemoryBudgetError
from tilewise.plans.blocks import (
    FINEST,
    SHRINKINGS,
    CostedSide,
    hold_panels,
    largest_part,
    result_panels,
    stream_chunks,
    unique_bytes,
)
from tilewise.plans.cells import Strips, piece_of_segment
from tilewise.plans.inspector import COL_STRIP, GROUP_BYTES, packed_columns
from tilewise.plans.plan import Plan
from tilewise.plans.sides import Side
from tilewise.plans.work import Product, Sum

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Source:
    """What fetching the blocks of an operand costs."""

    resident: bool
    """Whether the elements are in memory, in the element type of the product."""
    seconds: Floats | None = None
    """What making each stored block is said to cost."""
    made_bytes: int = 0
    """Largest block that is made elsewhere before it is copied; zero where blocks are read to where they are needed."""

    def is_alike(self, other: Source) -> bool:
        """Whether fetching from another one takes the same memory."""
        return (self.resident, self.made_bytes) == (other.resident, other.made_bytes)


@dataclass(frozen=True, slots=True)
class Phase:
    """What is done between two needs of new data."""

    held: Ints | None
    """Stored blocks of the stationary operand to fetch first, instead of those held before; None keeps these."""
    spilled: Ints | None
    """Result blocks to hold from here on, after those held before were written out; None keeps these."""
    streamed: Ints
    """Stored blocks of the streamed operand to fetch."""
    blocks: tuple[Ints, ...]
    """Blocks of each operand (of its expansion) that are multiplied; of a reduction: the range of its sources."""
    closes: bool
    """Whether what was summed since the last closing is added to the result after this phase."""


@dataclass(frozen=True, slots=True)
class Phases:
    """A product or a reduction cut into phases."""

    sequence: tuple[Phase, ...]
    """The phases in order."""
    stationary: int
    """Number of the stationary operand; -1 if all are streamed."""
    sources: tuple[Source, ...]
    """The operands that the phases were planned for."""
    readers: int
    """Blocks that are made or read at once."""
    held_bytes: int
    """Largest fetched block of the stationary operand."""
    chunk_bytes: int
    """Largest fetched chunk of the streamed operand."""
    buffer_bytes: int
    """Most that the engine packs in one phase."""
    partial_bytes: int
    """Result of one piece, where the pieces of a sum are worked off one after the other."""
    result_bytes: int
    """Bytes of the result that are held: all of it, or the most that a block adds to where it is spilled."""
    spills: bool
    """Whether the result goes to a scratch file."""
    fetched_bytes: tuple[int, ...]
    """Bytes fetched of each operand in the whole run."""
    budget: int
    """The budget that is kept."""

    @property
    def prefetches(self) -> bool:
        """Whether a chunk is fetched while another is multiplied."""
        return len(self.sequence) > 1 and self.chunk_bytes > 0

    @property
    def made_bytes(self) -> int:
        """Most bytes of blocks that were made and not yet copied."""
        return made_at_once(self.sources, self.readers)

    @property
    def peak_bytes(self) -> int:
        """Most bytes that a run adds at any time."""
        chunks = self.chunk_bytes * (2 if self.prefetches else 1)
        fetched = self.held_bytes + chunks + self.made_bytes
        return self.result_bytes + self.partial_bytes + fetched + self.buffer_bytes


def made_at_once(sources: Sequence[Source], readers: int) -> int:
    """Bytes of blocks that so many readers have made and not yet copied."""
    return readers * max((source.made_bytes for source in sources if not source.resident), default=0)


Goal = Literal["auto", "out", "scratch"]
"""Where a result goes: to memory if it fits, else to a scratch file; to a tensor that is there; to a scratch file."""


def plan_phases(plan: Plan, sources: tuple[Source, ...], budget: int, copy_rate: float, goal: Goal = "auto") -> Phases:
    """Cut a step into the phases with the least fetching that keep to a budget.

    Parameters
    ----------
    plan : Plan
        The whole step.
    sources : tuple of Source
        Its operands.
    budget : int
        Bytes that the run may add.
    copy_rate : float
        GB/s at which blocks are brought, to weigh bytes against what making blocks costs.
    goal : str
        Where the result goes.  What is added to a tensor that is there takes no room; only products can go to a file.
    """
    readers = max(plan.workers, 1)
    found = _cut(plan, _Needs(sources, readers, budget, copy_rate, goal))
    if found.peak_bytes > budget and readers > 1 and found.made_bytes:
        # What several readers make at once is too much: one makes blocks one by one.
        found = _cut(plan, _Needs(sources, 1, budget, copy_rate, goal))
    if found.peak_bytes > budget:
        raise _too_little(plan, found)
    return found


def can_spill(plan: Plan) -> bool:
    """Whether the result of a step can go to a scratch file part by part."""
    return isinstance(plan.work, Product) and plan.work.choices.pieces == 1


@dataclass(frozen=True, slots=True)
class _Needs:
    """What phases have to keep to, however they are cut."""

    sources: tuple[Source, ...]
    """The operands."""
    readers: int
    """Blocks that are made or read at once."""
    budget: int
    """Bytes that the run may add."""
    copy_rate: float
    """GB/s at which blocks are brought."""
    goal: Goal
    """Where the result goes."""

    def result_bytes(self, plan: Plan) -> int:
        """Bytes that the whole result takes."""
        return 0 if self.goal == "out" else plan.result_bytes


def _cut(plan: Plan, needs: _Needs) -> Phases:
    """The phases that fetch least if any keep to the budget, else those that need least memory."""
    if isinstance(plan.work, Sum):
        return _cut_sum(plan, plan.work, needs)
    work, least = plan.work, []
    if needs.goal != "scratch":
        least = [_one_phase(plan, work, needs)]
        if least[0].peak_bytes <= needs.budget:
            return least[0]
    ways = {"auto": (False, True) if can_spill(plan) else (False,), "out": (False,), "scratch": (True,)}
    for spills in ways[needs.goal]:
        cutters = [_PhaseCutter(plan, work, needs, side, spills) for side in (0, 1)]
        if fitting := [found for cutter in cutters if (found := cutter.fit()) is not None]:
            return min(fitting, key=lambda found: _fetch_seconds(found, needs.copy_rate))
        least += [cutter.least() for cutter in cutters]
    return min(least, key=lambda found: found.peak_bytes)


def _too_little(plan: Plan, least: Phases) -> MemoryBudgetError:
    """Say what the finest phases need, and which part of them needs most."""
    streamed = 1 - least.stationary if least.stationary >= 0 else 0
    parts = {
        "the result": least.result_bytes + least.partial_bytes,
        f"a chunk of operand {streamed}": least.chunk_bytes * (2 if least.prefetches else 1),
        "packing buffers": least.buffer_bytes,
        "blocks that were made and not yet copied": least.made_bytes,
    }
    if least.stationary >= 0:
        parts[f"a block of operand {least.stationary}"] = least.held_bytes
    blame = max(parts, key=lambda name: parts[name])
    return MemoryBudgetError(
        f"{plan.label} cannot run in {least.budget} bytes. At least {least.peak_bytes} are needed, most of them for "
        f"{blame} ({parts[blame]} bytes). Give that much with memory=, or use smaller tiles.",
        least.budget,
        least.peak_bytes,
    )


def _fetch_seconds(phases: Phases, copy_rate: float) -> float:
    seconds = sum(phases.fetched_bytes) / (1e9 * max(copy_rate, 1e-3))
    for number, source in enumerate(phases.sources):
        if source.seconds is None:
            continue
        for phase in phases.sequence:
            fetched = phase.held if number == phases.stationary else phase.streamed
            seconds += 0.0 if fetched is None else float(source.seconds[fetched].sum()) / phases.readers
    return seconds


def _operands(plan: Plan, work: Product, sources: Sequence[Source]) -> tuple[CostedSide, CostedSide]:
    """Rows and columns with the costs of their entries."""
    order = (1, 0) if work.swapped else (0, 1)
    item = plan.dtype.itemsize
    found = []
    for number, side, is_row in zip(order, (work.rows, work.cols), (True, False), strict=True):
        operand = plan.operands[number]
        stored = operand.blocks.source[side.block]
        size = operand.pattern.block_sizes[stored] * item
        none = np.zeros_like(size)
        packs = plan.kernel == ("packed" if is_row else "inplace")
        panel = np.repeat(np.arange(len(side.size)), np.diff(side.ptr))
        found.append(
            CostedSide(
                side=side,
                stored=stored,
                segment=work.choices.segment[side.inner],
                panel=panel,
                fetch=none if sources[number].resident else size,
                pack=none if not packs else size if is_row else _depths(side) * _column_bytes(plan, side)[1][panel],
            )
        )
    return found[0], found[1]


def _one_phase(plan: Plan, work: Product, needs: _Needs) -> Phases:
    """Everything at once."""
    rows, cols = _operands(plan, work, needs.sources)
    fetched = [int(unique_bytes(side)) for side in (rows, cols)]
    first, second = (np.unique(side.stored) if side.fetch.any() else np.zeros(0, np.int64) for side in (rows, cols))
    blocks = _by_operand(work, np.sort(rows.side.block), np.sort(cols.side.block))
    phase = Phase(first, None, second, blocks, True)
    return Phases(
        sequence=(phase,) if len(rows.stored) else (),
        stationary=1 if work.swapped else 0,
        sources=needs.sources,
        readers=needs.readers,
        held_bytes=fetched[0],
        chunk_bytes=fetched[1],
        buffer_bytes=plan.packed_bytes + plan.worker_bytes * plan.workers,
        partial_bytes=0,
        result_bytes=needs.result_bytes(plan),
        spills=False,
        fetched_bytes=_by_operand(work, *fetched),
        budget=needs.budget,
    )


@dataclass(slots=True)
class _Sizes:
    """The largest of everything in the phases that were cut so far, in bytes."""

    held: int = 0
    """Fetched block of the stationary operand."""
    chunk: int = 0
    """Fetched chunk of the streamed operand."""
    buffer: int = 0
    """What is packed."""
    result: int = 0
    """Result blocks that one block of the stationary operand adds to."""
    fetched: list[int] = field(default_factory=lambda: [0, 0])
    """What was fetched of rows and columns, all in all."""


class _PhaseCutter:
    """A product being cut into phases, with one side of it stationary: rows (0) or columns (1)."""

    def __init__(self, plan: Plan, work: Product, needs: _Needs, side: int, spills: bool) -> None:
        self.plan, self.work, self.needs = plan, work, needs
        self.side, self.spills = side, spills
        # The pieces of a sum are added up in a result of their own before they go to a tensor.
        self.whole_bytes = plan.result_bytes if work.choices.pieces > 1 else needs.result_bytes(plan)
        self.sides = _operands(plan, work, needs.sources)
        self.still, self.moving = self.sides[side], self.sides[1 - side]
        self.buffers = _Buffers(plan, *self.sides)
        self.panel_of_result, self.panel_bytes = result_panels(plan, work, side)
        number = np.arange(work.choices.segments)
        self.piece = piece_of_segment(number, work.choices.segments, work.choices.pieces)

    def _phases(self, sequence: Sequence[Phase], sizes: _Sizes) -> Phases:
        return Phases(
            sequence=tuple(sequence),
            stationary=self.side if not self.work.swapped else 1 - self.side,
            sources=self.needs.sources,
            readers=self.needs.readers,
            held_bytes=sizes.held,
            chunk_bytes=sizes.chunk,
            buffer_bytes=sizes.buffer,
            partial_bytes=self.plan.result_bytes if self.work.choices.pieces > 1 else 0,
            result_bytes=sizes.result if self.spills else self.whole_bytes,
            spills=self.spills,
            fetched_bytes=_by_operand(self.work, *sizes.fetched),
            budget=self.needs.budget,
        )

    def least(self) -> Phases:
        """What the finest phases need at the most: one segment of one panel each; without the phases themselves."""
        sizes = _Sizes(
            held=largest_part(self.still, self.still.fetch),
            chunk=largest_part(self.moving, self.moving.fetch),
            buffer=self.buffers.least(),
            result=int(self.panel_bytes.max(initial=0)),
        )
        none = np.zeros(0, np.int64)
        return self._phases([Phase(None, None, none, (none, none), True)] * 2, sizes)

    def fit(self) -> Phases | None:
        """Phases that keep to the budget; None if there are none."""
        if self.least().peak_bytes > self.needs.budget:
            return None
        making = made_at_once(self.needs.sources, self.needs.readers)
        capacity = self.needs.budget - making - (0 if self.spills else self.whole_bytes) - self.buffers.of_workers
        for _ in range(SHRINKINGS):
            if capacity <= 0:
                break
            if (found := self._cut(capacity)) is not None:
                return found
            capacity //= 2
        return self._cut(FINEST)

    def _cut(self, capacity: int) -> Phases | None:
        """Phases for a capacity; None as soon as they exceed the budget."""
        sequence: list[Phase] = []
        sizes = _Sizes()
        extra = self.panel_bytes if self.spills else np.zeros_like(self.panel_bytes)
        for piece in range(self.work.choices.pieces):
            segments = np.flatnonzero(self.piece == piece)
            for held, fresh in hold_panels(self.still, capacity // 2, segments, extra):
                sequence += self._hold(held, fresh, capacity, sizes)
                if self._phases(sequence[:2], sizes).peak_bytes > self.needs.budget:
                    return None
            if sequence:
                sequence[-1] = replace(sequence[-1], closes=True)
        return self._phases(sequence, sizes)

    def _hold(self, held: Ints, fresh: bool, capacity: int, sizes: _Sizes) -> Iterator[Phase]:
        """The phases in which some entries of the stationary side are held."""
        still, moving = self.still, self.moving
        panels = np.unique(still.panel[held])
        spilled = np.flatnonzero(np.isin(self.panel_of_result, panels)) if self.spills and fresh else None
        kept: Ints | None = np.unique(still.stored[held]) if still.fetch.any() else np.zeros(0, np.int64)
        size = unique_bytes(still, held)
        sizes.result = max(sizes.result, int(self.panel_bytes[panels].sum()))
        for number, chunk in enumerate(stream_chunks(still, moving, held, capacity // 4)):
            own = held[np.isin(still.side.inner[held], moving.side.inner[chunk])]
            pair = (own, chunk) if self.side == 0 else (chunk, own)
            streamed = np.unique(moving.stored[chunk]) if moving.fetch.any() else np.zeros(0, np.int64)
            blocks = [np.sort(s.side.block[entries]) for s, entries in zip(self.sides, pair, strict=True)]
            yield Phase(kept, spilled, streamed, _by_operand(self.work, *blocks), closes=False)
            moved = unique_bytes(moving, chunk)
            sizes.fetched[self.side] += size if number == 0 else 0
            sizes.fetched[1 - self.side] += moved
            sizes.held, sizes.chunk = max(sizes.held, size), max(sizes.chunk, moved)
            sizes.buffer = max(sizes.buffer, self.buffers.of(*pair))
            kept = spilled = None


def _by_operand(work: Product, rows: Any, cols: Any) -> tuple[Any, Any]:
    """What belongs to rows and columns, in the order of the operands."""
    return (cols, rows) if work.swapped else (rows, cols)


def _cut_sum(plan: Plan, work: Sum, needs: _Needs) -> Phases:
    """Phases of a reduction: its sources in order, in chunks of half of what the result leaves."""
    result_bytes = needs.result_bytes(plan)
    operand = plan.operands[0]
    stored = operand.blocks.source[work.source]
    size = operand.pattern.block_sizes[stored] * plan.dtype.itemsize * (not needs.sources[0].resident)
    room = needs.budget - result_bytes - made_at_once(needs.sources, needs.readers)

    def phases(cuts: Ints) -> Phases:
        return _sum_phases(result_bytes, stored, size, cuts, needs)

    whole = phases(np.array([0, len(stored)]))
    if whole.peak_bytes <= needs.budget:
        return whole
    cuts, filled = [0], 0
    for at, each in enumerate(size.tolist()):
        if filled and filled + each > room // 2:
            cuts.append(at)
            filled = 0
        filled += each
    found = phases(np.array([*cuts, len(stored)]))
    if found.peak_bytes <= needs.budget:
        return found
    return min(whole, phases(np.arange(len(stored) + 1)), key=lambda one: one.peak_bytes)


def _sum_phases(result_bytes: int, stored: Ints, size: Ints, cuts: Ints, needs: _Needs) -> Phases:
    """Phases of a reduction for given cuts between its sources."""
    none = np.zeros(0, np.int64)
    ranges = [(int(a), int(b)) for a, b in pairwise(cuts.tolist()) if b > a]
    fetched = []
    for a, b in ranges:
        _, first = np.unique(stored[a:b], return_index=True)
        fetched.append(int(size[a:b][first].sum()))
    sequence = tuple(
        Phase(None, None, none if needs.sources[0].resident else np.unique(stored[a:b]), (np.array([a, b]),), True)
        for a, b in ranges
    )
    return Phases(
        sequence=sequence,
        stationary=-1,
        sources=needs.sources,
        readers=needs.readers,
        held_bytes=0,
        chunk_bytes=max(fetched, default=0),
        buffer_bytes=0,
        partial_bytes=0,
        result_bytes=result_bytes,
        spills=False,
        fetched_bytes=(sum(fetched),),
        budget=needs.budget,
    )


class _Buffers:
    """What the engine packs in one phase, at the most; for devices, what one block takes on its way."""

    def __init__(self, plan: Plan, rows: CostedSide, cols: CostedSide) -> None:
        self.plan, self.rows, self.cols = plan, rows, cols
        self.packs = plan.kernel in ("packed", "inplace")
        # Columns are packed by each worker for itself, or once for all.
        self.copies = plan.workers if plan.kernel == "packed" else 1
        self.depth = _depths(cols.side)
        if self.packs:
            self.strip_bytes, self.panel_bytes = _column_bytes(plan, cols.side)

    @property
    def of_workers(self) -> int:
        """What workers pack columns into where there are many of them."""
        return self.plan.workers * GROUP_BYTES if self.plan.kernel == "packed" else self._staging

    @property
    def _staging(self) -> int:
        return self.plan.packed_bytes if self.plan.kernel == "device" else 0

    def least(self) -> int:
        """For one segment of one panel of either side."""
        if not self.packs:
            return self._staging
        packed = self.depth * self.panel_bytes[self.cols.panel]
        rows = largest_part(self.rows, self.rows.pack) if self.plan.kernel == "packed" else 0
        return rows + self.copies * largest_part(self.cols, packed)

    def of(self, rows: Ints, cols: Ints) -> int:
        """For some entries of both sides."""
        if not self.packs:
            return self._staging
        panels, number = np.unique(self.cols.panel[cols], return_inverse=True)
        depth = np.bincount(number, self.depth[cols]).astype(np.int64)
        everything = int((depth * self.panel_bytes[panels]).sum())
        if self.plan.kernel == "inplace":
            return everything
        largest = int((depth * self.strip_bytes[panels]).max(initial=0))
        packed = int(self.rows.pack[rows].sum())
        # A group takes one more strip as long as it has not reached its size.
        return packed + self.copies * min(everything, GROUP_BYTES + largest)


def _column_bytes(plan: Plan, side: Side) -> tuple[Ints, Ints]:
    """Packed bytes of each panel of columns for one element of k: of its largest strip, and of all."""
    parts = 2 if plan.dtype.kind == "c" else 1
    strips = Strips.of(side, COL_STRIP)
    each = packed_columns(strips, np.ones(len(side.size), np.int64), plan.dtype.itemsize, parts)
    each = each * (plan.dtype.itemsize // parts)
    largest = np.zeros(len(side.size), np.int64)
    np.maximum.at(largest, strips.panel, each)
    return largest, np.bincount(strips.panel, each, len(side.size)).astype(np.int64)


def _depths(side: Side) -> Ints:
    """Elements of k of each entry."""
    end = np.append(side.at[1:], 0)
    last = side.ptr[1:] - 1
    end[last[last >= side.ptr[:-1]]] = side.depth[last >= side.ptr[:-1]]
    return end - side.at
