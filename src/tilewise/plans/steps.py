"""From an expression of any number of operands to planned steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewise.errors import InputError
from tilewise.expressions import Expression, Reduction, find_order, lower_pair, lower_single
from tilewise.patterns import Pattern, without_symmetry
from tilewise.plans.inspector import inspect_product, reinspect
from tilewise.plans.plan import Plan, Sum
from tilewise.plans.program import Step
from tilewise.plans.propagation import product_error, reduced_error
from tilewise.plans.reduction import inspect_reduction

Pair = tuple[int, int, Expression]
"""Numbers of two tensors, and the expression of their product."""

ATTEMPTS = 4
"""How often shares of a tolerance are reduced before nothing is dropped at all."""


@dataclass(slots=True)
class _Draft:
    """Steps being planned: tensors are numbered, operands of the expression first."""

    patterns: list[Pattern]
    """Pattern of each tensor."""
    errors: list[float]
    """Bound on the error of each tensor: what operands bring along and what steps drop."""
    dtype: np.dtype[np.generic]
    """Element type of all results."""
    workers: int
    """Workers the projection is made for."""
    given: int
    """How many tensors are operands of the expression."""
    steps: list[Step] = field(default_factory=list)
    """What is planned so far."""

    def add(self, plan: Plan, *inputs: int) -> int:
        """Append a step; the number of its result."""
        number = len(self.patterns)
        frees = tuple(n for n in dict.fromkeys(inputs) if n >= self.given)
        self.steps.append(Step(plan, inputs, number, frees))
        self.patterns.append(plan.result)
        self.errors.append(step_error(plan, [self.patterns[i] for i in inputs], [self.errors[i] for i in inputs]))
        return number

    def reduce(self, at: int, reduction: Reduction | None) -> int:
        """Plan what is done to one operand before a product; the number of what the product reads."""
        if reduction is None:
            return at
        plan = inspect_reduction(reduction, self.patterns[at], self.dtype, workers=self.workers)
        return self.add(plan, at)

    def multiply(self, left: int, right: int, expression: Expression, tolerance: float | None) -> int:
        """Plan a product and what its operands need first; the number of its result."""
        pair = lower_pair(expression)
        a, b = self.reduce(left, pair.left), self.reduce(right, pair.right)
        plan = inspect_product(
            pair.contraction, self.patterns[a], self.patterns[b], self.dtype, tolerance=tolerance, workers=self.workers
        )
        return self.add(plan, a, b)


def plan_steps(
    expression: Expression,
    patterns: Sequence[Pattern],
    dtype: np.dtype[np.generic],
    tol: float | None,
    errors: Sequence[float],
    workers: int,
) -> tuple[tuple[Step, ...], float]:
    """Plan reductions and products in order.

    The tolerance is shared evenly by the products; a product's share is divided by what the operands that are
    not part of it can make of an error.

    Returns
    -------
    tuple
        The steps, and a bound on the error of the result.
    """

    def draft() -> _Draft:
        return _Draft(list(patterns), list(errors), dtype, workers, len(patterns))

    if len(patterns) == 1:
        made = draft()
        made.reduce(0, lower_single(expression))
    else:
        made = _plan_products(draft, _order(expression, patterns), patterns, tol)
    check_errors(made.errors[-1], tol)
    return tuple(made.steps), made.errors[-1]


def _plan_products(
    draft: Callable[[], _Draft], order: Sequence[Pair], patterns: Sequence[Pattern], tol: float | None
) -> _Draft:
    """Plan the products with shares of the tolerance that keep it; without screening if none do."""
    shares = [None if tol is None else _share(tol / len(order), n, order, patterns) for n in range(len(order))]
    for _ in range(ATTEMPTS):
        made = _plan_pairs(draft(), order, shares)
        if tol is None or made.errors[-1] <= tol:
            return made
        # What operands bring along, or sums within later steps, made more of the errors than was thought.
        excess = made.errors[-1] / tol if tol else math.inf
        shares = [0.0 if math.isinf(excess) else share / (2 * excess) for share in shares if share is not None]
    return _plan_pairs(draft(), order, [0.0] * len(order))


def step_error(plan: Plan, patterns: Sequence[Pattern], errors: Sequence[float]) -> float:
    """Bound on the error of a step's result: what its operands bring along and what it drops."""
    if isinstance(plan.work, Sum):
        return reduced_error(plan.work.reduction, patterns[0], errors[0])
    (left, right), (left_error, right_error) = patterns, errors
    return product_error(left, right, left_error, right_error) + plan.dropped_bound


def propagate_errors(steps: Sequence[Step], patterns: Sequence[Pattern], errors: Sequence[float]) -> list[float]:
    """Bounds on the errors of all tensors of a program, its operands first, from those of the operands."""
    known, found = list(patterns), list(errors)
    for step in steps:
        found.append(step_error(step.plan, [known[i] for i in step.inputs], [found[i] for i in step.inputs]))
        known.append(step.plan.result)
    return found


def check_errors(bound: float, tol: float | None) -> None:
    """Raise if the operands' own errors leave no room within a tolerance."""
    if tol is not None and not bound <= tol:
        raise InputError(
            f"The operands' own error bounds allow an error of {bound:.3g} in the result. At most tol={tol:.3g} was "
            "asked for. Make a plan with a larger tol for these tensors, or screen the operands less."
        )


def reinspected(plan: Plan, dtype: np.dtype[np.generic], *, on_devices: bool = False) -> Plan:
    """The same step worked out for another element type or for devices; runs are still noted with the plan given."""
    if isinstance(plan.work, Sum):
        made = inspect_reduction(plan.work.reduction, plan.operands[0].pattern, dtype, workers=plan.workers)
    else:
        made = reinspect(plan, dtype, on_devices=on_devices)
    return replace(
        made,
        tolerance=plan.tolerance,
        runs=plan.runs,
        budget=plan.budget,
        request=plan.request,
        scratch=plan.scratch,
        machine=plan.machine,
    )


def _order(expression: Expression, patterns: Sequence[Pattern]) -> list[Pair]:
    """Pairs of tensors to multiply; operands are numbered first, then the products in order."""
    if len(patterns) == 2:
        return [(0, 1, expression)]
    return [(s.left, s.right, s.expression) for s in find_order(expression, [without_symmetry(p) for p in patterns])]


def _plan_pairs(draft: _Draft, order: Sequence[Pair], shares: Sequence[float | None]) -> _Draft:
    number = list(range(draft.given))
    for (left, right, expression), share in zip(order, shares, strict=True):
        number.append(draft.multiply(number[left], number[right], expression, share))
    return draft


def _share(even: float, number: int, order: Sequence[Pair], patterns: Sequence[Pattern]) -> float:
    """The error that a product may make, if its part of the result's is `even`.

    It is divided by what the operands that are not part of the product can make of it: nothing, if one of them is
    zero, and anything, if one is unknown.
    """
    parts = [frozenset([i]) for i in range(len(patterns))]
    for left, right, _ in order[: number + 1]:
        parts.append(parts[left] | parts[right])
    others = [patterns[i].norm for i in range(len(patterns)) if i not in parts[-1]]
    if 0.0 in others:
        return math.inf
    growth = math.prod(others)
    if math.isinf(growth):
        return 0.0
    return even / growth if growth else math.inf
