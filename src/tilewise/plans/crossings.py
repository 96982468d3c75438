"""Grids for the actual pattern of a product: what crosses on each, who does what, and the fastest.

A grid has one axis for the row panels of a product, one for its column panels and one for k.  Panels are dealt to the
groups of their axis, and the rank at a place of the grid does the block products of its three groups.

```
            column groups                     a block of the row operand  is needed along a row of places,
           0      1      2                    a block of the column operand  down a column of places,
 row 0  [  .  |   .  |   .  ]  k group 0      a result block  is passed through the k groups, from front to back
 grp 1  [  .  |   .  |   .  ]
```

For dense operands a fibre of `g` nodes sends everything ``g - 1`` times (Irmler et al. 2023, 2).  For sparse ones it is
less, and depends on which panels are together:

* a block of the row operand is sent to every group of columns that has a block with its k tile such that screening
  keeps their product, except to the first of these, which is its home; likewise a block of the column operand;
* a result block goes from each k group that adds to it to the next one that does, and ends at the last.

**Exact**, counted on the pattern: bytes between nodes (a block is sent once to a node and shared there), bytes between
ranks, flops and received bytes of each rank, imbalance.  A block that the symmetry of an operand makes of a stored one
counts like a stored one.  **Estimated**: seconds, which take the heaviest rank's flops and the *mean* bytes of nodes
and ranks at fixed rates, nothing overlapped.

Panels are dealt to the nodes along an axis first, then to the ranks of each node, so what crosses along an axis depends
on the groups of that axis only.  This is what makes the joint search over grids and node mappings cheap, which Irmler
et al. left open: one count for each way to deal an axis, and a sum for each grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.plans.cells import piece_of_segment
from tilewise.plans.compile import compiled
from tilewise.plans.grids import (
    Grid,
    Rates,
    check_nodes,
    deal_axis,
    factorisations,
    node_shapes,
    over_mean,
    shape_text,
    total_by,
)
from tilewise.plans.joins import product_norm
from tilewise.plans.plan import Plan
from tilewise.plans.sides import Side
from tilewise.plans.work import Product

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROWS, COLUMNS, K = range(3)
"""The axes of a grid."""

MOST_COUNTED = 2048
"""Grids whose flops are counted rank by rank in one search."""


class Blocks(NamedTuple):
    """The blocks of one operand ordered by k tile."""

    ptr: Any
    """First block of each k tile; one more at the end."""
    panel: Any
    """Panel of each block."""
    norms: Any
    """Norm of each block."""
    size: Any
    """Bytes of each block."""
    tile_bytes: Any
    """Bytes of all blocks of each k tile."""


class Meetings(NamedTuple):
    """Triples of row panel, column panel and part of k with at least one product, by row panel and part."""

    row: Any
    """Row panel."""
    col: Any
    """Column panel."""
    part: Any
    """Part of k; see `Crossings.part_of_segment`."""
    flops: Any
    """Floating-point operations."""
    result_bytes: Any
    """Bytes of the result block."""


@dataclass(frozen=True, slots=True, eq=False)
class Dealing:
    """One axis dealt to groups."""

    group: Ints
    """Group of each panel or part of k; the ranks of one node are neighbours."""
    contiguous: bool
    """Whether neighbours are together; otherwise the largest are dealt first, forward and back."""
    rank_bytes: int
    """Bytes that cross between groups."""
    node_bytes: int
    """Bytes that cross between the groups of different nodes."""
    imbalance: float
    """The heaviest group's flops over the mean."""


class Candidate(NamedTuple):
    """A grid that may turn out the fastest."""

    bound: float
    """Seconds that it takes at the least."""
    number: int
    """Its place in the order in which grids are listed: settles ties."""
    send: float
    """Seconds to receive the mean node's and the mean rank's bytes."""
    grid: Grid
    """Ranks and nodes along rows, columns and k."""
    way: tuple[Dealing, ...]
    """How each axis is dealt."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A grid, who is where on it, and what crosses."""

    grid: Grid
    """Ranks and nodes along rows, columns and k."""
    row_group: Ints
    """Place along the first axis of each row panel."""
    col_group: Ints
    """Place along the second axis of each column panel."""
    segment_group: Ints
    """Place along the third axis of each k segment."""
    contiguous: tuple[bool, bool]
    """Whether neighbouring row panels, and column panels, are together."""
    node_bytes: int
    """Bytes that cross between nodes."""
    rank_bytes: int
    """Bytes that cross between ranks, on one node or not."""
    imbalance: float
    """The heaviest rank's flops over the mean."""
    seconds: float
    """Estimated time."""

    def ranks_of(self, row: Ints, col: Ints, segment: Ints) -> Ints:
        """The rank that does the products of row panels with column panels in k segments, given one by one."""
        places = self.row_group[row], self.col_group[col], self.segment_group[segment]
        return np.asarray(self.grid.ranks()[places])

    def __repr__(self) -> str:
        return (
            f"Choice({shape_text(self.grid.shape)}, nodes of {shape_text(self.grid.inside)}, "
            f"{self.node_bytes:.3g} bytes between nodes, imbalance {self.imbalance:.3f}, {self.seconds:.3g} s)"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """What a search over grids found."""

    choices: tuple[Choice, ...]
    """Grids whose flops were counted rank by rank, the fastest first."""
    considered: int
    """Grids, node mappings and dealings that were looked at."""
    bound_seconds: float
    """None of those that were not counted is faster than this; infinite if all were counted."""

    @property
    def best(self) -> Choice:
        """The fastest."""
        return self.choices[0]

    @property
    def is_proven(self) -> bool:
        """Whether no grid, counted or not, is faster by the same estimate."""
        return self.best.seconds <= self.bound_seconds


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """What each rank does on a grid, by rank."""

    flops: Floats
    """Floating-point operations."""
    received_bytes: Ints
    """Bytes of operand blocks and partial results that come from other ranks."""

    @property
    def imbalance(self) -> float:
        """The heaviest rank's flops over the mean."""
        return over_mean(self.flops)


class Crossings:
    """The counts that all grids of one product are weighed with.

    Parameters
    ----------
    plan : Plan
        The product.

    Examples
    --------
    >>> import tilewise as tw
    >>> from tilewise.plans.grids import Rates
    >>> i = tw.Space.uniform(64, tile=8, name="i")
    >>> plan = tw.plan("ij,jk->ik", tw.Pattern.dense((i, i)), tw.Pattern.dense((i, i)))
    >>> found = Crossings(plan).search(16, ranks_per_node=4, rates=Rates(flops=1e9, between=1e9, inside=1e10))
    >>> found.best.grid, found.best.node_bytes, found.best.imbalance, found.is_proven
    (Grid(shape=(4, 4, 1), inside=(2, 2, 1)), 65536, 1.0, True)
    """

    def __init__(self, plan: Plan) -> None:
        if not isinstance(plan.work, Product):
            raise InputError(
                f"{plan.label} has no products to share. Expected a contraction of two operands. Plan one of these."
            )
        self.work = plan.work
        self.itemsize = plan.dtype.itemsize
        self.factor = 8 if plan.dtype.kind == "c" else 2
        self._lengths = _tile_lengths(plan, plan.work)
        self._dealt: dict[tuple[int, int, int], list[Dealing]] = {}
        self._crossing: dict[tuple[int, bytes], int] = {}

    @cached_property
    def part_of_segment(self) -> Ints:
        """The part of k of each segment: itself, or its piece where sums are added up in pieces.

        Groups of k are made of whole parts, so that one partial result is all that a group has to hand on and sums
        keep their bits.
        """
        choices = self.work.choices
        number = np.arange(choices.segments)
        return number if choices.pieces == 1 else piece_of_segment(number, choices.segments, choices.pieces)

    @cached_property
    def blocks(self) -> tuple[Blocks, Blocks]:
        """The blocks of the row operand and of the column operand, by k tile."""
        return self._blocks(self.work.rows), self._blocks(self.work.cols)

    def _blocks(self, side: Side) -> Blocks:
        entries = side.by_inner(len(self._lengths))
        tile = np.repeat(np.arange(len(self._lengths)), np.diff(entries.ptr))
        size = (side.size * side.batch)[entries.other] * self._lengths[tile] * self.itemsize
        whole = np.concatenate([[0], np.cumsum(size)])
        return Blocks(entries.ptr, entries.other, entries.norms, size, np.diff(whole[entries.ptr]))

    @cached_property
    def meetings(self) -> Meetings:
        """All triples of panels and parts of k with work to do."""
        work, rows, cols = self.work, self.work.rows, self.work.cols
        room = np.empty((4, work.products), np.int64)
        part_of_tile, by_inner = self.part_of_segment[work.choices.segment], cols.by_inner(len(self._lengths))
        drop, panels = work.choices.drop, len(cols.size)
        found = _meet(rows.by_panel(), by_inner, self._lengths, part_of_tile, panels, drop, room)
        row, col, part, depth = room[:, :found].copy()
        elements = (rows.size * rows.batch)[row] * cols.size[col]
        return Meetings(row, col, part, (self.factor * elements * depth).astype(np.float64), elements * self.itemsize)

    @cached_property
    def weights(self) -> tuple[Floats, Floats, Floats]:
        """Flops of each row panel, of each column panel and of each part of k."""
        met, parts = self.meetings, int(self.part_of_segment.max(initial=-1)) + 1
        return (
            total_by(met.row, met.flops, len(self.work.rows.size)),
            total_by(met.col, met.flops, len(self.work.cols.size)),
            total_by(met.part, met.flops, parts),
        )

    def crossing_bytes(self, axis: int, group: Ints) -> int:
        """Bytes that go to other groups along an axis, exactly.

        Parameters
        ----------
        axis : int
            0 for row panels, 1 for column panels, 2 for parts of k.
        group : int64 array
            Group of each panel or part; groups of k must ascend.
        """
        key = axis, group.tobytes()
        if key not in self._crossing:
            self._crossing[key] = self._count_crossing(axis, group)
        return self._crossing[key]

    def _count_crossing(self, axis: int, group: Ints) -> int:
        groups = int(group.max(initial=-1)) + 1
        if groups < 2:
            return 0
        if axis == K:
            return self._passed_bytes(group, groups)
        sent, needed, drop = self.blocks[1 - axis], self.blocks[axis], self.work.choices.drop
        if drop < 0:
            return int(_count_copies(sent, needed, group, groups))
        return int(_count_kept_copies(sent, needed, group, groups, drop))

    def _passed_bytes(self, group: Ints, groups: int) -> int:
        here = [np.zeros(size, np.int64) for size in (len(self.work.rows.size), len(self.work.cols.size), groups, 1)]
        _pass_on(self.meetings, here[0], here[1], group, here[2], here[3])
        return int(here[3][0])

    def dealings(self, axis: int, nodes: int, inside: int) -> list[Dealing]:
        """The ways to deal an axis to nodes and their ranks.

        Panels stay with their neighbours, or go by weight; parts of k are summed in order and stay with theirs.
        """
        key = axis, nodes, inside
        if key not in self._dealt:
            ways = (True,) if axis == K or nodes * inside == 1 else (True, False)
            self._dealt[key] = [self._deal(axis, nodes, inside, way) for way in ways]
        return self._dealt[key]

    def _deal(self, axis: int, nodes: int, inside: int, contiguous: bool) -> Dealing:
        weight = self.weights[axis]
        group = deal_axis(weight, nodes, inside, contiguous)
        return Dealing(
            group,
            contiguous,
            self.crossing_bytes(axis, group),
            self.crossing_bytes(axis, group // inside),
            over_mean(total_by(group, weight, nodes * inside)),
        )

    def search(self, ranks: int, ranks_per_node: int, rates: Rates, most: int = MOST_COUNTED) -> Search:
        """Weigh all grids with all node mappings and dealings.

        Parameters
        ----------
        ranks, ranks_per_node : int
            How many ranks there are, and how many of them share a node; nodes are full.
        rates : Rates
            Rates of a rank and a node.
        most : int
            Grids to count at the most.
        """
        check_nodes(ranks, ranks_per_node)
        return self.weigh(self.grids(ranks, ranks_per_node), rates, most)

    def weigh(self, grids: Iterable[Grid], rates: Rates, most: int = MOST_COUNTED) -> Search:
        """Weigh some grids of rows, columns and k with all dealings.

        The heaviest group of an axis, or the heaviest pair of panels in one part of k, bounds the time of a grid from
        below.  Grids are counted rank by rank in the order of this bound, until none of the rest can be faster or
        `most` were counted.
        """
        waiting = sorted(self._candidates(grids, rates))
        counted: list[Choice] = []
        fastest = math.inf
        for candidate in waiting[:most]:
            if candidate.bound >= fastest:
                break
            counted.append(self._count(candidate, rates))
            fastest = min(fastest, counted[-1].seconds)
        rest = waiting[len(counted) :]
        counted.sort(key=lambda choice: choice.seconds)
        return Search(tuple(counted), len(waiting), rest[0].bound if rest else math.inf)

    def _candidates(self, grids: Iterable[Grid], rates: Rates) -> Iterator[Candidate]:
        total, heaviest = self.meetings.flops.sum(), self.meetings.flops.max(initial=0.0)
        number = count()
        for grid in grids:
            axes = zip((ROWS, COLUMNS, K), grid.nodes, grid.inside, strict=True)
            for way in product(*(self.dealings(*axis) for axis in axes)):
                send = _send_seconds(grid, way, rates)
                most = max(total / grid.size * max(each.imbalance for each in way), heaviest)
                yield Candidate(float(most) / rates.flops + send, next(number), send, grid, way)

    def grids(self, ranks: int, ranks_per_node: int) -> Iterator[Grid]:
        """All grids, with all node mappings, that need not leave a group idle; all grids if there is none such."""
        limits = [max(int(np.count_nonzero(weight)), 1) for weight in self.weights]
        shapes = list(factorisations(ranks, 3))
        busy = [shape for shape in shapes if all(p <= limit for p, limit in zip(shape, limits, strict=True))]
        for shape in busy or shapes:
            for inside in node_shapes(shape, ranks_per_node):
                yield Grid(shape, inside)

    def _count(self, candidate: Candidate, rates: Rates) -> Choice:
        """Count the flops of each rank."""
        grid, way = candidate.grid, candidate.way
        rows, columns, k = way
        flops = self._place_flops(grid, rows.group, columns.group, k.group)
        return Choice(
            grid=grid,
            row_group=rows.group,
            col_group=columns.group,
            segment_group=k.group[self.part_of_segment],
            contiguous=(rows.contiguous, columns.contiguous),
            node_bytes=sum(each.node_bytes for each in way),
            rank_bytes=sum(each.rank_bytes for each in way),
            imbalance=over_mean(flops),
            seconds=float(flops.max()) / rates.flops + candidate.send,
        )

    def _place_flops(self, grid: Grid, rows: Ints, columns: Ints, parts: Ints) -> Floats:
        """Flops at each place of a grid, row by row."""
        _, q, r = grid.shape
        return np.asarray(_sum_flops(self.meetings, rows * (q * r), columns * r, parts, grid.size))

    def loads(self, choice: Choice) -> Loads:
        """What each rank does and receives on a grid, exactly."""
        grid, groups = choice.grid, (choice.row_group, choice.col_group)
        parts = choice.segment_group[np.unique(self.part_of_segment, return_index=True)[1]]
        flops = self._place_flops(grid, *groups, parts)
        received = np.zeros(grid.size, np.int64)
        strides = grid.shape[1] * grid.shape[2], grid.shape[2]
        places = groups[0] * strides[0], groups[1] * strides[1]
        tile_place = choice.segment_group[self.work.choices.segment]
        for axis, own in ((ROWS, COLUMNS), (COLUMNS, ROWS)):
            steps = np.arange(grid.shape[axis]) * strides[axis]
            drop = self.work.choices.drop
            _copy_on(self.blocks[own], self.blocks[axis], places[own], groups[axis], steps, tile_place, drop, received)
        _pass_on(self.meetings, *places, parts, np.arange(grid.shape[K]), received)
        order = grid.ranks().ravel().argsort()
        return Loads(flops[order], received[order])


def search_grids(plan: Plan, ranks: int, ranks_per_node: int, rates: Rates) -> list[Choice]:
    """Grids for a product, the fastest first; `Crossings` keeps the counts for several numbers of ranks.

    Parameters
    ----------
    plan : Plan
        The product.
    ranks, ranks_per_node : int
        How many ranks there are, and how many of them share a node; nodes are full.
    rates : Rates
        Rates of a rank and a node.
    """
    return list(Crossings(plan).search(ranks, ranks_per_node, rates).choices)


def _send_seconds(grid: Grid, way: tuple[Dealing, ...], rates: Rates) -> float:
    """Time to receive the mean node's and the mean rank's bytes."""
    between = sum(each.node_bytes for each in way)
    inside = sum(each.rank_bytes for each in way) - between
    return between / (math.prod(grid.nodes) * rates.between) + inside / (grid.size * rates.inside)


def _tile_lengths(plan: Plan, work: Product) -> Ints:
    """Elements of each k tile, without those of the batch."""
    names = work.contraction.batch + work.contraction.k
    spaces = [plan.operands[0].pattern.spaces[work.contraction.left.index(name)] for name in names]
    return work.choices.tiles.sizes(spaces, range(len(work.contraction.batch), len(names)))


@compiled
def _meet(rows: Any, cols: Any, length: Any, part: Any, panels: int, drop: float, room: Any) -> int:
    """Write row panel, column panel, part and depth of all triples with a product; returns their number."""
    row_of, col_of, part_of, depth_of = room
    place = np.full(panels, -1, np.int64)
    count = 0
    for row in range(len(rows.ptr) - 1):
        first, last = count, -1
        for i in range(rows.ptr[row], rows.ptr[row + 1]):
            k = rows.other[i]
            if part[k] != last:
                first, last = count, part[k]
            for j in range(cols.ptr[k], cols.ptr[k + 1]):
                if drop >= 0 and product_norm(rows.norms[i], cols.norms[j]) <= drop:
                    continue
                col = cols.other[j]
                if place[col] < first:
                    place[col] = count
                    row_of[count], col_of[count], part_of[count], depth_of[count] = row, col, last, 0
                    count += 1
                depth_of[place[col]] += length[k]
    return count


@compiled
def _groups_of_tile(needed: Any, k: int, group: Any, best: Any, touched: Any) -> int:
    """Note the groups with a block of a k tile and their largest norm; returns how many they are."""
    found = 0
    for j in range(needed.ptr[k], needed.ptr[k + 1]):
        g = group[needed.panel[j]]
        if best[g] < 0.0:
            touched[found] = g
            found += 1
        best[g] = max(best[g], needed.norms[j])
    return found


@compiled
def _count_copies(sent: Any, needed: Any, group: Any, groups: int) -> int:
    """Bytes of one operand's blocks that go to groups of the other's panels, except to the first of each block."""
    last = np.full(groups, -1, np.int64)
    total = 0
    for k in range(len(needed.ptr) - 1):
        found = 0
        for j in range(needed.ptr[k], needed.ptr[k + 1]):
            g = group[needed.panel[j]]
            found += last[g] != k
            last[g] = k
        total += max(found - 1, 0) * sent.tile_bytes[k]
    return total


@compiled
def _count_kept_copies(sent: Any, needed: Any, group: Any, groups: int, drop: float) -> int:
    """The same where products whose norm is not above `drop` are left out.

    A group needs a block if it does so for the largest norm it has.
    """
    best, touched = np.full(groups, -1.0), np.empty(groups, np.int64)
    total = 0
    for k in range(len(needed.ptr) - 1):
        found = _groups_of_tile(needed, k, group, best, touched)
        for i in range(sent.ptr[k], sent.ptr[k + 1]):
            copies = 0
            for t in range(found):
                copies += product_norm(sent.norms[i], best[touched[t]]) > drop
            total += max(copies - 1, 0) * sent.size[i]
        for t in range(found):
            best[touched[t]] = -1.0
    return total


@compiled
def _copy_on(
    sent: Any, needed: Any, own_place: Any, group: Any, group_place: Any, tile_place: Any, drop: float, received: Any
) -> None:
    """Add to each place the copies it receives: those that `_count_kept_copies` counts."""
    groups = len(group_place)
    best, touched = np.full(groups, -1.0), np.empty(groups, np.int64)
    for k in range(len(needed.ptr) - 1):
        found = _groups_of_tile(needed, k, group, best, touched)
        for i in range(sent.ptr[k], sent.ptr[k + 1]):
            place, home = own_place[sent.panel[i]] + tile_place[k], groups
            for t in range(found):
                if product_norm(sent.norms[i], best[touched[t]]) > drop:
                    received[place + group_place[touched[t]]] += sent.size[i]
                    home = min(home, touched[t])
            if home < groups:
                received[place + group_place[home]] -= sent.size[i]
        for t in range(found):
            best[touched[t]] = -1.0


@compiled
def _pass_on(met: Any, row_place: Any, col_place: Any, group: Any, group_place: Any, received: Any) -> None:
    """Add to each place the partial results it receives: those to which an earlier group of k added before it does."""
    row_of, group_of = np.full(len(col_place), -1, np.int64), np.empty(len(col_place), np.int64)
    for i in range(len(met.row)):
        row, col, own = met.row[i], met.col[i], group[met.part[i]]
        if row_of[col] == row and group_of[col] != own:
            received[row_place[row] + col_place[col] + group_place[own]] += met.result_bytes[i]
        row_of[col], group_of[col] = row, own


@compiled
def _sum_flops(met: Any, row_place: Any, col_place: Any, part_place: Any, places: int) -> Any:
    """Flops at each place of a grid."""
    flops = np.zeros(places)
    for i in range(len(met.row)):
        flops[row_place[met.row[i]] + col_place[met.col[i]] + part_place[met.part[i]]] += met.flops[i]
    return flops
