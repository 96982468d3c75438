"""Balancers side by side on the tasks of a product: tickets, imbalance, time and moved bytes, before anything runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewise.errors import InputError
from tilewise.machine import Machine
from tilewise.plans.balance import BALANCERS, Tasks, deal, over_mean
from tilewise.plans.explain import Report, Table, bytes_text, percent_text, seconds_text, to_html, to_text
from tilewise.plans.layout import parse_ranks
from tilewise.plans.pairs import list_pairs
from tilewise.plans.plan import Plan
from tilewise.plans.pools import Outcome, TicketCost, moved_bytes, replay
from tilewise.plans.projection import cell_seconds
from tilewise.plans.work import Product
from tilewise.trace import Trace

MOST_TASKS = 100_000_000
"""Tuples of result tiles, null ones included, that are looked at."""

MOST_NOISE = 5.0
"""Largest scatter of task times: a factor of 150 up or down."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a balancer came to in a run."""

    tickets: int
    """Draws from counters."""
    imbalance: float
    """The busiest rank's time of computing over the mean."""
    moved_bytes: int
    """Bytes that ranks read of each other, inside nodes and between them."""
    seconds: float
    """Wall time."""

    @classmethod
    def of(cls, trace: Trace) -> Measured:
        """The figures of a run on several ranks."""
        return cls(
            tickets=sum(rank.tickets for rank in trace.ranks),
            imbalance=over_mean(np.array([rank.seconds("compute") for rank in trace.ranks])),
            moved_bytes=sum(rank.inside_bytes + rank.between_bytes for rank in trace.ranks),
            seconds=trace.seconds,
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """One balancer."""

    outcome: Outcome
    """What its deal comes to on the clock of a model."""
    moved_bytes: int
    """Bytes that ranks fetch for their tasks, each block once per rank, unless they own it."""
    measured: Measured | None = None
    """What a run came to; None if there was none."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """What each balancer makes of the same tasks."""

    label: str
    """The product as an einsum string."""
    ranks: int
    """How many ranks there are."""
    ranks_per_node: int
    """How many of them share a node."""
    tasks: int
    """Tuples of result tiles."""
    null_tasks: int
    """Those of them for which there is nothing to do."""
    noise: float
    """By how much the times of tasks scatter around what the balancers expect."""
    rows: tuple[Compared, ...]
    """The balancers, in the order of `tilewise.plans.balance.BALANCERS`."""

    def of(self, balancer: str) -> Compared:
        """One of them, by name."""
        found = {row.outcome.balancer: row for row in self.rows}
        if balancer not in found:
            raise InputError(
                f"There is no balancer {balancer!r}. Expected one of {', '.join(found)}. Correct the name."
            )
        return found[balancer]

    @property
    def fastest(self) -> str:
        """The balancer whose last rank is done first."""
        return min(self.rows, key=lambda row: row.outcome.seconds).outcome.balancer

    def explain(self) -> str:
        """A table in plain text."""
        return to_text(self._report())

    def _repr_html_(self) -> str:
        return to_html(self._report())

    def _report(self) -> Report:
        header = ("", "tickets", "for tickets", "imbalance", "moved", "time", "speed-up")
        work = sum(self.rows[0].outcome.busy) if self.rows else 0.0
        rows = [
            (
                row.outcome.balancer,
                str(row.outcome.tickets),
                percent_text(row.outcome.ticket_share),
                f"{row.outcome.imbalance:.3f}",
                bytes_text(row.moved_bytes),
                seconds_text(row.outcome.seconds),
                f"{work / row.outcome.seconds:.1f}" if row.outcome.seconds else "",
            )
            for row in self.rows
        ]
        share = percent_text(self.null_tasks / self.tasks) if self.tasks else "0 %"
        nodes = -(-self.ranks // self.ranks_per_node)
        notes = (
            f"{self.tasks} tasks, {share} of them null, each block of an operand with one rank in turn.",
            "Time from a model: what the machine's rates say for each task"
            + (f", scattered by a factor of about {math.exp(self.noise):.2f}" if self.noise else "")
            + ", and tickets that a counter gives to one caller after the other.",
        )
        tables = (Table("Balancers", header, tuple(rows)), *self._measured())
        return Report(f"{self.label} on {self.ranks} ranks, {nodes} nodes", tables, notes)

    def _measured(self) -> tuple[Table, ...]:
        """The table of runs, if there were any."""
        rows = tuple(
            (
                row.outcome.balancer,
                str(row.measured.tickets),
                f"{row.measured.imbalance:.3f}",
                bytes_text(row.measured.moved_bytes),
                seconds_text(row.measured.seconds),
            )
            for row in self.rows
            if row.measured is not None
        )
        return (Table("Measured", ("", "tickets", "imbalance", "moved", "time"), rows),) if rows else ()

    def __repr__(self) -> str:
        return f"Comparison({self.label!r}, {self.ranks} ranks, {self.tasks} tasks, fastest: {self.fastest})"


def list_tasks(plan: Plan, machine: Machine, *, null: bool = True) -> Tasks:
    """One task for each tuple of result tiles, as loops over them would meet them; without null ones if so asked."""
    if not isinstance(plan.work, Product):
        raise InputError(
            f"{plan.label} has no products to share. Expected a contraction of two operands. Balance that instead."
        )
    shape, cells = plan.result.ntiles, plan.work.cells
    count = math.prod(shape) if null else plan.result.nnz_blocks
    if count > MOST_TASKS:
        raise InputError(
            f"{plan.label} has {count} tuples of result tiles. Expected at most {MOST_TASKS}. Use larger tiles."
        )
    place = np.arange(plan.result.nnz_blocks)
    if null and shape:
        place = np.ravel_multi_index(tuple(plan.result.index.T), shape)
    cost = np.zeros(count)
    cost[place] = np.bincount(cells.block, cell_seconds(plan, plan.work, machine), plan.result.nnz_blocks)
    pairs = list_pairs(plan)
    sizes = [operand.pattern.block_sizes * plan.dtype.itemsize for operand in plan.operands]
    blocks = len(sizes[0]) + len(sizes[1])
    target = place[np.concatenate([pairs.target, pairs.target])]
    read = np.unique(target * blocks + np.concatenate([pairs.left, pairs.right + len(sizes[0])]))
    ptr = np.searchsorted(read // blocks, np.arange(count + 1)).astype(np.int64)
    return Tasks(cost, ptr, read % blocks, np.concatenate(sizes))


def compare_deals(
    label: str,
    tasks: Tasks,
    *,
    ranks: int,
    ranks_per_node: int,
    tickets: TicketCost | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> Comparison:
    """Every balancer on the same tasks; see `tilewise.compare_balancers`."""
    ranks, ranks_per_node = parse_ranks(ranks, ranks_per_node)
    if isinstance(noise, bool) or not isinstance(noise, (int, float)) or not 0 <= noise <= MOST_NOISE:
        raise InputError(
            f"noise={noise!r} is no scatter of task times. Expected a number from 0 to {MOST_NOISE:g}, such as 0.3. "
            "Correct it."
        )
    if tickets is not None and not isinstance(tickets, TicketCost):
        raise InputError(
            f"tickets={tickets!r:.40} is no cost of a ticket. Expected a tilewise.plans.pools.TicketCost. Pass "
            "TicketCost(latency, service), in seconds."
        )
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed={seed!r} is no seed. Expected an integer that is not negative. Correct it.")
    scatter = np.random.default_rng(seed).lognormal(0.0, noise, len(tasks.cost)) if noise else 1.0
    seconds = tasks.cost * scatter
    owner = np.arange(len(tasks.block_bytes)) % ranks
    rows = []
    for balancer in BALANCERS:
        outcome = replay(deal(balancer, tasks, ranks, ranks_per_node), seconds, tickets or TicketCost())
        rows.append(Compared(outcome, moved_bytes(tasks, outcome.rank_of_task, owner)))
    null = len(tasks.cost) - len(tasks.nonnull)
    return Comparison(label, ranks, ranks_per_node, len(tasks.cost), null, float(noise), tuple(rows))
