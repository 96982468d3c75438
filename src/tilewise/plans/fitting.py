"""Steps that keep to one budget together, intermediates that are alive included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewise.errors import MemoryBudgetError
from tilewise.machine import Machine
from tilewise.plans.budget import is_asked, parse_memory
from tilewise.plans.phases import Goal, Source, can_spill, plan_phases
from tilewise.plans.plan import Plan
from tilewise.plans.program import Step

SMALL_BYTES = 256 << 20
"""Where no budget was asked for, runs that add less than this are not compared with the free memory."""


def within_budget(
    steps: Sequence[Step],
    sources: Sequence[Source],
    memory: int | str | None,
    scratch: str | None,
    into_out: bool = False,
) -> tuple[Step, ...]:
    """Steps that keep to a budget together, intermediates that are alive included.

    Steps whose operands are in memory stay as they are where no budget was asked for and they are small.

    Parameters
    ----------
    steps : sequence of Step
        The steps as planned without a budget.
    sources : sequence of Source
        The operands of the whole expression.
    memory : int, str or None
        The budget as the user gave it.
    scratch : str, optional
        Folder for results that do not fit.
    into_out : bool
        Whether the last step adds to a tensor that is in memory.
    """
    asked = is_asked(memory)
    needed = sum(step.plan.peak_bytes for step in steps)
    free = not asked and all(source.resident for source in sources)
    if free and needed < SMALL_BYTES:
        return tuple(steps)
    budget = parse_memory(memory)
    if free and needed <= budget:
        return tuple(steps)
    fitting = _Fitting(tuple(steps), tuple(sources), asked, scratch, into_out, Machine.measured().copy_rate)
    try:
        return fitting.fit(budget)
    except MemoryBudgetError as error:
        least, first = error.least_bytes, str(error)  # the error itself would keep all frames it has passed alive
    while True:  # what the first step that does not fit needs may not be enough for a later one
        try:
            fitting.fit(least)
        except MemoryBudgetError as error:
            least = error.least_bytes
        else:
            beside = (
                "" if len(steps) == 1 else f" With what other steps hold and need, {least} bytes do for all of them."
            )
            raise MemoryBudgetError(f"{first}{beside}", budget, least)


def are_fetched_from(steps: Sequence[Step], sources: Sequence[Source]) -> bool:
    """Whether the phases of steps, where they have some, were planned for operands that lie where these do."""
    for step in steps:
        if step.plan.phases is None:
            continue
        for number, planned in zip(step.inputs, step.plan.phases.sources, strict=True):
            if number < len(sources) and not planned.is_alike(sources[number]):
                return False
    return True


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Steps that are to keep to a budget together."""

    steps: tuple[Step, ...]
    """The steps as planned without one."""
    sources: tuple[Source, ...]
    """The operands of the whole expression."""
    asked: bool
    """Whether a budget was named; else steps that fit as they are stay so."""
    scratch: str | None
    """Folder for results that do not fit."""
    into_out: bool
    """Whether the last step adds to a tensor that is in memory."""
    copy_rate: float
    """GB/s at which blocks are brought."""

    def fit(self, budget: int) -> tuple[Step, ...]:
        """Steps that keep to a budget, or the error of the first one that cannot.

        An intermediate stays in memory if it can.  If a later step then lacks room, the largest one of those that it
        finds there goes to a scratch file after all.
        """
        spilled: frozenset[int] = frozenset()
        while True:
            try:
                return self._fit(budget, spilled)
            except _TooLittleLeft as error:
                if error.largest is None:
                    raise MemoryBudgetError(str(error), budget, error.least_bytes) from None
                spilled |= {error.largest}

    def _fit(self, budget: int, spilled: frozenset[int]) -> tuple[Step, ...]:
        known = dict(enumerate(self.sources))
        alive: dict[int, int] = {}
        made = []
        for step in self.steps:
            own = tuple(known[number] for number in step.inputs)
            held = sum(alive.values())
            plan = step.plan
            if self._needs_phases(plan, own, budget - held) or step.result in spilled:
                try:
                    phases = plan_phases(plan, own, budget - held, self.copy_rate, self._goal(step, spilled))
                except MemoryBudgetError as error:
                    raise self._too_little(error, budget, alive) from None
                plan = replace(plan, budget=budget - held, phases=phases, scratch=self.scratch)
            made.append(replace(step, plan=plan))
            known[step.result] = Source(resident=not plan.spills)
            alive[step.result] = plan.kept_bytes
            for number in step.frees:
                alive.pop(number, None)
        return tuple(made)

    def _needs_phases(self, plan: Plan, own: Sequence[Source], room: int) -> bool:
        return self.asked or plan.peak_bytes > room or not all(source.resident for source in own)

    def _goal(self, step: Step, spilled: frozenset[int]) -> Goal:
        if step.result in spilled:
            return "scratch"
        return "out" if self.into_out and step is self.steps[-1] else "auto"

    def _too_little(self, error: MemoryBudgetError, budget: int, alive: Mapping[int, int]) -> _TooLittleLeft:
        """The error of one step, with what others hold and which of these could be elsewhere."""
        held = sum(alive.values())
        plans = {step.result: step.plan for step in self.steps}
        movable = [number for number, size in alive.items() if size and can_spill(plans[number])]
        beside = f" Other tensors hold {held} of the {budget} bytes meanwhile." if held else ""
        largest = max(movable, key=lambda number: alive[number], default=None)
        return _TooLittleLeft(f"{error}{beside}", budget, error.least_bytes + held, largest)


class _TooLittleLeft(MemoryBudgetError):
    """A step does not fit beside what others hold."""

    def __init__(self, message: str, budget: int, least_bytes: int, largest: int | None) -> None:
        super().__init__(message, budget, least_bytes)
        self.largest = largest
