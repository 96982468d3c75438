"""A product on devices: which blocks each one holds, what streams past them, and what crosses (Herault et al. 2020, 4).

Panels of the *stationary* operand are gathered with the result blocks they give into *holds* of up to half a device's
memory, dealt to the devices in turn; a device takes its next hold when the present one is done.  While a hold is on
the device, *chunks* of the other operand of up to a quarter pass by; the last quarter takes the next chunk while the
present one is multiplied.  So each block of the stationary operand goes to one device once, each result block leaves
one device once, and a block of the streamed operand comes as often as holds need it.

Where the whole other operand fits beside a few small holds, it stays: then nothing comes to a device twice, and the
next holds come while the present one is multiplied.

The products that give one result block are summed in the order of k, whatever the holds and chunks are: neither the
number of devices nor their memory changes a bit of the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tilewise.costs import compulsory_bytes, product_bound_words
from tilewise.errors import MemoryBudgetError
from tilewise.plans.blocks import (
    FINEST,
    SHRINKINGS,
    CostedSide,
    hold_panels,
    largest_part,
    result_panels,
    stream_chunks,
)
from tilewise.plans.plan import Plan
from tilewise.plans.projection import multiplications, needed_bytes, stored_uses
from tilewise.plans.sides import Side
from tilewise.plans.work import Product

Ints = npt.NDArray[np.int64]


STAYING_HOLDS = (6, 3, 2)
"""How many holds are on a device at a time where the other operand stays: the first number for which they fit.

The more there are, the less it matters that one takes longer to come than another takes to be multiplied.
"""

LEAST_ROUNDS = 4
"""Holds that each device is given at the least where the other operand stays, so that the next one comes meanwhile."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that a product is planned for; all are alike."""

    count: int
    """How many there are."""
    capacity: int
    """Bytes of memory of each."""
    queues: int = 2
    """Products that each computes at once."""
    stationary: int | None = None
    """Number of the operand to be held; None leaves it to the planner."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Blocks that pass by, and what is done with them."""

    streamed: Ints
    """Blocks of the streamed operand that come."""
    begin: int
    """First update."""
    end: int
    """One past the last update."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What a device keeps while chunks pass by."""

    device: int
    """Number of the device."""
    held: Ints
    """Blocks of the stationary operand that come."""
    made: Ints
    """Result blocks that are begun; none where a panel goes on that was split along k."""
    done: Ints
    """Result blocks that leave at the end."""
    chunks: tuple[Chunk, ...]
    """What passes by, in order."""
    peak_bytes: int
    """Most bytes on the device at a time."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A product cut into holds and chunks."""

    devices: Devices
    """What it was cut for."""
    stationary: int
    """Number of the operand that is held."""
    at_once: int
    """Holds on a device at a time: one where the other operand passes by in chunks, more where it stays once it came;
    then the next holds come while the present one is multiplied."""
    holds: tuple[Hold, ...]
    """In the order in which each device takes its own."""
    target: Ints
    """Result block of each update."""
    ptr: Ints
    """First product of each update; one more at the end."""
    left: Ints
    """Block of the left operand of each product (a row of its expansion)."""
    right: Ints
    """Block of the right operand of each product."""
    in_blocks: tuple[int, int]
    """Blocks of each operand that come to a device, counted each time."""
    in_bytes: tuple[int, int]
    """Bytes of each operand that come to a device, counted each time."""
    out_bytes: int
    """Bytes of the result that leave the devices."""
    bound_bytes: int
    """Bytes that cross at the least, in any order of the same products."""

    @property
    def stays(self) -> bool:
        """Whether the other operand stays on a device once it came."""
        return self.at_once > 1

    @property
    def peak_bytes(self) -> int:
        """Most bytes on a device at a time."""
        return max((hold.peak_bytes for hold in self.holds), default=0)

    @property
    def moved_bytes(self) -> int:
        """Bytes that come to the devices and leave them."""
        return sum(self.in_bytes) + self.out_bytes

    @property
    def stages(self) -> int:
        """Chunks that pass by, in all holds."""
        return sum(len(hold.chunks) for hold in self.holds)

    @property
    def updates(self) -> int:
        """Result blocks times the chunks that add to them."""
        return len(self.target)


@dataclass(frozen=True, slots=True)
class Products:
    """Every product of two blocks that a plan does, those of one result block together and in the order of k."""

    target: Ints
    """Result block."""
    left: Ints
    """Block of the left operand (a row of its expansion)."""
    right: Ints
    """Block of the right operand."""


def list_products(work: Product) -> Products:
    """The products of a plan for devices, in the order of its cells."""
    cells = work.cells
    counts = cells.end - cells.begin
    first = np.cumsum(counts) - counts
    term = np.arange(int(counts.sum())) + np.repeat(cells.begin - first, counts)
    rows, cols = (work.terms[term, column].astype(np.int64) for column in (0, 1))
    left, right = (cols, rows) if work.swapped else (rows, cols)
    return Products(np.repeat(cells.block, counts), left, right)


def block_bytes(plan: Plan) -> tuple[Ints, Ints, Ints]:
    """Bytes of each block of the left operand, of the right one, and of the result."""
    item = plan.dtype.itemsize
    left, right = (o.pattern.block_sizes[o.blocks.source] * item for o in plan.operands)
    return left, right, plan.result.block_sizes * item


def least_capacity(plan: Plan) -> int:
    """Bytes that a device needs at the least: for two blocks, what they give, and a product of them."""
    assert isinstance(plan.work, Product)
    found, (left, right, result) = list_products(plan.work), block_bytes(plan)
    return int((left[found.left] + right[found.right] + 2 * result[found.target]).max(initial=0))


def bound_bytes(plan: Plan, devices: Devices) -> int:
    """Bytes that cross at the least: every needed block once, and what the capacity forces on each device.

    Each device does its share V/D of the multiplications through its own memory S, so it moves at least
    ``sqrt(27/8) V / (D sqrt(S)) - S`` words (see `tilewise.costs.product_bound_words`).
    """
    compulsory = compulsory_bytes(list(needed_bytes(plan).values()), plan.result_bytes)
    item = plan.dtype.itemsize
    share = multiplications(plan) / devices.count
    words = product_bound_words(share, max(devices.capacity, 1) / item, stored_uses(plan))
    return max(compulsory, int(devices.count * words) * item)


def plan_blocked(plan: Plan, devices: Devices) -> Blocked:
    """Cut a product for devices with the least crossing, or say how much memory they need."""
    if not isinstance(plan.work, Product):
        raise TypeError("Only a product goes to devices.")
    order = (1, 0) if plan.work.swapped else (0, 1)
    sides = (0, 1) if devices.stationary is None else (order[devices.stationary],)
    cutters = [_HoldCutter(plan, plan.work, devices, side) for side in sides]
    if fitting := [found for cutter in cutters if (found := cutter.fit()) is not None]:
        return min(fitting, key=lambda found: found.moved_bytes)
    least = min(cutter.least_bytes for cutter in cutters)
    raise MemoryBudgetError(
        f"{plan.label} cannot be cut into blocks and chunks for devices of {devices.capacity} bytes. At least {least} "
        "are needed. Give that much with capacity=, or use smaller tiles.",
        devices.capacity,
        least,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What one hold does: its updates and chunks."""

    target: Ints
    """Result block of each update."""
    counts: Ints
    """Products of each update."""
    products: Ints
    """The products in order."""
    chunks: tuple[Chunk, ...]
    """What passes by."""


def _no_blocks() -> Ints:
    return np.zeros(0, np.int64)


class _There:
    """What lies on one device where the streamed operand stays, beside the present hold and those before it."""

    def __init__(self, sizes: Sequence[Ints], stationary: int, at_once: int) -> None:
        self._still, self._moving, self._results = sizes[stationary], sizes[1 - stationary], sizes[2]
        self._present = np.zeros(len(self._moving), np.bool_)
        self._leaving: deque[int] = deque([0] * at_once)
        self._bytes = 0

    def beside(self, hold: Hold, products: int) -> Hold:
        """The hold with only what is not there yet to come, and with what lies there besides in its peak."""
        (chunk,) = hold.chunks  # what stays comes in one
        new = chunk.streamed[~self._present[chunk.streamed]]
        self._present[new] = True
        held = int(self._still[hold.held].sum())
        self._bytes += int(self._moving[new].sum() + self._results[hold.made].sum()) + held - self._leaving.popleft()
        self._leaving.append(held + int(self._results[hold.done].sum()))
        return replace(hold, chunks=(replace(chunk, streamed=new),), peak_bytes=self._bytes + products)


class _HoldCutter:
    """A product being cut, with one side of it stationary."""

    def __init__(self, plan: Plan, work: Product, devices: Devices, side: int) -> None:
        self.devices = devices
        self.bound_bytes = bound_bytes(plan, devices)
        self.number = 1 - side if work.swapped else side
        self.sizes = block_bytes(plan)
        panel_of_result, self.panel_bytes = result_panels(plan, work, side)
        self.results = np.argsort(panel_of_result, kind="stable")
        self.result_ptr = np.searchsorted(panel_of_result[self.results], np.arange(len(self.panel_bytes) + 1))
        found = list_products(work)
        self.target = found.target
        self.held, self.streamed = (found.left, found.right) if self.number == 0 else (found.right, found.left)
        sides = (work.rows, work.cols)
        self.still = _costed(sides[side], self.sizes[self.number], self.held)
        self.moving = _costed(sides[1 - side], self.sizes[1 - self.number], self.streamed)

    @property
    def least_bytes(self) -> int:
        """What the finest holds and chunks need at the most: one block each."""
        held, chunk = (largest_part(side, side.fetch) for side in (self.still, self.moving))
        return held + 2 * chunk + int(self.panel_bytes.max(initial=0)) + self._product_bytes

    @property
    def _product_bytes(self) -> int:
        """What products take besides: one under way in each queue."""
        return self.devices.queues * int(self.sizes[2].max(initial=0))

    def fit(self) -> Blocked | None:
        """Holds and chunks that fit; None if there are none."""
        if self.least_bytes > self.devices.capacity:
            return None
        room = self.devices.capacity - self._product_bytes
        if (found := self._stay(room - int(self.moving.fetch.sum()))) is not None:
            return found
        for _ in range(SHRINKINGS):
            if (found := self._cut(room // 2, room // 4)) is not None:
                return found
            room //= 2
        return self._cut(FINEST, FINEST)

    def _stay(self, room: int) -> Blocked | None:
        """Holds beside the whole other operand, several at a time in so many bytes; None if they do not fit."""
        if room <= 0:
            return None
        found = (self._cut(room // at_once, None, at_once) for at_once in STAYING_HOLDS)
        return next((cut for cut in found if cut is not None), None)

    def _cut(self, hold_bytes: int, chunk_bytes: int | None, at_once: int = 1) -> Blocked | None:
        """Holds and chunks of so many bytes, without a limit for what stays; None as soon as one does not fit."""
        gathered = list(self._gather(hold_bytes, LEAST_ROUNDS if at_once > 1 else 1))
        hold_of = np.full(len(self.sizes[self.number]), -1, np.int64)
        for number, (entries, _) in enumerate(gathered):
            hold_of[self.still.side.block[entries]] = number
        own = hold_of[self.held]
        order = np.argsort(own, kind="stable")
        ends = np.searchsorted(own[order], np.arange(len(gathered) + 1))
        holds: list[Hold] = []
        parts: list[_Part] = []
        device, updates = -1, 0
        there = [_There(self.sizes, self.number, at_once) for _ in range(self.devices.count)]
        for number, (entries, fresh) in enumerate(gathered):
            device += fresh
            goes_on = number + 1 < len(gathered) and not gathered[number + 1][1]
            parts.append(self._part(entries, order[ends[number] : ends[number + 1]], updates, chunk_bytes))
            updates += len(parts[-1].target)
            holds.append(self._hold(device % self.devices.count, entries, fresh, goes_on, parts[-1].chunks))
            if at_once > 1:
                holds[-1] = there[holds[-1].device].beside(holds[-1], self._product_bytes)
            if holds[-1].peak_bytes > self.devices.capacity:
                return None
        return self._finish(tuple(holds), parts, at_once)

    def _panel_totals(self) -> Ints:
        """Bytes of each panel of the stationary side with its results."""
        own = np.bincount(self.still.panel, self.still.fetch, len(self.panel_bytes)).astype(np.int64)
        return np.asarray(own + self.panel_bytes)

    def _gather(self, most: int, least_rounds: int) -> Iterator[tuple[Ints, bool]]:
        """Entries of the stationary side that are held together, as even as can be over the devices."""
        totals = self._panel_totals()
        rounds = max(-(-int(totals.sum()) // (max(most, 1) * self.devices.count)), least_rounds)
        even = int(totals.sum()) // (rounds * self.devices.count) + int(totals.max(initial=0))
        return hold_panels(self.still, min(most, even), np.unique(self.still.segment), self.panel_bytes)

    def _chunks(self, entries: Ints, mine: Ints, chunk_bytes: int | None) -> tuple[Ints, int]:
        """The chunk of each of some products, and how many there are."""
        if chunk_bytes is None:
            return np.zeros_like(mine), 1
        chunk_of, count = np.full(len(self.sizes[1 - self.number]), -1, np.int64), 0
        for passing in stream_chunks(self.still, self.moving, entries, chunk_bytes):
            chunk_of[self.moving.side.block[passing]] = count
            count += 1
        return chunk_of[self.streamed[mine]], count

    def _part(self, entries: Ints, mine: Ints, first: int, chunk_bytes: int | None) -> _Part:
        """What is done while some entries are held: `mine` are its products, `first` is the number of its updates."""
        chunk, count = self._chunks(entries, mine, chunk_bytes)
        order = np.lexsort((self.target[mine], chunk))  # stable: the products of a result block stay in the order of k
        mine, chunk = mine[order], chunk[order]
        target = self.target[mine]
        starts = np.flatnonzero(np.diff(chunk, prepend=-1) | np.diff(target, prepend=-1))
        cuts = np.searchsorted(chunk[starts], np.arange(count + 1))
        chunks = tuple(
            Chunk(np.unique(self.streamed[mine[chunk == number]]), first + int(begin), first + int(end))
            for number, (begin, end) in enumerate(pairwise(cuts))
            if end > begin
        )
        return _Part(target[starts], np.diff(starts, append=len(mine)), mine, chunks)

    def _hold(self, device: int, entries: Ints, fresh: bool, goes_on: bool, chunks: tuple[Chunk, ...]) -> Hold:
        panels = np.unique(self.still.panel[entries])
        own = [self.results[self.result_ptr[panel] : self.result_ptr[panel + 1]] for panel in panels.tolist()]
        results = np.sort(np.concatenate(own))
        held = np.sort(self.still.side.block[entries])
        passing = [int(self.sizes[1 - self.number][chunk.streamed].sum()) for chunk in chunks]
        both = [present + following for present, following in pairwise([*passing, 0])]
        kept = int(self.sizes[self.number][held].sum() + self.sizes[2][results].sum())
        products = self.devices.queues * int(self.sizes[2][results].max(initial=0))
        return Hold(
            device=device,
            held=held,
            made=results if fresh else _no_blocks(),
            done=_no_blocks() if goes_on else results,
            chunks=chunks,
            peak_bytes=kept + max(both, default=0) + products,
        )

    def _finish(self, holds: tuple[Hold, ...], parts: Sequence[_Part], at_once: int) -> Blocked:
        order, target, counts = (
            np.concatenate([_no_blocks(), *(getattr(part, name) for part in parts)])
            for name in ("products", "target", "counts")
        )
        held, streamed = self.held[order], self.streamed[order]
        came = [_no_blocks(), _no_blocks()]
        came[self.number] = np.concatenate([_no_blocks(), *(hold.held for hold in holds)])
        came[1 - self.number] = np.concatenate(
            [_no_blocks(), *(chunk.streamed for hold in holds for chunk in hold.chunks)]
        )
        return Blocked(
            devices=self.devices,
            stationary=self.number,
            at_once=at_once,
            holds=holds,
            target=target,
            ptr=np.concatenate([[0], np.cumsum(counts)]),
            left=held if self.number == 0 else streamed,
            right=streamed if self.number == 0 else held,
            in_blocks=(len(came[0]), len(came[1])),
            in_bytes=(int(self.sizes[0][came[0]].sum()), int(self.sizes[1][came[1]].sum())),
            out_bytes=int(sum(self.sizes[2][hold.done].sum() for hold in holds)),
            bound_bytes=self.bound_bytes,
        )


def _costed(side: Side, sizes: Ints, needed: Ints) -> CostedSide:
    """The entries of a side that some product needs, each with its own bytes: a device knows no symmetry.

    A device adds product by product, so that every k tile may be a segment of its own.
    """
    wanted = np.zeros(len(sizes), np.bool_)
    wanted[needed] = True
    kept = np.flatnonzero(wanted[side.block])
    panel = np.repeat(np.arange(len(side.size)), np.diff(side.ptr))[kept]
    own = replace(
        side,
        ptr=np.concatenate([[0], np.cumsum(np.bincount(panel, minlength=len(side.size)))]),
        block=side.block[kept],
        inner=side.inner[kept],
        at=side.at[kept],
        norms=side.norms[kept],
    )
    fetch = sizes[own.block]
    return CostedSide(own, np.arange(len(kept)), own.inner, panel, fetch=fetch, pack=np.zeros_like(fetch))
