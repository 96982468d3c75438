"""`Program`: the plans of a many-operand expression in order, with the lifetimes of their results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewise.patterns import Pattern
from tilewise.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Step:
    """One plan of a program and the tensors it works on."""

    plan: Plan
    """What is done."""
    inputs: tuple[int, ...]
    """Numbers of the tensors read: the expression's operands first, then results in the order of the steps."""
    result: int
    """Number of the tensor made."""
    frees: tuple[int, ...]
    """Intermediates that are not read again."""


@dataclass(frozen=True, slots=True)
class Program:
    """An einsum of several steps; it has the figures of a `Plan`, added up."""

    label: str
    """The whole expression."""
    operands: tuple[Pattern, ...]
    """Patterns of the operands."""
    steps: tuple[Step, ...]
    """The steps in order."""
    tolerance: float | None
    """The tolerance asked for, split over the steps."""
    dropped_bound: float
    """Bound on the error of the result from everything that the steps drop."""

    @property
    def result(self) -> Pattern:
        """The pattern of the result."""
        return self.steps[-1].plan.result

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Element type of the result."""
        return self.steps[-1].plan.dtype

    @property
    def workers(self) -> int:
        """Workers the projection is made for."""
        return self.steps[-1].plan.workers

    @property
    def flops(self) -> int:
        """Floating-point operations of all steps."""
        return sum(step.plan.flops for step in self.steps)

    @property
    def screened_flops(self) -> int:
        """Floating-point operations saved by screening."""
        return sum(step.plan.screened_flops for step in self.steps)

    @property
    def tasks(self) -> int:
        """Pieces of work that are handed to workers."""
        return sum(step.plan.tasks for step in self.steps)

    @property
    def products(self) -> int:
        """Block products that are done."""
        return sum(step.plan.products for step in self.steps)

    @property
    def calls(self) -> int:
        """Dense products after neighbouring k blocks were merged."""
        return sum(step.plan.calls for step in self.steps)

    @property
    def seconds(self) -> float:
        """Projected time of all steps."""
        return sum(step.plan.seconds for step in self.steps)

    @property
    def peak_bytes(self) -> int:
        """Bytes that the run adds at its peak: intermediates that live, the result and the buffers of a step."""
        alive: dict[int, int] = {}
        peak = 0
        for step in self.steps:
            peak = max(peak, sum(alive.values()) + step.plan.peak_bytes)
            alive[step.result] = step.plan.result_bytes
            for number in step.frees:
                alive.pop(number, None)
        return peak
