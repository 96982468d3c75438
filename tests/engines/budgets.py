"""Plans that are made and run within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import tilewise as tw

Result = TypeVar("Result")


def run_within(
    budget: int, make_plan: Callable[..., tw.Plan | tw.Program], tensors: Sequence[tw.BlockTensor]
) -> tuple[list[tw.Plan], int, tw.BlockTensor]:
    """Plan and run; should the plan, or then the run, name a least that it needs, with that.

    Returns
    -------
    tuple
        The plans of the steps, the budget that was enough, and the result.
    """
    plan, budget = _retried(lambda memory: make_plan(memory=memory), budget)

    def run(memory: int) -> tuple[list[tw.Plan], tw.BlockTensor]:
        made = plan if memory == budget else make_plan(memory=memory)
        steps = [step.plan for step in made.steps] if isinstance(made, tw.Program) else [made]
        try:
            return steps, tw.execute(made, *tensors)
        except tw.MemoryBudgetError:
            assert not any(step.runs for step in steps), "refused after a step was run"
            raise

    (steps, result), enough = _retried(run, budget)
    return steps, enough, result


def _retried(work: Callable[[int], Result], budget: int) -> tuple[Result, int]:
    """Do something within a budget, or within the least that it names."""
    try:
        return work(budget), budget
    except tw.MemoryBudgetError as error:
        least = error.least_bytes
    assert least > budget
    return work(least), least
