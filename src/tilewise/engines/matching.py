"""Whether steps suit the engine that runs them and the tensors that they are given, and steps that do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tilewise.engines.streaming import sources_of
from tilewise.patterns import Pattern
from tilewise.plans import Plan, Step
from tilewise.plans.fitting import are_fetched_from, within_budget
from tilewise.plans.layout import EVERYBODY, largest_share, make_layout
from tilewise.plans.phases import Source
from tilewise.plans.shared_steps import Given, are_shared, budget_of_rank, share_steps
from tilewise.plans.sharing import Request
from tilewise.plans.steps import reinspected
from tilewise.plans.traffic import NOBODY
from tilewise.tensors import BlockTensor, Engine

Dtype = np.dtype[np.generic]
Ints = npt.NDArray[np.int64]
Operand = BlockTensor | Pattern


def list_sources(operands: Sequence[Operand], dtype: Dtype) -> list[Source]:
    """Where each operand's elements are; those of a pattern are taken to be in memory."""
    return [sources_of([o], dtype)[0] if isinstance(o, BlockTensor) else Source(resident=True) for o in operands]


def owner_of(operand: Operand, ranks: int, runner: Engine) -> Ints:
    """Who has each stored block of an operand; what is not on these ranks is taken to go round."""
    if isinstance(operand, Pattern):
        return make_layout("cyclic", operand, ranks).owner
    if not operand.in_memory:
        return np.full(operand.pattern.nnz_blocks, NOBODY)
    if runner.ranks != ranks:
        return make_layout("cyclic", operand.pattern, ranks).owner
    owner = operand.arena.owner
    return np.full(operand.pattern.nnz_blocks, EVERYBODY) if owner is None else owner


def list_given(operands: Sequence[Operand], dtype: Dtype, ranks: int, runner: Engine) -> list[Given]:
    """What ranks have of each operand, and what they need to use it."""
    made = [source.made_bytes for source in list_sources(operands, dtype)]
    owners = [owner_of(operand, ranks, runner) for operand in operands]
    return [
        Given(owner, size, _copied_bytes(operand, owner, dtype, ranks, runner))
        for operand, owner, size in zip(operands, owners, made, strict=True)
    ]


def _copied_bytes(operand: Operand, owner: Ints, dtype: Dtype, ranks: int, runner: Engine) -> int:
    """Bytes that a rank copies of an operand of another element type, or in the memory of other nodes."""
    if isinstance(operand, Pattern) or not operand.in_memory:
        return 0
    sizes, types = operand.pattern.block_sizes, []
    if operand.arena.owner is not None and operand.engine.ranks_per_node != runner.ranks_per_node:
        types.append(operand.dtype)
    if operand.dtype != dtype:
        types.append(dtype)
    return sum(largest_share(owner, sizes * each.itemsize, ranks) for each in types)


def are_suited(
    steps: Sequence[Step], operands: Sequence[BlockTensor], dtype: Dtype, into_out: bool, runner: Engine
) -> bool:
    """Whether an engine can run steps on these tensors as they are; if they have a budget, within it."""
    plans = [step.plan for step in steps]
    if dtype != plans[-1].dtype or (into_out and plans[-1].spills):
        return False
    if all(plan.budget is None for plan in plans):
        return True
    if any(plan.workers != runner.workers or _buffers(plan) != _buffers(runner.prepare(plan)) for plan in plans):
        return False
    if runner.ranks > 1:
        given = list_given(operands, dtype, runner.ranks, runner)
        return are_shared(steps, given, _request(plans[-1], runner))
    return all(plan.sharing is None for plan in plans) and are_fetched_from(steps, list_sources(operands, dtype))


def _buffers(plan: Plan) -> tuple[str, int, int]:
    """The loop of a plan, and what it and a worker hold besides operands and result."""
    return plan.kernel, plan.packed_bytes, plan.worker_bytes


def _request(plan: Plan, runner: Engine) -> Request:
    """How the ranks of an engine are asked to share a plan."""
    asked = Request(1, 1) if plan.request is None else plan.request
    return asked.on(runner.ranks, runner.ranks_per_node, runner.replicates)


def fit_again(
    steps: Sequence[Step], operands: Sequence[Operand], dtype: Dtype, into_out: bool, runner: Engine
) -> tuple[Step, ...]:
    """Steps as an engine can run them on these tensors, within the budget that they have."""
    made = tuple(replace(step, plan=_anew(step.plan, dtype, runner)) for step in steps)
    if all(step.plan.budget is None for step in steps):
        return made
    # Nothing is held beside the first step; without a budget of its own, none was asked for.
    first, last = steps[0].plan, steps[-1].plan
    if runner.ranks == 1:
        return within_budget(made, list_sources(operands, dtype), first.budget, first.scratch, into_out)
    given, request = list_given(operands, dtype, runner.ranks, runner), _request(last, runner)
    budget = budget_of_rank(first.budget, given, request)
    return share_steps(made, given, request, budget, first.machine or runner.machine)


def _anew(plan: Plan, dtype: Dtype, runner: Engine) -> Plan:
    """A plan for an element type as an engine runs it, without a budget."""
    typed = plan if plan.dtype == dtype else reinspected(plan, dtype)
    free = replace(typed, budget=None, phases=None, placement=None, sharing=None, workers=runner.workers)
    return runner.prepare(free)
