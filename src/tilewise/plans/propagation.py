"""How errors of operands travel to a result."""

from __future__ import annotations

import math

from tilewise.errors import InputError
from tilewise.expressions import Reduction
from tilewise.patterns import Pattern


def reduced_error(reduction: Reduction, pattern: Pattern, error: float) -> float:
    """Error of a reduction whose operand is off by `error`: a sum of s elements is at most sqrt(s) times their norm."""
    if error == 0:
        return 0.0
    count = math.prod(pattern.spaces[reduction.operand.index(name)].size for name in reduction.summed)
    return error * math.sqrt(count)


def product_error(left_norm: float, right_norm: float, left_error: float, right_error: float) -> float:
    """Error of a product whose operands are off by the given Frobenius norms: |A| dB + dA |B| + dA dB."""
    total = left_error * right_error
    total += left_error * right_norm if left_error else 0.0
    return total + (right_error * left_norm if right_error else 0.0)


def parse_tolerance(tol: float | None) -> float | None:
    """A tolerance as a user gives it."""
    if tol is not None and not tol >= 0:
        raise InputError(
            f"tol={tol} is not a tolerance. Expected a number >= 0, the largest Frobenius error of the result, or None "
            "for no screening. Correct it."
        )
    return tol
