"""Planning how ranks share a step: the family, the grid, the stages, and what each rank holds at its peak."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError, MemoryBudgetError
from tilewise.machine import Machine
from tilewise.patterns import Pattern
from tilewise.plans.balance import BALANCERS, Deal, cut_evenly, deal, longest_first, over_mean
from tilewise.plans.cells import piece_of_segment
from tilewise.plans.comparison import list_tasks
from tilewise.plans.crossings import Crossings
from tilewise.plans.digest import digest, pattern_digest
from tilewise.plans.grids import RankRates, divisors, shape_text, total_by
from tilewise.plans.layout import EVERYBODY, largest_share, parse_ranks
from tilewise.plans.parts import Part, part_of_rank
from tilewise.plans.plan import Plan
from tilewise.plans.projection import cell_seconds
from tilewise.plans.shares import (
    ALGORITHMS,
    Shares,
    block_flops,
    share_by_owner,
    share_by_pieces,
    share_on_grid,
    share_stationary,
)
from tilewise.plans.traffic import Traffic, list_uses
from tilewise.plans.work import Product, Sum

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

UNEVEN = 1.02
"""Imbalance from which a step that one node could share by result blocks is looked at more closely."""

OVERLAPPED_BYTES = 1 << 24
"""Bytes that come to a node from which they come in several stages, so that all but the first are hidden."""

STAGES = 4
"""Stages of such a step, if the budget does not ask for more."""

LEAST_FLOPS = 1_000_000
"""Products of tensors that every rank has, with less work than this, are done by every rank for itself."""

LEAST_BYTES = 1 << 16
"""Smaller tensors are kept by every rank."""

FEW_RANKS = 16
"""Ranks whose peaks are all worked out for a table."""

PLANNED = ("static", "hypergraph")
"""Balancers that say who does what when a plan is made."""

SETTLED = (*PLANNED, "measured")
"""Balancers that say it before a run."""

NETWORK_RATE = 1e9
"""Bytes per second between nodes, a cautious guess."""


@dataclass(frozen=True, slots=True)
class Request:
    """How ranks are asked to share a step."""

    ranks: int
    """How many ranks there are."""
    ranks_per_node: int
    """How many of them share a node."""
    algorithm: str = "auto"
    """One of `tilewise.plans.shares.ALGORITHMS`; `family` is what it comes to."""
    balancer: str = "static"
    """Who deals result blocks where ranks own them: one of `tilewise.plans.balance.BALANCERS`, or ``"measured"``: as
    static, and from the second run of a plan on by the times of the run before."""
    reproducible: bool = False
    """Whether sums over k must have the bits of one rank: then k is not cut among ranks."""
    everywhere: bool = False
    """Whether every rank gets the whole result, however large it is."""
    made_bytes: int = 0
    """Bytes of the largest block that a function makes, until it is copied."""
    copied_bytes: int = 0
    """Bytes of operands that a rank has to copy before, since they have another element type or lie on other nodes."""

    def __post_init__(self) -> None:
        ranks, near = parse_ranks(self.ranks, self.ranks_per_node)
        object.__setattr__(self, "ranks", ranks)  # an int, whatever integer was given: it is printed
        object.__setattr__(self, "ranks_per_node", near)
        if self.algorithm not in ALGORITHMS:
            raise InputError(
                f"algorithm={self.algorithm!r} is unknown. Expected one of {', '.join(ALGORITHMS)}. Correct the name."
            )
        if self.balancer not in (*BALANCERS, "measured"):
            known = ", ".join((*BALANCERS, "measured"))
            raise InputError(f"balancer={self.balancer!r} is unknown. Expected one of {known}. Correct the name.")
        if self.balancer != "static" and self.algorithm in ("stationary", "summa"):
            raise InputError(
                f"balancer={self.balancer!r} deals result blocks that ranks own, and algorithm={self.algorithm!r} puts "
                'them on a grid. Expected one of both. Leave balancer= away, or use algorithm="owner".'
            )

    def on(self, ranks: int, ranks_per_node: int, everywhere: bool) -> Request:
        """The same of other ranks."""
        return replace(self, ranks=ranks, ranks_per_node=ranks_per_node, everywhere=everywhere)

    @property
    def family(self) -> str:
        """The algorithm; a balancer that is asked for says that ranks own result blocks."""
        return "owner" if self.algorithm == "auto" and self.balancer != "static" else self.algorithm


@dataclass(frozen=True, slots=True)
class Pool:
    """Tasks that ranks draw during a run, one result block each."""

    deal: Deal
    """The queues."""
    block: Ints
    """Result block of each task; -1 for one with nothing to do."""
    place: Ints
    """The rank that holds the counter of each queue."""

    def visits(self, rank: int) -> list[int]:
        """The queues that a rank draws from, one after the other."""
        own = int(self.deal.queue[rank])
        if self.deal.balancer != "stealing":
            return [own]
        length = np.diff(self.deal.ptr)
        others = sorted(set(range(len(length))) - {own}, key=lambda queue: -length[queue])
        return [own, *others]

    def is_shared(self, queue: int) -> bool:
        """Whether several ranks draw from a queue."""
        return self.deal.balancer == "stealing" or int((self.deal.queue == queue).sum()) > 1

    def tasks(self, queue: int) -> Ints:
        """The tasks of a queue in the order in which they are drawn."""
        return self.deal.task[self.deal.ptr[queue] : self.deal.ptr[queue + 1]]


@dataclass(frozen=True)
class Sharing:
    """How ranks share a step."""

    request: Request
    """What was asked for."""
    traffic: Traffic
    """Who does what, and what crosses."""
    pool: Pool | None = None
    """The tasks, if ranks draw them during the run."""

    @property
    def plan(self) -> Plan:
        """The step."""
        return self.traffic.plan

    @property
    def shares(self) -> Shares:
        """Who does what."""
        return self.traffic.shares

    def fits(self, request: Request, owners: Sequence[Ints]) -> bool:
        """Whether it was made for the ranks of a request, as much memory, and operands that lie where these do."""
        own = self.request
        same = own.on(request.ranks, request.ranks_per_node, request.everywhere) == own
        enough = request.made_bytes <= own.made_bytes and request.copied_bytes <= own.copied_bytes
        return same and enough and all(map(np.array_equal, self.traffic.owners, owners))

    @cached_property
    def digest(self) -> int:
        """A number that tells apart different steps, and different ways to share one."""
        patterns = [self.plan.result, *(operand.pattern for operand in self.plan.operands)]
        words = [self.plan.label, self.plan.dtype, self.request, *map(pattern_digest, patterns)]
        arrays = [self.shares.chain, self.traffic.stages, *self.traffic.owners]
        if self.pool is not None:
            deal = self.pool.deal
            arrays += [deal.task, deal.ptr, deal.queue, self.pool.block]
        return digest(words, arrays)

    def parts(self, rank: int) -> list[Part | None]:
        """What a rank does, stage by stage; kept for the next run, of one rank at a time."""
        if rank not in self._kept:
            count, stages = self.traffic.stage_count, self.traffic.stages
            self._kept.clear()
            self._kept[rank] = [part_of_rank(self.plan, self.shares, stages, rank, stage) for stage in range(count)]
        return self._kept[rank]

    @cached_property
    def _kept(self) -> dict[int, list[Part | None]]:
        return {}

    @cached_property
    def fetched_bytes(self) -> int:
        """Most bytes that come to a node in one stage."""
        nodes = range(self.shares.node(self.shares.ranks - 1) + 1)
        return max((int(self.traffic.stage_bytes(node).max(initial=0)) for node in nodes), default=0)

    def peak_bytes(self, rank: int, parts: Sequence[Part | None], workers: int) -> int:
        """Bytes that a rank adds at its peak: its sums, its share of what its node fetches, and buffers."""
        size = self.plan.result.block_sizes * self.plan.dtype.itemsize
        sums = sum(int(size[self.shares.wanted(rank, group)].sum()) for group in range(self.shares.groups))
        packed = max((p.plan.packed_bytes + workers * p.plan.worker_bytes for p in parts if p is not None), default=0)
        if self.pool is not None:  # which may let one rank draw everything
            sums = self.plan.result_bytes - (-self.plan.result_bytes // self._ranks_beside(rank))
            packed = self.plan.packed_bytes + workers * self.plan.worker_bytes
        brought = max((int(size[self.shares.wanted(rank, into)].sum()) for _, into in self.shares.additions), default=0)
        whole = self.plan.result_bytes if self.is_kept_by_all else 0
        computing = self.buffer_share(rank) + self.request.made_bytes + packed
        return self.request.copied_bytes + sums + max(computing, brought, whole)

    @property
    def is_kept_by_all(self) -> bool:
        """Whether every rank has the whole result in the end."""
        return self.request.everywhere or is_small(self.plan.result, self.plan.dtype)

    @property
    def result_owner(self) -> Ints:
        """Who has each block of the result after the run."""
        owner = self.shares.layout().owner
        return np.full(len(owner), EVERYBODY) if self.is_kept_by_all else owner

    @cached_property
    def kept_bytes(self) -> int:
        """Bytes of the result that a rank has after the run, at the most."""
        if self.is_kept_by_all or self.pool is not None:
            return self.plan.result_bytes
        sizes = self.plan.result.block_sizes * self.plan.dtype.itemsize
        return largest_share(self.shares.layout().owner, sizes, self.shares.ranks)

    def largest_peak(self, workers: int) -> int:
        """The largest peak of a rank; of many ranks only the busiest is looked at."""
        ranks = range(self.shares.ranks)
        if self.shares.ranks > FEW_RANKS:
            ranks = range(busiest := int(np.argmax(self.traffic.rank_flops)), busiest + 1)
        return max(self.peak_bytes(rank, self.parts(rank), workers) for rank in ranks)

    def seconds(self, machine: Machine) -> float:
        """Projected time on ranks of a machine."""
        return machine.start_seconds + project_seconds(self, make_rates(self.plan, machine))

    @property
    def algorithm_text(self) -> str:
        """The family, and its grid or balancer."""
        grid = self.shares.grid
        if grid is None:
            return f"{self.shares.algorithm}, {self.request.balancer}"
        nodes = "" if set(grid.inside) == {1} else f", nodes of {shape_text(grid.inside)}"
        return f"{self.shares.algorithm} on {shape_text(grid.shape)}{nodes}"

    @property
    def tickets(self) -> int:
        """Draws that a pool takes: one for each task, and one of each rank that finds a queue empty."""
        if self.pool is None:
            return 0
        dealt = self.pool.deal
        return len(dealt.task) + self.shares.ranks**2 if dealt.balancer == "stealing" else dealt.tickets

    def buffer_share(self, rank: int) -> int:
        """A rank's share of the memory that its node fetches to."""
        count = min(self.traffic.stage_count, 2)
        fetched = sum(self.traffic.largest_stage(number, int(self.shares.node(rank))) for number in (0, 1))
        return -(-count * fetched // self._ranks_beside(rank))

    def _ranks_beside(self, rank: int) -> int:
        """Ranks on the node of a rank."""
        first = int(self.shares.node(rank)) * self.shares.ranks_per_node
        return min(self.shares.ranks_per_node, self.shares.ranks - first)


def plan_sharing(
    plan: Plan,
    request: Request,
    owners: Sequence[Ints],
    *,
    rank_of_block: Ints | None = None,
    machine: Machine | None = None,
    fit: Callable[[Sharing], Sharing] | None = None,
) -> Sharing:
    """Choose how ranks share a step: the fastest way that fits.

    Parameters
    ----------
    plan : Plan
        The step.
    request : Request
        What is asked for.
    owners : sequence of array of int
        The owner of each stored block of the operands, see `tilewise.plans.traffic`.
    rank_of_block : array of int, optional
        Who is to compute each result block, should that be settled.
    machine : Machine, optional
        Whose rates are used to choose; this computer's by default.
    fit : callable, optional
        Makes a way fit a budget, or raises a `MemoryBudgetError`, see `fit_budget`.
    """
    where = Machine.measured() if machine is None else machine
    rates = make_rates(plan, where)
    if rank_of_block is None and isinstance(plan.work, Sum) and owners[0].min(initial=0) >= 0:
        # Where the first source of each result block is.
        rank_of_block = owners[0][plan.operands[0].blocks.source[plan.work.source[plan.work.ptr[:-1]]]]
    if _is_drawn(plan, request, rank_of_block):
        ways = iter([_pooled(plan, request, owners, where)])
    else:
        found = list(_candidates(plan, request, where, rates, rank_of_block))
        ways = _fastest_first(plan, request, found, owners, rates)
    if fit is None:
        return _overlapped(next(ways))
    return first_that_fits(partial(fit, _overlapped(way)) for way in ways)


def _fastest_first(
    plan: Plan, request: Request, found: Sequence[Shares], owners: Sequence[Ints], rates: RankRates
) -> Iterator[Sharing]:
    """Ways to share a step, the fastest first; how fast one is is worked out when no other may be faster."""
    uses = list_uses(plan)
    made = [Sharing(request, Traffic(plan, each, tuple(owners), each.group, known_uses=uses)) for each in found]
    if len(made) == 1:
        yield made[0]
        return
    # What its busiest rank computes bounds a way's time from below.
    waiting = [(float(way.traffic.rank_flops.max()) / rates.flops, number, False) for number, way in enumerate(made)]
    heapq.heapify(waiting)
    least = math.inf
    while waiting:
        _, number, is_time = heapq.heappop(waiting)
        if is_time:
            yield made[number]
            continue
        seconds, way = project_seconds(made[number], rates), made[number]
        heapq.heappush(waiting, (seconds, number, True))
        if seconds > least:  # what was worked out for it is not kept
            made[number] = replace(way, traffic=replace(way.traffic))
        least = min(least, seconds)


def first_that_fits(ways: Iterable[Callable[[], Sharing]]) -> Sharing:
    """The first of several ways that has enough memory; if none has, the error of the one that needs least."""
    refused = []
    for way in ways:
        try:
            return way()
        except MemoryBudgetError as error:
            refused.append((error.least_bytes, error.budget, str(error)))
    least, budget, text = min(refused)
    raise MemoryBudgetError(text, budget, least)


def refined(plan: Plan, ranks: int) -> Ints | None:
    """Who computes each result block, from what they took in the latest run on as many ranks; None before a run."""
    for trace in reversed(plan.runs):
        seconds = trace.block_seconds
        if len(trace.ranks) == ranks and seconds is not None and seconds.any():
            return np.repeat(np.arange(ranks), np.diff(cut_evenly(seconds, ranks)))
    return None


def make_rates(plan: Plan, machine: Machine) -> RankRates:
    """What a rank of the machine does in a second, from the flops and the time of the plan's own cells."""
    seconds = float(cell_seconds(plan, plan.work, machine).sum()) if isinstance(plan.work, Product) else 0.0
    flops = plan.flops / seconds if seconds > 0 and plan.flops else 1e9
    workers, inside = min(plan.workers, machine.cores), machine.copy_rate * 1e9 / machine.cores
    return RankRates(flops=flops * workers, between=NETWORK_RATE, inside=inside)


def project_seconds(sharing: Sharing, rates: RankRates) -> float:
    """Time of the busiest rank and of what the busiest node gets from others, one after the other."""
    traffic, node = sharing.traffic, sharing.shares.node(np.arange(sharing.shares.ranks))
    between = float(total_by(node, traffic.between_bytes, node[-1] + 1).max())
    inside = float(traffic.inside_bytes.max())
    return float(traffic.rank_flops.max()) / rates.flops + between / rates.between + inside / rates.inside


def _is_drawn(plan: Plan, request: Request, rank_of_block: Ints | None) -> bool:
    """Whether ranks draw tasks: not where sums are made in pieces, or it is settled who computes what."""
    if request.balancer in SETTLED or rank_of_block is not None or not plan.result.nnz_blocks:
        return False
    return isinstance(plan.work, Product) and plan.work.choices.pieces == 1 and request.family == "owner"


def _pooled(plan: Plan, request: Request, owners: Sequence[Ints], machine: Machine) -> Sharing:
    """Tasks in queues that ranks draw from; until they have, their blocks are taken to be dealt evenly."""
    null = request.balancer == "counter"
    tasks = list_tasks(plan, machine, null=null)
    dealt = deal(request.balancer, tasks, request.ranks, request.ranks_per_node)
    block = np.full(len(tasks.cost), -1, np.int64)
    block[tasks.nonnull if null else np.arange(plan.result.nnz_blocks)] = np.arange(plan.result.nnz_blocks)
    queues = len(dealt.ptr) - 1
    place = np.array([int(np.argmax(dealt.queue == queue)) for queue in range(queues)], np.int64)
    node = np.full(plan.result.nnz_blocks, EVERYBODY, np.int64)
    if request.balancer == "buckets":
        node[block[dealt.task]] = np.repeat(np.arange(queues), np.diff(dealt.ptr))
    shares = share_by_owner(plan, request.ranks, request.ranks_per_node)
    traffic = Traffic(plan, shares, tuple(owners), shares.group, node)
    return Sharing(request, traffic, Pool(dealt, block, place))


def _candidates(
    plan: Plan, request: Request, machine: Machine, rates: RankRates, rank_of_block: Ints | None
) -> Iterator[Shares]:
    """The shares to choose from."""
    ranks, per_node = request.ranks, request.ranks_per_node
    if isinstance(plan.work, Sum) or not plan.result.nnz_blocks or rank_of_block is not None:
        yield share_by_owner(plan, ranks, per_node, rank_of_block)
        return
    if request.family in ("auto", "owner") and plan.work.choices.pieces > 1:
        yield share_by_pieces(plan, ranks, per_node)
        return
    if request.family in ("auto", "owner"):
        owner = share_by_owner(plan, ranks, per_node, _dealt(plan, request, machine))
        yield owner
        flops = block_flops(plan)
        is_even = over_mean(total_by(owner.chain[:, 0], flops, ranks)) < UNEVEN
        if ranks <= per_node and request.balancer == "static" and not is_even:
            # Inside a node it does not matter who has neighbours.
            order, ptr = longest_first(flops, np.ones(ranks))
            rank = np.empty(len(flops), np.int64)
            rank[order] = np.repeat(np.arange(ranks), np.diff(ptr))
            yield share_by_owner(plan, ranks, per_node, rank)
        if request.family == "owner" or (ranks <= per_node and is_even):
            return
    if request.family in ("auto", "stationary"):
        held = int(np.argmax([operand.pattern.nnz_elements for operand in plan.operands]))
        yield from (share_stationary(plan, ranks, per_node, p, held) for p in divisors(ranks))
    if request.family in ("auto", "summa"):
        yield from _on_grids(plan, request, rates)


def _dealt(plan: Plan, request: Request, machine: Machine) -> Ints | None:
    """Who computes each result block, if a balancer that is not the default deals them."""
    if request.balancer != "hypergraph":
        return None
    tasks = list_tasks(plan, machine, null=False)
    return deal(request.balancer, tasks, request.ranks, request.ranks_per_node).rank_of_task(len(tasks.cost))


def _on_grids(plan: Plan, request: Request, rates: RankRates) -> Iterator[Shares]:
    """The best grid of rows, columns and k; of nodes that are not full, ranks count one by one."""
    ranks, per_node = request.ranks, math.gcd(request.ranks, min(request.ranks_per_node, request.ranks))
    best = Crossings(plan).search(ranks, per_node, rates, cut_k=not request.reproducible).best
    yield share_on_grid(plan, best.grid, request.ranks_per_node, best.row_group, best.col_group, best.segment_group)


def _overlapped(sharing: Sharing) -> Sharing:
    """What nodes fetch in several stages along k, if it is much: all but the first hide behind the computation."""
    if not _may_be_cut(sharing) or sharing.fetched_bytes < OVERLAPPED_BYTES:
        return sharing
    return _cut(sharing, sharing.fetched_bytes // STAGES)


def _may_be_cut(sharing: Sharing) -> bool:
    """Whether the sums of a group may be made in stages: not in a pool, or if pieces have to start from zero."""
    work, group = sharing.plan.work, sharing.shares.group
    if isinstance(work, Sum) or sharing.pool is not None:
        return False
    pieces = piece_of_segment(np.arange(len(group)), len(group), work.choices.pieces)
    return len(np.unique(group * work.choices.pieces + pieces)) == sharing.shares.groups


def _cut(sharing: Sharing, most: int) -> Sharing:
    """Stages of neighbouring segments of one group in which no node fetches more than some bytes, where that can be."""
    traffic = sharing.traffic
    assert isinstance(sharing.plan.work, Product)
    fine = replace(traffic, stages=np.arange(len(traffic.stages)))
    nodes = range(sharing.shares.node(sharing.shares.ranks - 1) + 1)
    size = np.max([fine.stage_bytes(node) for node in nodes], axis=0)
    stages, group, held, stage = np.zeros(len(size), np.int64), sharing.shares.group, 0, 0
    for segment in range(len(size)):
        if segment and (group[segment] != group[segment - 1] or (held and held + size[segment] > most)):
            stage, held = stage + 1, 0
        stages[segment] = stage
        held += int(size[segment])
    return replace(sharing, traffic=replace(traffic, stages=stages))


def fit_budget(sharing: Sharing, budget: int, peak_of: Callable[[Sharing], int]) -> Sharing:
    """Cut stages until no rank's peak is above a budget.

    Parameters
    ----------
    sharing : Sharing
        How the step is shared.
    budget : int
        Bytes that a rank may add.
    peak_of : callable
        The largest peak of all ranks.
    """
    most, peak = sharing.fetched_bytes, peak_of(sharing)
    if peak <= budget:
        return sharing
    finest = _cut(sharing, 1) if _may_be_cut(sharing) else sharing
    least = peak_of(finest)
    if least > budget:
        raise MemoryBudgetError(
            f"{sharing.plan.label} needs at least {least} bytes on one of {sharing.shares.ranks} ranks. The budget of "
            f"each is {budget} bytes. Give more with memory=, or use more ranks.",
            budget,
            least,
        )
    while peak > budget:
        most = max(most // 2, 1)
        sharing = finest if most == 1 else _cut(sharing, most)
        peak = peak_of(sharing)
    return sharing


def is_small(pattern: Pattern, dtype: np.dtype[Any]) -> bool:
    """Whether every rank keeps a tensor, since it is hardly any memory."""
    return pattern.ndim == 0 or pattern.nbytes(dtype) < LEAST_BYTES


def is_worth_sharing(plan: Plan, owners: Sequence[Ints]) -> bool:
    """Whether ranks do a step together: if one of them lacks what others have, or there is enough to do."""
    spread = any(owner.max(initial=EVERYBODY) >= 0 for owner in owners)
    return spread or (isinstance(plan.work, Product) and plan.flops >= LEAST_FLOPS)
