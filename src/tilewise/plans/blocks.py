"""What fits in a level: panels held together, and chunks of the other operand that pass by.

A level is a memory with a capacity: that of this computer, filled from files and generators, or that of a device,
filled from this computer.  The same two rules (Herault et al. 2020, 3.2.2 and 3.2.3) cut a product for both.  Nothing
is cut finer than one segment of k of one panel, so that every part has the bits of the whole product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.plans.plan import Plan
from tilewise.plans.sides import Side
from tilewise.plans.work import Product

Ints = npt.NDArray[np.int64]

FINEST = -1
"""The capacity for which everything is cut as finely as can be, also what costs nothing to hold."""

SHRINKINGS = 12
"""How often the capacity that a product is cut for is halved before it is cut as finely as can be."""


@dataclass(frozen=True, slots=True)
class CostedSide:
    """One side of a product with what its entries cost."""

    side: Side
    """Its entries, ordered by panel."""
    stored: Ints
    """Stored block behind each entry."""
    segment: Ints
    """K segment of each entry."""
    panel: Ints
    """Panel of each entry."""
    fetch: Ints
    """Bytes that each entry adds when it is fetched."""
    pack: Ints
    """Bytes that each entry adds when it is packed for the whole phase."""


def largest_part(operand: CostedSide, bytes_: Ints) -> int:
    """The most bytes that one segment of one panel has."""
    if not len(operand.panel):
        return 0
    key = operand.panel * (int(operand.segment.max()) + 1) + operand.segment
    _, number = np.unique(key, return_inverse=True)
    return int(np.bincount(number, bytes_).max())


def unique_bytes(operand: CostedSide, entries: Ints | slice = slice(None)) -> int:
    """Bytes of the stored blocks behind entries, each counted once."""
    stored, fetch = operand.stored[entries], operand.fetch[entries]
    _, first = np.unique(stored, return_index=True)
    return int(fetch[first].sum())


def result_panels(plan: Plan, work: Product, side: int) -> tuple[Ints, Ints]:
    """The panel of the stationary side that each result block belongs to, and the result bytes of each panel."""
    strips, strip = ((work.row_strips, work.cells.row), (work.col_strips, work.cells.col))[side]
    panel = np.zeros(plan.result.nnz_blocks, np.int64)
    panel[work.cells.block] = strips.panel[strip]
    sizes = np.zeros(len((work.rows, work.cols)[side].size), np.int64)
    np.add.at(sizes, panel, plan.result.block_sizes * plan.dtype.itemsize)
    return panel, sizes


def hold_panels(still: CostedSide, most: int, segments: Ints, extra: Ints) -> Iterator[tuple[Ints, bool]]:
    """Entries of the stationary operand held together: panels by worst fit, too large ones split along k.

    `extra` is what each panel costs besides its entries.  The second value is false where a panel goes on that the
    block before had another part of.
    """
    entries = np.flatnonzero(np.isin(still.segment, segments))
    cost = still.fetch + still.pack
    if not len(entries):
        return
    panels, first = np.unique(still.panel[entries], return_index=True)
    ranges = np.split(entries, first[1:])
    sizes = [int(cost[own].sum() + extra[panel]) for own, panel in zip(ranges, panels.tolist(), strict=True)]
    open_blocks: list[list[Ints]] = []
    room: list[int] = []
    for at in sorted(range(len(panels)), key=lambda i: -sizes[i]):
        if sizes[at] > most:
            parts = _split(ranges[at], still.segment, cost, most - int(extra[panels[at]]))
            yield from ((part, number == 0) for number, part in enumerate(parts))
            continue
        emptiest = max(range(len(room)), key=lambda i: room[i]) if room else -1
        if emptiest < 0 or room[emptiest] < sizes[at]:
            open_blocks.append([])
            room.append(most)
            emptiest = len(room) - 1
        open_blocks[emptiest].append(ranges[at])
        room[emptiest] -= sizes[at]
    for gathered in open_blocks:
        yield np.sort(np.concatenate(gathered)), True


def _split(entries: Ints, segment: Ints, cost: Ints, most: int) -> Iterator[Ints]:
    """Ranges of whole segments of one panel, each as large as fits."""
    _, first = np.unique(segment[entries], return_index=True)
    parts = np.split(entries, first[1:])
    gathered: list[Ints] = []
    filled = 0
    for part in parts:
        size = int(cost[part].sum())
        if gathered and filled + size > most:
            yield np.concatenate(gathered)
            gathered, filled = [], 0
        gathered.append(part)
        filled += size
    if gathered:
        yield np.concatenate(gathered)


def stream_chunks(still: CostedSide, moving: CostedSide, held: Ints, most: int) -> Iterator[Ints]:
    """Entries of the streamed operand that pass while a block is held: some panels, segment by segment.

    As many panels go together as fit with one segment of each; a chunk takes as many segments as fit.
    """
    needed = np.zeros(int(max(still.side.inner.max(initial=0), moving.side.inner.max(initial=0))) + 1, np.bool_)
    needed[still.side.inner[held]] = True
    entries = np.flatnonzero(needed[moving.side.inner])
    if not len(entries):
        return
    cost = moving.fetch + moving.pack
    _, first = np.unique(moving.panel[entries], return_index=True)
    for group in _panel_groups(np.split(entries, first[1:]), moving.segment, cost, most):
        order = group[np.argsort(moving.segment[group], kind="stable")]
        yield from (np.sort(part) for part in _split(order, moving.segment, cost, most))


def _panel_groups(panels: Sequence[Ints], segment: Ints, cost: Ints, most: int) -> Iterator[Ints]:
    """Panels that stream together: one segment of all of them fits."""
    segments = int(segment.max(initial=0)) + 1
    gathered: list[Ints] = []
    load = np.zeros(segments)
    for own in panels:
        share = np.bincount(segment[own], cost[own], segments)
        if gathered and (load + share).max() > most:
            yield np.concatenate(gathered)
            gathered, load = [], np.zeros(segments)
        gathered.append(own)
        load = load + share
    if gathered:
        yield np.concatenate(gathered)
