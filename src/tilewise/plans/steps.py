"""From an expression of any number of operands to planned steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewise.errors import InputError
from tilewise.expressions import Expression, Reduction, find_order, lower_pair, lower_single
from tilewise.patterns import Pattern, without_symmetry
from tilewise.plans.inspector import inspect_product
from tilewise.plans.plan import Plan
from tilewise.plans.program import Step
from tilewise.plans.propagation import product_error, reduced_error
from tilewise.plans.reduction import inspect_reduction

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

    def add(self, plan: Plan, inputs: tuple[int, ...], error: float) -> int:
        """Append a step; the number of its result."""
        number = len(self.patterns)
        frees = tuple(n for n in dict.fromkeys(inputs) if n >= self.given)
        self.steps.append(Step(plan, inputs, number, frees))
        self.patterns.append(plan.result)
        self.errors.append(error)
        return number

    def reduce(self, at: int, reduction: Reduction | None) -> int:
        """Plan what is done to one operand before a product; the number of what the product reads."""
        if reduction is None:
            return at
        plan = inspect_reduction(reduction, self.patterns[at], self.dtype, workers=self.workers)
        return self.add(plan, (at,), reduced_error(reduction, self.patterns[at], self.errors[at]))

    def multiply(self, left: int, right: int, expression: Expression, tolerance: float | None) -> int:
        """Plan a product and what its operands need first; the number of its result."""
        pair = lower_pair(expression)
        a, b = self.reduce(left, pair.left), self.reduce(right, pair.right)
        norms = self.patterns[a].norm if self.errors[b] else 0.0, self.patterns[b].norm if self.errors[a] else 0.0
        inherited = product_error(*norms, self.errors[a], self.errors[b])
        plan = inspect_product(
            pair.contraction, self.patterns[a], self.patterns[b], self.dtype, tolerance=tolerance, workers=self.workers
        )
        return self.add(plan, (a, b), inherited + plan.dropped_bound)


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
    if len(patterns) == 1:
        draft = _Draft(list(patterns), list(errors), dtype, workers, 1)
        draft.reduce(0, lower_single(expression))
        return tuple(draft.steps), draft.errors[-1]
    order = _order(expression, patterns)
    shares = [
        None if tol is None else tol / len(order) / _growth(number, order, patterns) for number in range(len(order))
    ]
    for _ in range(ATTEMPTS):
        draft = _Draft(list(patterns), list(errors), dtype, workers, len(patterns))
        _plan_pairs(draft, order, shares)
        if tol is None or draft.errors[-1] <= tol:
            return tuple(draft.steps), draft.errors[-1]
        # What operands bring along, or sums within later steps, made more of the errors than was thought.
        excess = draft.errors[-1] / tol if tol else math.inf
        shares = [share / (2 * excess) for share in shares if share is not None]
    return _without_screening(order, patterns, errors, dtype, workers, tol)


def _order(expression: Expression, patterns: Sequence[Pattern]) -> list[tuple[int, int, Expression]]:
    """Pairs of tensors to multiply; operands are numbered first, then the products in order."""
    if len(patterns) == 2:
        return [(0, 1, expression)]
    return [(s.left, s.right, s.expression) for s in find_order(expression, [without_symmetry(p) for p in patterns])]


def _plan_pairs(draft: _Draft, order: Sequence[tuple[int, int, Expression]], shares: Sequence[float | None]) -> None:
    number = list(range(draft.given))
    for (left, right, expression), share in zip(order, shares, strict=True):
        number.append(draft.multiply(number[left], number[right], expression, share))


def _growth(number: int, order: Sequence[tuple[int, int, Expression]], patterns: Sequence[Pattern]) -> float:
    """By how much the operands that are not part of a product can enlarge its error; infinite if one is unknown."""
    parts = [frozenset([i]) for i in range(len(patterns))]
    for left, right, _ in order[: number + 1]:
        parts.append(parts[left] | parts[right])
    return math.prod(max(patterns[i].norm, 1e-300) for i in range(len(patterns)) if i not in parts[-1])


def _without_screening(
    order: Sequence[tuple[int, int, Expression]],
    patterns: Sequence[Pattern],
    errors: Sequence[float],
    dtype: np.dtype[np.generic],
    workers: int,
    tol: float | None,
) -> tuple[tuple[Step, ...], float]:
    """The plan that drops nothing, if the operands' own errors leave it within the tolerance."""
    draft = _Draft(list(patterns), list(errors), dtype, workers, len(patterns))
    _plan_pairs(draft, order, [0.0] * len(order))
    if tol is not None and draft.errors[-1] > tol:
        raise InputError(
            f"The operands' own error bounds already allow an error of {draft.errors[-1]:.3g} in the result. "
            f"tol={tol:.3g} was asked for. Contract with a larger tol, or screen the operands less."
        )
    return tuple(draft.steps), draft.errors[-1]
