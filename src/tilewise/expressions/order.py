"""The order in which a many-operand expression is contracted: opt_einsum's searches on block-sparse costs.

opt_einsum's searches know index extents only, but two of them take a caller's costs. `DynamicProgramming`
takes a comparison that is told which *sets of operands* are joined, so patterns can decide; it finds the
cheapest tree of pairs, outer products included, and serves up to eight operands. `greedy` takes a cost and a
chooser and serves the rest. Both are fed from one `Estimator`, so dense extents play no part in either.

The cost of a step is its scalar multiplications plus `ELEMENT_COST` times the elements of its result.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opt_einsum.paths import DynamicProgramming, greedy, linear_to_ssa

from tilewise.errors import InputError
from tilewise.expressions.estimate import BlockList, Estimate, Estimator, lowest_bit
from tilewise.expressions.parse import Expression

EXHAUSTIVE_OPERANDS = 8
"""Up to this many operands all trees are searched; n operands have about 3^n / 2 pairs of subsets."""

ELEMENT_COST = 32.0
"""Multiplications in the time one element of an intermediate is written and read again: the order of
magnitude for a core near its GEMM peak, which keeps outer products out unless they save much work."""

Candidate = tuple[Any, frozenset[str], frozenset[str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class PairStep:
    """One step of a contraction order: two tensors are replaced by their product."""

    left: int
    """The number of the left tensor: operands first, then results in the order of the steps."""
    right: int
    """The number of the right tensor, whose first operand comes after the left tensor's first."""
    result: int
    """The number of the product."""
    expression: Expression
    """The two-operand expression of the step."""
    multiplications: float
    """The estimated number of scalar multiplications."""
    density: float
    """The estimated element density of the product."""


def find_order(expression: Expression, patterns: Sequence[BlockList]) -> tuple[PairStep, ...]:
    """Find a cheap order of pairwise contractions for an expression.

    Parameters
    ----------
    expression : Expression
        An expression of two or more operands.
    patterns : sequence of Pattern
        The pattern of each operand. Every non-zero block has to be listed for the estimates to hold: expand
        a symmetric pattern first.

    Returns
    -------
    tuple of PairStep
        One step fewer than there are operands. The last one gives the output of `expression`; the others have
        the batch indices first, then the left, then the right operand's, which is how products come out.

    Raises
    ------
    InputError
        If there are fewer than two operands, or spaces do not agree.

    Examples
    --------
    >>> from tilewise.expressions import find_order, parse_expression
    >>> from tilewise.patterns import Pattern
    >>> from tilewise.spaces import Space
    >>> long, short = Space.uniform(100, tile=10), Space([2])
    >>> shapes = [(long, long), (long, long), (long, short)]
    >>> patterns = [Pattern.random(spaces, density=1.0, seed=0) for spaces in shapes]
    >>> for step in find_order(parse_expression("ij,jk,kl->il", (2, 2, 2)), patterns):
    ...     print(step.left, step.right, step.result, step.expression)
    1 2 3 jk,kl->jl
    0 3 4 ij,jl->il
    """
    if len(expression.operands) < 2:
        raise InputError(
            f"The expression {expression.label()!r} has {len(expression.operands)} operand. "
            "Expected two or more. Lower it with lower_single instead."
        )
    estimator = Estimator(expression, patterns)
    return _steps(expression, estimator, _search(estimator))


def _search(estimator: Estimator) -> list[tuple[int, ...]]:
    """The pairs to join, numbered as in `PairStep`."""
    inputs = [estimate.indices for estimate in estimator.operands]
    output = estimator.indices_left((1 << len(inputs)) - 1)
    # The searches multiply extents for uses of their own; ours come from the estimator.
    extents = dict.fromkeys(frozenset().union(*inputs), 1)
    if len(inputs) <= EXHAUSTIVE_OPERANDS:
        search = DynamicProgramming(minimize=_TreeCosts(estimator), cost_cap=False, search_outer=True)
        path = search(inputs, output, extents)
    else:
        costs = _GreedyCosts(estimator)
        path = greedy(inputs, output, extents, choose_fn=costs.choose, cost_fn=costs.cost)
    pairs: list[tuple[int, ...]] = linear_to_ssa(path)
    return pairs


def _steps(expression: Expression, estimator: Estimator, pairs: list[tuple[int, ...]]) -> tuple[PairStep, ...]:
    """Write the two-operand expression of each pair."""
    indices = list(expression.operands)
    estimates = list(estimator.operands)
    steps: list[PairStep] = []
    for numbers in pairs:
        # As read: whatever holds the earlier operand stands left, which suits the usual order of the output.
        left, right = sorted(numbers, key=lambda number: lowest_bit(estimates[number].operands))
        estimate, multiplications = estimator.multiply(estimates[left], estimates[right])
        is_last = len(steps) == len(expression.operands) - 2
        pair = indices[left], indices[right]
        result = expression.output if is_last else _product_order(*pair, estimate.indices)
        step = Expression(pair, result, expression.ellipsis)
        steps.append(PairStep(left, right, len(indices), step, multiplications, estimate.density))
        indices.append(result)
        estimates.append(estimate)
    return tuple(steps)


def _product_order(left: tuple[str, ...], right: tuple[str, ...], kept: frozenset[str]) -> tuple[str, ...]:
    """Batch, left, right: the order in which a matrix product leaves its result."""
    batch = [index for index in left if index in kept and index in right]
    return tuple(dict.fromkeys([*batch, *(index for index in left + right if index in kept)]))


def _cost(product: Estimate, multiplications: float) -> float:
    return multiplications + ELEMENT_COST * product.elements


class _TreeCosts:
    """The comparison `DynamicProgramming` makes for two sets of operands it could join."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._estimates = {estimate.operands: estimate for estimate in estimator.operands}

    def __call__(
        self,
        left_cost: float,
        right_cost: float,
        either: frozenset[int],
        extents: list[int],
        cost_cap: float,
        left: int,
        right: int,
        found: dict[int, tuple[frozenset[int], float, Any]],
        *rest: Any,
    ) -> None:
        """Record the join of the operand bitmaps `left` and `right` in `found` if no cheaper one is known."""
        *_, left_tree, right_tree = rest
        both = left | right
        estimate, multiplications = self._estimator.multiply(self._estimates[left], self._estimates[right])
        cost = left_cost + right_cost + _cost(estimate, multiplications)
        if both not in found or cost < found[both][1]:
            # The search reads the indices only to avoid outer products, which it is asked to consider.
            found[both] = (either, cost, (left_tree, right_tree))
            self._estimates[both] = estimate


class _GreedyCosts:
    """The cost and the chooser for `greedy`, which names tensors by their sets of indices.

    The next pair is the cheapest. (opt_einsum's own rule, the pair that frees most memory, cannot tell the
    product of two diagonal operands from that of a diagonal and a dense one: both free one diagonal.)
    """

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._estimates: dict[frozenset[str], Estimate] = {}
        for estimate in estimator.operands:
            self._put(estimate.indices, estimate)

    def cost(
        self,
        size: int,
        left_size: int,
        right_size: int,
        indices: frozenset[str],
        left: frozenset[str],
        right: frozenset[str],
    ) -> float:
        """The cost of joining `left` and `right`."""
        return _cost(*self._estimator.multiply(self._estimates[left], self._estimates[right]))

    def choose(self, queue: list[Candidate], remaining: dict[frozenset[str], int]) -> Candidate | None:
        """Take the cheapest candidate, and note what its product will look like."""
        candidate = heapq.heappop(queue)
        _, left, right, indices = candidate
        if left not in remaining or right not in remaining:
            return None
        product, _ = self._estimator.multiply(self._estimates.pop(left), self._estimates.pop(right))
        self._put(indices, product)
        return candidate

    def _put(self, indices: frozenset[str], estimate: Estimate) -> None:
        """Tensors with the same indices are multiplied at once, as the search does."""
        same = self._estimates.pop(indices, None)
        self._estimates[indices] = estimate if same is None else self._estimator.multiply(same, estimate)[0]
