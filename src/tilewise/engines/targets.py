"""Where the result of a run goes: new memory, or a tensor that is given; its norms when it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.errors import InputError
from tilewise.patterns import Pattern
from tilewise.plans import Plan
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.memory import Memory
from tilewise.tensors.protocol import Scalar
from tilewise.tensors.storage import Arena, block_offsets, checked_norms

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Target:
    """Where the result of a run goes."""

    tensor: BlockTensor
    """The tensor."""
    slots: Ints | None
    """Place of each result block in it; None if it has the result's own pattern."""
    fresh: bool
    """Whether its blocks hold nothing yet, not even zeros."""
    norms: Floats
    """Norm bounds of its blocks before the run."""

    def finish(self, squares: Floats, beta: Scalar) -> None:
        """Set the norms, from the sum of squares of each result block; other blocks of a given tensor were scaled."""
        self.settle(checked_norms(squares, self.tensor.arena, self.slots), beta)

    def settle(self, norms: Floats, beta: Scalar) -> None:
        """Set the norms, given those of the result blocks."""
        if self.slots is not None:
            slack = abs(beta) * (1 + 4 * float(np.finfo(self.tensor.dtype).eps)) if beta != 1 else 1.0
            every = np.where(self.norms == 0, 0.0, self.norms * slack) if beta else np.zeros(len(self.norms))
            every[self.slots] = norms
            norms = every
        self.tensor.replace_norms(norms)


def make_target(engine: Engine, memory: Memory, plan: Plan, out: BlockTensor | None, account: Account | None) -> Target:
    """A target for a plan's result; plain loops add to zeros, the others write what was not there."""
    if out is not None:
        return Target(out, find_slots(plan.result, out.pattern), False, out.pattern.norms)
    if account is not None:
        account.take(plan.result_bytes, "The result")
    fresh = plan.kernel != "loops"
    if fresh:
        arena = Arena(memory.empty(plan.result.nnz_elements, plan.dtype), block_offsets(plan.result))
    else:
        arena = Arena.allocate(plan.result, plan.dtype, zero=True)
    return Target(BlockTensor(plan.result, arena, engine), None, fresh, plan.result.norms)


def scale_target(target: Target, beta: Scalar) -> None:
    """Scale a tensor that was given; should the run be interrupted, nothing is known of its blocks."""
    if target.slots is None:
        return
    target.tensor.replace_norms(np.full(len(target.norms), np.inf))
    own = target.tensor.arena.own
    if beta == 0:
        own[...] = 0
    elif beta != 1:
        own *= own.dtype.type(beta)


def find_slots(result: Pattern, given: Pattern) -> Ints:
    """The place of each result block in the tensor given as out."""
    if result.index is given.index:
        return np.arange(result.nnz_blocks)
    slots = given.find(result.index)
    if len(slots) and slots.min() < 0:
        missing = tuple(result.index[np.argmin(slots)].tolist())
        raise InputError(
            f"out= has no block {missing}, which the result needs. Expected a tensor that stores every block of the "
            "result. Make it with tw.zeros(pattern=plan.result), or a pattern that holds it."
        )
    return slots
