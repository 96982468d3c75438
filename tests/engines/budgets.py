"""Plans that are made and run within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tilewise as tw


def run_within(
    budget: int, make_plan: Callable[..., tw.Plan | tw.Program], tensors: Sequence[tw.BlockTensor]
) -> tuple[list[tw.Plan], int, tw.BlockTensor]:
    """Plan and run; should the plan, or then the run, name a least that it needs, with that.

    Returns
    -------
    tuple
        The plans of the steps, the budget that was enough, and the result.
    """
    for refusals in range(3):
        try:
            plan = make_plan(memory=budget)
            result = tw.execute(plan, *tensors)
        except tw.MemoryBudgetError as error:
            if refusals == 2 or error.least_bytes <= budget:
                raise
            budget = error.least_bytes
        else:
            return [step.plan for step in plan.steps] if isinstance(plan, tw.Program) else [plan], budget, result
    raise AssertionError
