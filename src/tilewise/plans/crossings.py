"""Grids for the actual pattern of a product: what crosses on each, who does what, and the fastest.

A grid has one axis for the row panels of a product, one for its column panels and one for k.  Panels are dealt to the
groups of their axis, and the rank at a place of the grid does the block products of its three groups.  Panels of many
modes may be dealt in boxes: then every mode has an axis of its own, and the grid more than three.

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
ranks, flops of each rank, imbalance.  A block that the symmetry of an operand makes of a stored one
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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.plans.balance import over_mean
from tilewise.plans.cells import piece_of_segment
from tilewise.plans.grids import (
    Grid,
    RankRates,
    check_nodes,
    deal_axis,
    deal_boxes,
    factorisations,
    node_shapes,
    shape_text,
    total_by,
)
from tilewise.plans.meetings import (
    Blocks,
    Meetings,
    count_copies,
    count_kept_copies,
    count_passed,
    meet,
    sum_flops,
)
from tilewise.plans.pairs import tile_lengths
from tilewise.plans.plan import Plan
from tilewise.plans.sides import Side
from tilewise.plans.work import Product

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROWS, COLUMNS, K = range(3)
"""The axes of a grid."""

NEIGHBOURS, WEIGHT, BOXES = "neighbours", "weight", "boxes"
"""How an axis is dealt: neighbours together; the largest first, forward and back; each mode on an axis of its own."""

MOST_COUNTED = 2048
"""Grids whose flops are counted rank by rank in one search."""


@dataclass(frozen=True, slots=True, eq=False)
class Dealing:
    """One axis dealt to groups."""

    group: Ints
    """Group of each panel or part of k; the ranks of one node are neighbours."""
    way: str
    """How: `NEIGHBOURS`, `WEIGHT` or `BOXES`."""
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
    dealings: tuple[Dealing, ...]
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
    ways: tuple[str, str]
    """How row panels and column panels are dealt."""
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


class Crossings:
    """The counts that all grids of one product are weighed with.

    Parameters
    ----------
    plan : Plan
        The product.

    Examples
    --------
    >>> import tilewise as tw
    >>> from tilewise.plans.grids import RankRates
    >>> i = tw.Space.uniform(64, tile=8, name="i")
    >>> plan = tw.plan("ij,jk->ik", tw.Pattern.dense((i, i)), tw.Pattern.dense((i, i)))
    >>> found = Crossings(plan).search(16, ranks_per_node=4, rates=RankRates(flops=1e9, between=1e9, inside=1e10))
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
        self._lengths = tile_lengths(plan, plan.work)
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
        found = meet(rows.by_panel(), by_inner, self._lengths, part_of_tile, panels, drop, room)
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
            return int(count_passed(self.meetings, group, len(self.work.cols.size)))
        sent, needed, drop = self.blocks[1 - axis], self.blocks[axis], self.work.choices.drop
        if drop < 0:
            return int(count_copies(sent, needed, group, groups))
        return int(count_kept_copies(sent, needed, group, groups, drop))

    def dealings(self, axis: int, nodes: int, inside: int) -> list[Dealing]:
        """The ways to deal an axis to nodes and their ranks.

        Panels stay with their neighbours, go by weight or, if they have several modes, in boxes; parts of k are summed
        in order and stay with theirs.
        """
        key = axis, nodes, inside
        if key not in self._dealt:
            ways = [NEIGHBOURS]
            if axis != K and nodes * inside > 1:
                several = np.count_nonzero(self._tiles[axis].max(axis=0, initial=0)) > 1
                ways += [WEIGHT, BOXES] if several else [WEIGHT]
            self._dealt[key] = [self._deal(axis, nodes, inside, way) for way in ways]
        return self._dealt[key]

    @cached_property
    def _tiles(self) -> tuple[Ints, Ints]:
        """The tile in each mode of the row panels and of the column panels."""
        rows, columns = (side.panels.tiles(np.arange(side.panels.size)) for side in (self.work.rows, self.work.cols))
        return rows, columns

    def _deal(self, axis: int, nodes: int, inside: int, way: str) -> Dealing:
        weight = self.weights[axis]
        if way == BOXES:
            group = deal_boxes(weight, self._tiles[axis], nodes, inside)
        else:
            group = deal_axis(weight, nodes, inside, contiguous=way == NEIGHBOURS)
        return Dealing(
            group,
            way,
            self.crossing_bytes(axis, group),
            self.crossing_bytes(axis, group // inside),
            over_mean(total_by(group, weight, nodes * inside)),
        )

    def search(
        self, ranks: int, ranks_per_node: int, rates: RankRates, most: int = MOST_COUNTED, *, cut_k: bool = True
    ) -> Search:
        """Weigh all grids with all node mappings and dealings.

        Parameters
        ----------
        ranks, ranks_per_node : int
            How many ranks there are, and how many of them share a node; nodes are full.
        rates : RankRates
            Rates of a rank and a node.
        most : int
            Grids to count at the most.
        cut_k : bool
            Whether k may be cut among ranks.
        """
        check_nodes(ranks, ranks_per_node)
        return self.weigh(self.grids(ranks, ranks_per_node, cut_k=cut_k), rates, most)

    def weigh(self, grids: Iterable[Grid], rates: RankRates, most: int = MOST_COUNTED) -> Search:
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

    def _candidates(self, grids: Iterable[Grid], rates: RankRates) -> Iterator[Candidate]:
        total, heaviest = self.meetings.flops.sum(), self.meetings.flops.max(initial=0.0)
        number = count()
        for grid in grids:
            axes = zip((ROWS, COLUMNS, K), grid.nodes, grid.inside, strict=True)
            for dealings in product(*(self.dealings(*axis) for axis in axes)):
                send = _send_seconds(grid, dealings, rates)
                most = max(total / grid.size * max(each.imbalance for each in dealings), heaviest)
                yield Candidate(float(most) / rates.flops + send, next(number), send, grid, dealings)

    def grids(self, ranks: int, ranks_per_node: int, *, cut_k: bool = True) -> Iterator[Grid]:
        """All grids, with all node mappings, that need not leave a group idle; all grids if there is none such."""
        limits = [max(int(np.count_nonzero(weight)), 1) for weight in self.weights]
        shapes = [shape for shape in factorisations(ranks, 3) if cut_k or shape[K] == 1]
        busy = [shape for shape in shapes if all(p <= limit for p, limit in zip(shape, limits, strict=True))]
        for shape in busy or shapes:
            for inside in node_shapes(shape, ranks_per_node):
                yield Grid(shape, inside)

    def _count(self, candidate: Candidate, rates: RankRates) -> Choice:
        """Count the flops of each rank."""
        grid, dealings = candidate.grid, candidate.dealings
        rows, columns, k = dealings
        flops = self._place_flops(grid, rows.group, columns.group, k.group)
        return Choice(
            grid=grid,
            row_group=rows.group,
            col_group=columns.group,
            segment_group=k.group[self.part_of_segment],
            ways=(rows.way, columns.way),
            node_bytes=sum(each.node_bytes for each in dealings),
            rank_bytes=sum(each.rank_bytes for each in dealings),
            imbalance=over_mean(flops),
            seconds=float(flops.max()) / rates.flops + candidate.send,
        )

    def _place_flops(self, grid: Grid, rows: Ints, columns: Ints, parts: Ints) -> Floats:
        """Flops at each place of a grid, row by row."""
        _, q, r = grid.shape
        return np.asarray(sum_flops(self.meetings, rows * (q * r), columns * r, parts, grid.size))


def _send_seconds(grid: Grid, dealings: tuple[Dealing, ...], rates: RankRates) -> float:
    """Time to receive the mean node's and the mean rank's bytes."""
    between = sum(each.node_bytes for each in dealings)
    inside = sum(each.rank_bytes for each in dealings) - between
    return between / (math.prod(grid.nodes) * rates.between) + inside / (grid.size * rates.inside)
