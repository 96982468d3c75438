"""Which schedule of a four-index transform is run: the fastest of those that fit."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewise.errors import InputError, MemoryBudgetError
from tilewise.plans.explain import bytes_text, to_html, to_text
from tilewise.plans.transform.deal import Deal
from tilewise.plans.transform.problem import Problem
from tilewise.plans.transform.report import Measured, transform_report
from tilewise.plans.transform.schedules import SCHEDULES, Candidate, Cost, Variant, cost_of, list_variants

DISK_RATE = 1e9
"""Bytes per second between memory and scratch that most disks reach."""


NETWORK_RATE = 1e9
"""Bytes per second of a rank between nodes that most networks reach."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a rank does the parts of a transform, all its workers together."""

    flops: float
    """Floating-point operations per second of dense products."""
    integrals: float
    """Elements of A per second."""
    disk: float = DISK_RATE
    """Bytes per second to and from scratch."""
    network: float = NETWORK_RATE
    """Bytes per second between nodes, of each rank."""

    def __post_init__(self) -> None:
        if not min(self.flops, self.integrals, self.disk, self.network) > 0:
            raise InputError(
                f"The rates are {self.flops} flops, {self.integrals} integrals, {self.disk} and {self.network} bytes "
                "per second. Expected positive numbers. Correct them."
            )

    def seconds(self, cost: Cost, ranks: int = 1) -> float:
        """Time of a transform on so many ranks, each of them as fast as this."""
        computed = (cost.flops * cost.imbalance / self.flops + cost.integrals / self.integrals) / ranks
        moved = (cost.moved_bytes - cost.behind_bytes) / self.disk + cost.between_bytes / (ranks * self.network)
        # The first half is about half of what is computed.
        return computed + moved + max(cost.behind_bytes / self.disk - computed / 2, 0)


@dataclass(frozen=True, eq=False, repr=False)
class TransformPlan:
    """What a four-index transform will do, and what the other schedules would have cost."""

    problem: Problem
    """Functions, orbitals and the blocks of the result."""
    chosen: Candidate
    """What is run."""
    others: tuple[Candidate, ...]
    """For each other schedule, its fastest way that fits, or the one with the least memory."""
    budget: int
    """Bytes that may be held."""
    workers: int
    """Workers of a rank."""
    deal: Deal
    """Who does what."""
    rates: Rates
    """What the times were projected with."""
    runs: list[Measured] = field(default_factory=list)
    """What runs measured, the latest last."""

    @property
    def schedule(self) -> str:
        """Name of the schedule."""
        return self.chosen.variant.schedule

    @property
    def variant(self) -> Variant:
        """The schedule with everything decided."""
        return self.chosen.variant

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return self.chosen.cost.flops

    @property
    def integrals(self) -> int:
        """Elements of A that are made, counted each time."""
        return self.chosen.cost.integrals

    @property
    def peak_bytes(self) -> int:
        """Most bytes that are held."""
        return self.chosen.cost.peak_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes between memory and scratch."""
        return self.chosen.cost.moved_bytes

    @property
    def between_bytes(self) -> int:
        """Bytes that go from node to node."""
        return self.chosen.cost.between_bytes

    @property
    def imbalance(self) -> float:
        """Most flops of a rank over the mean."""
        return self.chosen.cost.imbalance

    @property
    def seconds(self) -> float:
        """Projected time."""
        return self.chosen.seconds

    def explain(self) -> str:
        """All schedules with their costs, and why this one was taken, as plain text."""
        return to_text(transform_report(self))

    def _repr_html_(self) -> str:
        return to_html(transform_report(self))

    def __repr__(self) -> str:
        peak, budget = bytes_text(self.peak_bytes), bytes_text(self.budget)
        return f"TransformPlan({self.schedule!r}, {self.flops:.3g} flops, {peak} of {budget})"


def plan_transform(
    problem: Problem,
    budget: int,
    workers: int,
    rates: Rates,
    schedule: str = "auto",
    deal: Deal | None = None,
    *,
    reproducible: bool = False,
) -> TransformPlan:
    """Choose how to run a transform.

    Parameters
    ----------
    problem : Problem
        What is transformed.
    budget : int
        Bytes that a rank may hold.
    workers : int
        Workers of a rank.
    rates : Rates
        What times are projected with.
    schedule : str
        ``"auto"`` or one of `SCHEDULES`.
    deal : Deal, optional
        How several ranks share it; one rank by default.
    reproducible : bool
        Take only ways that give the same bits, whatever ranks and memory there are: those of ``fused12-34`` that make
        integrals when they need them.

    Notes
    -----
    The hybrid of Rajbhandari et al. (2017), 7.4, takes the unfused schedule wherever it fits. Here a schedule is taken
    by its projected time, from measured rates: `fused12-34` does the same products as `unfused` in less memory.
    """
    if schedule not in ("auto", *SCHEDULES):
        names = ", ".join(("auto", *SCHEDULES))
        raise InputError(f"schedule={schedule!r} is unknown. Expected one of {names}. Correct the name.")
    shared = Deal(problem) if deal is None else deal
    found: dict[str, list[Candidate]] = {name: [] for name in SCHEDULES}
    every = list_variants(problem, shared.ranks)
    for variant in filter(_has_fixed_bits, every) if reproducible else every:
        cost = cost_of(problem, variant, workers, shared)
        seconds, fits = rates.seconds(cost, shared.ranks), cost.peak_bytes <= budget
        found[variant.schedule].append(Candidate(variant, cost, seconds, fits))
    best = {name: _best(candidates) for name, candidates in found.items() if candidates}
    if schedule not in ("auto", *best):
        raise InputError(
            f"schedule={schedule!r} was given with reproducible=True. Expected 'auto' or {', '.join(best)}. Leave one "
            "of them away."
        )
    wanted = list(best.values()) if schedule == "auto" else [best[schedule]]
    chosen = _best(wanted)
    if not chosen.fits:
        raise _too_little(schedule, budget, chosen)
    others = tuple(candidate for candidate in best.values() if candidate is not chosen)
    return TransformPlan(problem, chosen, others, budget, workers, shared, rates)


def _has_fixed_bits(variant: Variant) -> bool:
    """(pq|rs) and (rs|pq) may differ in their last bits, so integrals are not kept to serve as both."""
    return variant.schedule == "fused12-34" and not variant.keeps


def _best(candidates: list[Candidate]) -> Candidate:
    """The fastest that fits, else the one with the least memory."""
    fitting = [candidate for candidate in candidates if candidate.fits]
    if fitting:
        return min(fitting, key=lambda candidate: (candidate.seconds, candidate.cost.peak_bytes))
    return min(candidates, key=lambda candidate: candidate.cost.peak_bytes)


def _too_little(schedule: str, budget: int, least: Candidate) -> MemoryBudgetError:
    stage, size = max(least.cost.live, key=lambda item: item[1])
    what = "Every schedule of the transform" if schedule == "auto" else f"The schedule {schedule!r}"
    remedy = "" if schedule == "auto" else ", or schedule='auto'"
    return MemoryBudgetError(
        f"{what} needs more than the budget of {budget} bytes ({bytes_text(budget)}): the least is {size} bytes "
        f"({bytes_text(size)}), with {least.variant.schedule} ({str(least.variant) or 'all at once'}), for {stage}. "
        f"Expected a budget at least as large. Give memory={size}{remedy}, or use smaller tiles.",
        budget,
        size,
    )
