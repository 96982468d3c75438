"""`Program`: the plans of a many-operand expression in order, with the lifetimes of their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewise.costs import compulsory_bytes, fused_bound_bytes
from tilewise.machine import Machine, check_machine
from tilewise.patterns import Pattern
from tilewise.plans.explain import program_report, to_html, to_text
from tilewise.plans.plan import Plan
from tilewise.plans.projection import needed_bytes


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


@dataclass(frozen=True, slots=True, repr=False)
class Program:
    """An einsum of several steps; it has the figures of a `Plan`, added up.

    Examples
    --------
    >>> import tilewise as tw
    >>> i = tw.Space([2, 3])
    >>> p = tw.Pattern.dense((i, i))
    >>> program = tw.plan("ij,jk,kl->il", p, p, p)
    >>> [step.plan.label for step in program.steps], program.flops
    (['jk,kl->jl', 'ij,jl->il'], 500)
    """

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
        return self._peak([step.plan.peak_bytes for step in self.steps])

    @property
    def measured_bytes(self) -> int:
        """Bytes that the latest run added at its peak; zero if there was none."""
        if not all(step.plan.runs for step in self.steps):
            return 0
        return self._peak([step.plan.runs[-1].buffer_bytes for step in self.steps])

    def _peak(self, added: Sequence[int]) -> int:
        """The most bytes at a time, from what each step adds to the intermediates that live."""
        alive: dict[int, int] = {}
        peak = 0
        for step, size in zip(self.steps, added, strict=True):
            peak = max(peak, sum(alive.values()) + size)
            alive[step.result] = step.plan.kept_bytes
            for number in step.frees:
                alive.pop(number, None)
        return peak

    @property
    def moved_bytes(self) -> int:
        """Bytes that all steps move between memory and the caches near the workers."""
        return sum(step.plan.moved_bytes for step in self.steps)

    @property
    def lower_bound_bytes(self) -> int:
        """Bytes that the steps move at the least, however they are interleaved (Fusion Lemma, see `costs.bounds`)."""
        read: dict[int, list[int]] = {id(pattern): [] for pattern in self.operands}
        for step in self.steps:
            for operand, needed in needed_bytes(step.plan).items():
                if operand in read:
                    read[operand].append(needed)
        once = [max(each, default=0) for each in read.values()]
        made = {step.result: step.plan.result_bytes for step in self.steps}
        passed = [made[number] for step in self.steps for number in set(step.inputs) if number in made]
        compulsory = compulsory_bytes(once, self.steps[-1].plan.result_bytes)
        # What several steps read may come once for all of them, while the bound of each counts it.
        again = sum(map(sum, read.values())) - sum(once)
        return fused_bound_bytes(compulsory, [*(step.plan.lower_bound_bytes for step in self.steps), -again], passed)

    @property
    def imbalance(self) -> float:
        """The largest worker's share of the work over the mean: that of the steps, weighted by their time."""
        seconds = self.seconds
        return sum(step.plan.imbalance * step.plan.seconds for step in self.steps) / seconds if seconds else 1.0

    def on(self, machine: Machine) -> Program:
        """The program with its projection made for another machine."""
        check_machine(machine)
        return replace(self, steps=tuple(replace(step, plan=step.plan.on(machine)) for step in self.steps))

    def explain(self) -> str:
        """What the steps do and cost, as tables in plain text; after a run with the measured times beside them."""
        return to_text(program_report(self._resolved()))

    def _repr_html_(self) -> str:
        return to_html(program_report(self._resolved()))

    def _resolved(self) -> Program:
        """The program with its machine looked up once for all steps."""
        return self if self.steps[0].plan.machine is not None else self.on(Machine.measured())

    def __repr__(self) -> str:
        return f"Program({self.label!r}, {self.dtype.name}, {len(self.steps)} steps, {self.flops:.3g} flops)"
