"""Steps that ranks share one after the other: who has what in between, and a budget for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from tilewise.errors import MemoryBudgetError
from tilewise.machine import Machine
from tilewise.plans.budget import is_asked, parse_memory
from tilewise.plans.layout import EVERYBODY
from tilewise.plans.program import Step
from tilewise.plans.sharing import FEW_RANKS, PLANNED, Request, Sharing, fit_budget, is_worth_sharing, plan_sharing
from tilewise.plans.traffic import NOBODY

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Given:
    """What ranks have of an operand of the whole expression."""

    owner: Ints
    """Who has each stored block."""
    made_bytes: int = 0
    """Bytes of the largest block, until it is copied, if a function makes them."""
    copied_bytes: int = 0
    """Bytes that a rank has to copy before it can be used."""


def budget_of_rank(memory: int | str | None, given: Sequence[Given], request: Request) -> int | None:
    """What each rank may add: what was asked for, or its share of what is free if blocks are made; else no limit."""
    if is_asked(memory):
        return parse_memory(memory)
    if any(len(each.owner) and each.owner[0] == NOBODY for each in given):
        return parse_memory(None) // min(request.ranks, request.ranks_per_node)
    return None


def share_steps(
    steps: Sequence[Step],
    given: Sequence[Given],
    request: Request,
    budget: int | None = None,
    machine: Machine | None = None,
) -> tuple[Step, ...]:
    """Steps with how ranks share each; results stay where they are computed.

    With a budget, only the tasks of the last step are drawn or dealt by what they took before.

    Parameters
    ----------
    steps : sequence of Step
        The steps.
    given : sequence of Given
        The operands.
    request : Request
        How ranks are asked to share them.
    budget : int, optional
        Bytes that a step may add on a rank.
    machine : Machine, optional
        Whose rates are used to choose.
    """
    share = partial(_share_within, steps, given, request, machine=machine)
    if budget is None:
        return share(None)
    try:
        return share(budget)
    except MemoryBudgetError as error:
        # The error itself would keep all frames that it has passed alive.
        least, needed, refusal = error.least_bytes, error.least_bytes, str(error)
    while True:  # with more memory, a step may leave its result where the next one needs more
        try:
            share(least)
            break
        except MemoryBudgetError as error:
            least = error.least_bytes
    if least > needed:
        refusal = (
            f"The steps need at least {least} bytes on one of {request.ranks} ranks. The budget of each is {budget} "
            "bytes. Give more with memory=, or use more ranks."
        )
    raise MemoryBudgetError(refusal, budget, least)


def are_shared(steps: Sequence[Step], given: Sequence[Given], request: Request) -> bool:
    """Whether steps were shared among the ranks of a request, with operands that lie where these do."""

    def is_shared(step: Step) -> bool:
        sharing = step.plan.sharing
        if sharing is None:
            return False
        planned = zip(step.inputs, sharing.traffic.owners, strict=True)
        owners = [given[number].owner if number < len(given) else owner for number, owner in planned]
        return sharing.fits(_asked(step, given, request), owners)

    return all(map(is_shared, steps))


def asked_with(request: Request, given: Sequence[Given]) -> Request:
    """What is asked of ranks, with what the operands of a step take."""
    made = max((each.made_bytes for each in given), default=0)
    return replace(request, made_bytes=made, copied_bytes=sum(each.copied_bytes for each in given))


def _asked(step: Step, given: Sequence[Given], request: Request) -> Request:
    return asked_with(request, [given[number] for number in set(step.inputs) if number < len(given)])


def _share_within(
    steps: Sequence[Step], given: Sequence[Given], request: Request, budget: int | None, *, machine: Machine | None
) -> tuple[Step, ...]:
    """Steps with how ranks share each; the error of the step that needs most, if there is not enough memory."""
    where, alive = {number: each.owner for number, each in enumerate(given)}, dict[int, int]()
    made, refused = [], []
    for step in steps:
        inputs, plan = [where[number] for number in step.inputs], step.plan
        if budget is None and not is_worth_sharing(plan, inputs):
            where[step.result] = np.full(plan.result.nnz_blocks, EVERYBODY)
            made.append(step)
            continue
        asked, beside, fit = _asked(step, given, request), sum(alive.values()), None
        if budget is not None and step is not steps[-1] and request.balancer not in PLANNED:
            # What the next step fetches, and what stays beside it, would depend on who gets what.
            asked = replace(asked, balancer="static")
        if budget is not None and request.ranks <= FEW_RANKS:
            fit = partial(fit_budget, budget=budget, peak_of=partial(_peak_beside, beside=beside))
        try:
            sharing = plan_sharing(plan, asked, inputs, machine=machine, fit=fit)
        except MemoryBudgetError as error:
            refused.append(error)
            sharing = plan_sharing(plan, asked, inputs, machine=machine)
        where[step.result] = sharing.result_owner
        alive[step.result] = sharing.kept_bytes
        for number in step.frees:
            alive.pop(number, None)
        room = None if budget is None else max(budget - beside, 0)
        made.append(replace(step, plan=replace(plan, sharing=sharing, budget=room)))
    if refused:
        raise max(refused, key=lambda error: error.least_bytes)
    return tuple(made)


def _peak_beside(sharing: Sharing, beside: int) -> int:
    """The largest peak of a rank that holds intermediates besides."""
    return sharing.largest_peak(sharing.plan.workers) + beside
