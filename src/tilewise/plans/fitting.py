"""Steps that keep to one budget together, intermediates that are alive included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewise.errors import MemoryBudgetError
from tilewise.machine import Machine
from tilewise.plans.budget import is_asked, parse_memory
from tilewise.plans.phases import Source, plan_phases
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
    rate = Machine.measured().copy_rate
    try:
        return _fit_steps(steps, sources, budget, rate, asked, scratch, into_out)
    except MemoryBudgetError as error:
        least, first = error.least_bytes, error
    while True:  # what the first step that does not fit needs may not be enough for a later one
        try:
            _fit_steps(steps, sources, least, rate, asked, scratch, into_out)
        except MemoryBudgetError as error:
            least = error.least_bytes
        else:
            beside = (
                "" if len(steps) == 1 else f" With what other steps hold and need, {least} bytes do for all of them."
            )
            raise MemoryBudgetError(f"{first}{beside}", budget, least)


def _fit_steps(
    steps: Sequence[Step],
    sources: Sequence[Source],
    budget: int,
    copy_rate: float,
    asked: bool,
    scratch: str | None,
    into_out: bool,
) -> tuple[Step, ...]:
    """Steps that keep to a budget, or the error of the first one that cannot."""
    known = dict(enumerate(sources))
    alive: dict[int, int] = {}
    made = []
    for step in steps:
        own = tuple(known[number] for number in step.inputs)
        held = sum(alive.values())
        plan = step.plan
        if asked or plan.peak_bytes > budget - held or not all(source.resident for source in own):
            try:
                phases = plan_phases(plan, own, budget - held, copy_rate, into_out and step is steps[-1])
            except MemoryBudgetError as error:
                beside = f" Other tensors hold {held} of the {budget} bytes meanwhile." if held else ""
                raise MemoryBudgetError(f"{error}{beside}", budget, error.least_bytes + held) from None
            plan = replace(plan, budget=budget - held, phases=phases, scratch=scratch)
        made.append(replace(step, plan=plan))
        known[step.result] = Source(resident=not plan.spills)
        alive[step.result] = plan.kept_bytes
        for number in step.frees:
            alive.pop(number, None)
    return tuple(made)
