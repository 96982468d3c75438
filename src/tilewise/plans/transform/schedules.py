"""The schedules of a four-index transform: what each holds at a time, computes, makes and moves.

| schedule | Rajbhandari et al. (2017) | live at a time |
|---|---|---|
| `unfused` | Listing 1 | A and O1, O1 and O2, O2 and O3, O3 and C |
| `fused12-34` | Listing 2 | O2, then O2 and C |
| `recompute` | Listing 3, orbitals in groups | a part of O2, and C; A is made again for every part |
| `fused1234` | Listings 7 and 8 | C, and a slab of A, O1, O2, O3 for some functions l |
| `fused1234-inner` | Listing 10 | C, and a slab of O2 |

Integrals are kept (each made once, since (pq|rs) = (rs|pq)) or made for one pair of tiles at a time. What does not fit
goes to scratch: O2 of `fused12-34`, and C where it is made part by part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from tilewise.costs.fusion import fusion_bounds_words
from tilewise.plans.balance import cut_evenly
from tilewise.plans.transform.deal import Deal, Task
from tilewise.plans.transform.problem import Problem, TilePairs

Ints = npt.NDArray[np.int64]

WORD = 8
"""Bytes of an element."""

BATCH = 8
"""Rows that a worker puts together at once: as many elements as a cache line holds."""

SCHEDULES = ("unfused", "fused12-34", "recompute", "fused1234", "fused1234-inner")
"""Names that ``schedule=`` takes besides ``"auto"``."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A schedule with everything that is left open in it decided."""

    schedule: str
    """One of `SCHEDULES`."""
    keeps: bool = False
    """Whether integrals are kept, each made once."""
    parts: tuple[tuple[int, int], ...] = ()
    """Ranges of tiles: of leading orbitals for `recompute`, of functions l for `fused1234`; empty for all at once."""
    rows_held: int = 0
    """If O2 goes to scratch, its rows in memory: two, one of which is written while the next is computed, or one."""
    spills_result: bool = False
    """Whether C goes to scratch."""

    @property
    def spills_halves(self) -> bool:
        """Whether O2 goes to scratch."""
        return self.rows_held > 0

    def __str__(self) -> str:
        words = ["integrals kept"] if self.keeps else []
        if self.parts:
            one, several = ("pass", "passes") if self.schedule == "recompute" else ("slab", "slabs")
            words.append(f"{len(self.parts)} {one if len(self.parts) == 1 else several}")
        spilled = [name for name, left in (("half", self.spills_halves), ("result", self.spills_result)) if left]
        if spilled:
            words.append(f"{' and '.join(spilled)} on disk")
        if self.rows_held == 1:
            words.append("one row at a time")
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a variant costs."""

    flops: int
    """Floating-point operations of all ranks: multiplications and additions."""
    integrals: int
    """Elements of A that are made, counted each time."""
    live: tuple[tuple[str, int], ...]
    """Bytes that are held in each stage, with its name; by the rank that holds the most."""
    written_bytes: int = 0
    """Bytes that go to scratch."""
    read_bytes: int = 0
    """Bytes that come back from it."""
    behind_bytes: int = 0
    """Of those that go to scratch, bytes that do so while the first half is computed."""
    between_bytes: int = 0
    """Bytes that go from node to node."""
    imbalance: float = 1.0
    """Most flops of a rank over the mean."""
    bound_bytes: int = 0
    """Bytes between memory and scratch that no order of the same steps goes below."""
    between_bound_bytes: int = 0
    """Bytes between nodes that no even sharing of the same steps goes below."""

    @property
    def peak_bytes(self) -> int:
        """The most that is held."""
        return max(size for _, size in self.live)

    @property
    def moved_bytes(self) -> int:
        """Bytes between memory and scratch."""
        return self.written_bytes + self.read_bytes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant that could be run."""

    variant: Variant
    """The schedule."""
    cost: Cost
    """What it costs."""
    seconds: float
    """Projected time."""
    fits: bool
    """Whether it keeps to the budget."""


def list_variants(problem: Problem, ranks: int = 1) -> Iterator[Variant]:
    """Every way to run a transform that this package has; several ranks keep no integrals and write nothing to disk."""
    alone = ranks == 1
    for keeps in (True, False) if alone else (False,):
        yield Variant("unfused", keeps)
        yield Variant("fused12-34", keeps)
        for rows, spills_result in product((2, 1) if alone else (), (False, True)):
            yield Variant("fused12-34", keeps, rows_held=rows, spills_result=spills_result)
    for parts in _cuts(_lead_weights(problem)):
        yield Variant("recompute", parts=parts)
        if alone:
            yield Variant("recompute", parts=parts, spills_result=True)
    for parts in _cuts(problem.functions.spaces[0].sizes.astype(np.float64)):
        yield Variant("fused1234", parts=parts)
        yield Variant("fused1234-inner", parts=parts)


def _cuts(weights: npt.NDArray[np.float64]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Ranges of tiles: few large ones first, then more, down to single tiles; an empty one if there are no tiles."""
    seen = set()
    if not len(weights):
        yield ((0, 0),)
    for count in range(1, len(weights) + 1):
        ends = cut_evenly(weights, count).tolist()
        parts = tuple((a, b) for a, b in pairwise(ends) if a < b)
        if parts not in seen:
            seen.add(parts)
            yield parts


def _lead_weights(problem: Problem) -> npt.NDArray[np.float64]:
    """Elements of the leading side that each tile of its leading orbitals has."""
    side = problem.first
    lead = problem.lead(side)
    return np.bincount(side.tiles[:, lead], side.sizes, side.spaces[lead].ntiles).astype(np.float64)


def pairs_in(problem: Problem, part: tuple[int, int]) -> Ints:
    """Pairs of the leading side whose leading tile is in a range."""
    tiles = problem.first.tiles[:, problem.lead(problem.first)]
    return np.flatnonzero((tiles >= part[0]) & (tiles < part[1]))


def row_buffers(problem: Problem, rows_held: int) -> list[int]:
    """Elements of the buffers that rows of O2 are made in, each of every so many."""
    sizes = problem.functions.sizes
    return [int(sizes[begin::rows_held].max(initial=0)) * problem.first.elements for begin in range(rows_held)]


def pairs_touching(functions: TilePairs, part: tuple[int, int]) -> Ints:
    """Pairs of tiles of functions with at least one tile in a range."""
    inside = (functions.tiles >= part[0]) & (functions.tiles < part[1])
    return np.flatnonzero(inside.any(axis=1))


def cost_of(problem: Problem, variant: Variant, workers: int, deal: Deal | None = None) -> Cost:
    """What a variant costs with some number of workers, on one rank or on those of a deal."""
    costs = {"unfused": _unfused, "fused12-34": _fused_pairs, "recompute": _recompute}
    shared = deal_for(Deal(problem) if deal is None else deal, variant)
    return costs.get(variant.schedule, _slabs)(Sizes(shared, workers), variant)


def deal_for(deal: Deal, variant: Variant) -> Deal:
    """A deal that has the passes of a variant in mind."""
    return replace(deal, passes=variant.parts) if variant.schedule == "recompute" else deal


@dataclass(frozen=True, slots=True)
class Half:
    """What each rank has of the first half of some pairs of functions and of orbitals."""

    made: Ints
    """Elements of A that it makes."""
    columns: Ints
    """Pairs of orbitals, of all ranks."""
    first: Ints
    """Elements of O2 that it makes."""
    second: Ints
    """Elements of O2 that it needs for the second half."""
    o1: Ints
    """Elements of O1."""
    orbitals: Ints
    """Most leading orbitals that it has at a time."""
    flops: Ints
    """Floating-point operations of the first two steps."""
    between_bytes: int
    """Bytes that go from node to node before the second half."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the tensors and buffers of a problem; in bytes, of each rank."""

    deal: Deal
    """The problem, and who does what."""
    workers: int
    """How many workers a rank has."""

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.deal.problem

    @property
    def factors(self) -> int:
        """The four matrices."""
        return WORD * self.problem.matrix_elements

    @property
    def panel(self) -> int:
        """A for one pair of tiles of functions."""
        return WORD * int(self.problem.row_elements.max(initial=0))

    @property
    def result(self) -> Ints:
        """C of each rank."""
        first = self.problem.first
        return WORD * self._by_column(first.sizes * self.problem.partners)

    @property
    def result_part(self) -> int:
        """C for one pair of tiles of leading orbitals."""
        return WORD * int((self.problem.first.sizes * self.problem.partners).max(initial=0))

    def o3(self, wide: int) -> Ints:
        """O3 of each rank, for so many functions l."""
        return WORD * self._by_column(self.problem.first.unique) * self.lead(self.problem.second) * wide

    def _by_column(self, values: Ints) -> Ints:
        owner = self.deal.column_owner
        return np.bincount(owner, values, self.deal.ranks).astype(np.int64)

    def lead(self, side: TilePairs) -> int:
        """Orbitals of a pair that are transformed first."""
        return side.spaces[self.problem.lead(side)].size

    def room(self, wide: int, orbitals: Ints | int, *, scattered: int = 0) -> Ints | int:
        """Buffers of all workers: S of a batch of rows, W of one; if results lie scattered, W and a block of each."""
        each = BATCH * self.problem.size * wide + orbitals * wide * (BATCH if scattered else 1) + BATCH * scattered
        return WORD * self.workers * each

    def second_room(self, wide: int) -> Ints | int:
        """Buffers of the second half."""
        return self.room(wide, self.lead(self.problem.second), scattered=self.scattered)

    @property
    def scattered(self) -> int:
        """Elements of the largest pair whose elements lie far apart in the result; 0 if none do."""
        return self.problem.second.largest if self.problem.leading else 0

    @property
    def last_room(self) -> int:
        """Buffers of the fourth step by itself."""
        return WORD * self.workers * BATCH * self.scattered

    def half(self, rows: Ints, part: tuple[int, int]) -> Half:
        """The first half of some pairs of functions, for a range of tiles of leading orbitals."""
        problem, deal, columns = self.problem, self.deal, pairs_in(self.problem, part)
        tasks = deal.tasks(rows, part)
        owner = deal.half_owner(tasks, rows, columns)
        row_sizes, column_sizes = problem.functions.sizes[rows], problem.first.sizes[columns]
        blocks = np.multiply.outer(row_sizes, column_sizes)
        first = np.bincount(owner.ravel(), blocks.ravel(), deal.ranks).astype(np.int64)
        second = np.bincount(deal.column_owner[columns], column_sizes * row_sizes.sum(), deal.ranks).astype(np.int64)
        made, rank_rows, orbitals = self._task_sums(tasks)
        o1 = rank_rows * problem.size
        return Half(
            made=made,
            columns=columns,
            first=first,
            second=first if deal.nodes == 1 else second,
            o1=o1,
            orbitals=orbitals,
            flops=2 * problem.size * (o1 + first),
            between_bytes=deal.between_bytes(owner, rows, columns),
        )

    def _task_sums(self, tasks: list[Task]) -> tuple[Ints, Ints, Ints]:
        """Of each rank: integrals that it makes, rows times leading orbitals, most leading orbitals of a task."""
        offsets = self.problem.first.spaces[self.problem.lead(self.problem.first)].offsets
        made, total, most = (np.zeros(self.deal.ranks, np.int64) for _ in range(3))
        seen = set()
        for task in tasks:
            size, orbitals = self.problem.functions.sizes[task.row], offsets[task.part[1]] - offsets[task.part[0]]
            total[task.rank] += size * orbitals
            most[task.rank] = max(most[task.rank], orbitals)
            if (task.row, task.rank) not in seen:
                seen.add((task.row, task.rank))
                made[task.rank] += self.problem.row_elements[task.row]
        return made, total, most

    def second_flops(self, half: Half, wide: int) -> Ints:
        """Floating-point operations of the last two steps for the orbitals of a half and so many l, of each rank."""
        problem, columns = self.problem, half.columns
        each = problem.size * self.lead(problem.second) + problem.partners[columns]
        work = 2 * wide * problem.first.unique[columns] * each
        return np.bincount(self.deal.column_owner[columns], work, self.deal.ranks).astype(np.int64)

    def cost(
        self,
        halves: list[tuple[Half, int]],
        live: list[tuple[str, Ints | int]],
        *,
        integrals: int | None = None,
        written: int = 0,
        read: int = 0,
        behind: int = 0,
    ) -> Cost:
        """A cost in which the matrices are held in every stage, and ranks wait for each other after each half.

        Parameters
        ----------
        halves : list of (Half, int)
            Each with the number of functions l that its second half sums over.
        live : list of (str, bytes)
            What is held in each stage.
        integrals : int, optional
            Elements of A that are made, if they are kept.
        written, read : int
            Bytes to and from scratch.
        behind : int
            Of those written, bytes that are while the first half is computed.
        """
        stages = [each for half, wide in halves for each in (half.flops, self.second_flops(half, wide))]
        made = int(sum(half.made.sum() for half, _ in halves)) if integrals is None else integrals
        held = tuple((name, int(np.max(size)) + self.factors) for name, size in live)
        between = sum(half.between_bytes for half, _ in halves)
        mean = sum(float(stage.mean()) for stage in stages)
        imbalance = sum(int(stage.max()) for stage in stages) / mean if mean else 1.0
        bounds = self._scratch_bound(written, read), self._between_bound([half for half, _ in halves])
        flops = sum(int(stage.sum()) for stage in stages)
        return Cost(flops, made, held, written, read, behind, between, imbalance, *bounds)

    def _scratch_bound(self, written: int, read: int) -> int:
        """Bytes to and from scratch (Theorem 5.2), without A, which is made in memory, and C, if it stays there."""
        sizes = self.problem.tensor_elements
        spills_result = written > read
        passed = fusion_bounds_words(sizes)["12/34" if read else "1234"] - sizes[0] - sizes[-1]
        return WORD * (passed + sizes[-1] * spills_result)

    def _between_bound(self, halves: list[Half]) -> int:
        """Bytes between nodes: with even shares of functions and of orbitals, 1 / nodes of O2 stays where it is."""
        rows = sum(int(half.first.sum()) for half in halves) // max(self.problem.first.elements, 1)
        unique = int(self.problem.first.unique.sum())
        return int(WORD * rows * unique * (1 - 1 / self.deal.nodes))


def _everything(sizes: Sizes) -> Half:
    """The first half of all pairs."""
    lead = sizes.problem.first.spaces[sizes.problem.lead(sizes.problem.first)]
    return sizes.half(np.arange(sizes.problem.functions.count), (0, lead.ntiles))


def _integrals(sizes: Sizes, variant: Variant) -> tuple[int | None, int]:
    """Elements made by going through A once, if they are kept, and bytes held while that lasts."""
    kept = sizes.problem.kept_elements
    return (kept, WORD * kept) if variant.keeps else (None, sizes.panel)


def _unfused(sizes: Sizes, variant: Variant) -> Cost:
    made, held = _integrals(sizes, variant)
    n, half = sizes.problem.size, _everything(sizes)
    square, o3 = sizes.room(n, 0), sizes.o3(n)
    live = [
        ("A, O1", held + WORD * half.o1 + square),
        ("O1, O2", WORD * (half.o1 + half.first)),
        *_exchange(sizes, half, 0),
        ("O2, O3", WORD * half.second + o3 + square),
        ("O3, C", o3 + sizes.result + sizes.last_room),
    ]
    return sizes.cost([(half, n)], live, integrals=made)


def _fused_pairs(sizes: Sizes, variant: Variant) -> Cost:
    problem, half = sizes.problem, _everything(sizes)
    made, held = _integrals(sizes, variant)
    first, second = WORD * half.first, WORD * half.second
    result: Ints | int = sizes.result
    if variant.spills_halves:
        first = np.array([WORD * sum(row_buffers(problem, variant.rows_held))])
        second = np.array([WORD * problem.functions.elements * problem.first.largest])
    if variant.spills_result:
        result = sizes.result_part
    live = [
        ("A, O2", held + first + sizes.room(problem.size, half.orbitals)),
        *_exchange(sizes, half, 0),
        ("O2, C", second + result + sizes.second_room(problem.size)),
    ]
    spilled = WORD * int(half.first.sum()) * variant.spills_halves
    written = spilled + int(sizes.result.sum()) * variant.spills_result
    behind = spilled if variant.rows_held > 1 else 0
    return sizes.cost([(half, problem.size)], live, integrals=made, written=written, read=spilled, behind=behind)


def _recompute(sizes: Sizes, variant: Variant) -> Cost:
    n, every = sizes.problem.size, np.arange(sizes.problem.functions.count)
    halves = [sizes.half(every, part) for part in variant.parts]
    result = sizes.result_part if variant.spills_result else sizes.result
    live: list[tuple[str, Ints | int]] = []
    for half in halves:
        before, names = (result, ", C") if live else (0, "")
        live += [
            (f"A, O2{names}", before + sizes.panel + WORD * half.first + sizes.room(n, half.orbitals)),
            *_exchange(sizes, half, before),
            ("O2, C", result + WORD * half.second + sizes.second_room(n)),
        ]
    written = int(sizes.result.sum()) * variant.spills_result
    return sizes.cost([(half, n) for half in halves], _largest(live), written=written)


def _slabs(sizes: Sizes, variant: Variant) -> Cost:
    problem, result, halves = sizes.problem, sizes.result, []
    live: list[tuple[str, Ints | int]] = []
    functions, space, n = problem.functions, problem.functions.spaces[0], problem.size
    lead = problem.first.spaces[problem.lead(problem.first)]
    for begin, end in variant.parts:
        wide = int(space.offsets[end] - space.offsets[begin])
        half = sizes.half(pairs_touching(functions, (begin, end)), (0, lead.ntiles))
        halves.append((half, wide))
        before, names = (result, ", C") if live else (0, "")
        if variant.schedule == "fused1234-inner":
            live += [
                (f"A, O2{names}", sizes.panel + WORD * half.first + sizes.room(n, half.orbitals) + before),
                *_exchange(sizes, half, before),
                ("O2, C", WORD * half.second + sizes.second_room(wide) + result),
            ]
            continue
        o3 = sizes.o3(wide)
        live += [
            (f"A, O1{names}", WORD * (half.made + half.o1) + sizes.room(n, 0) + before),
            (f"O1, O2{names}", WORD * (half.o1 + half.first) + before),
            *_exchange(sizes, half, before),
            (f"O2, O3{names}", WORD * half.second + o3 + sizes.room(wide, 0) + before),
            ("O3, C", o3 + sizes.last_room + result),
        ]
    return sizes.cost(halves, _largest(live))


def _exchange(sizes: Sizes, half: Half, result: Ints | int) -> list[tuple[str, Ints | int]]:
    """Between nodes, O2 is there twice for a while."""
    return [] if sizes.deal.nodes == 1 else [("O2 goes to other nodes", result + WORD * (half.first + half.second))]


def _largest(live: list[tuple[str, Ints | int]]) -> list[tuple[str, Ints | int]]:
    """The most that is held in each kind of stage."""
    found: dict[str, int] = {}
    for name, size in live:
        found[name] = max(found.get(name, 0), int(np.max(size)))
    return list(found.items())
