"""How errors of operands travel to a result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewise.errors import InputError
from tilewise.expressions import Reduction
from tilewise.patterns import Pattern

NORM_LENIENCE = 1e-10
"""By what part norms may exceed those that a screened plan was made for; bounds leave room for it."""

BOUND_SLACK = 1 + 3 * NORM_LENIENCE
"""Factor of bounds that are products of two norms, each of which may be larger by the lenience."""


def scaled_error(factor: float, error: float) -> float:
    """A bound times a factor, both >= 0 and perhaps infinite: nothing times anything is nothing, and only that."""
    if not factor or not error:
        return 0.0
    return max(factor * error, 5e-324)


def reduced_error(reduction: Reduction, pattern: Pattern, error: float) -> float:
    """Error of a reduction whose operand is off by `error`: a sum of s elements is at most sqrt(s) times their norm."""
    if error == 0:
        return 0.0
    count = math.prod(pattern.spaces[reduction.operand.index(name)].size for name in reduction.summed)
    return scaled_error(math.sqrt(count), error)


def product_error(left: Pattern, right: Pattern, left_error: float, right_error: float) -> float:
    """Error of a product whose operands are off by the given Frobenius norms: |A| dB + dA |B| + dA dB."""
    total = scaled_error(left_error, right_error)
    total += scaled_error(left_error, right.norm) if left_error else 0.0
    total += scaled_error(right_error, left.norm) if right_error else 0.0
    return total * BOUND_SLACK


def nonnegative(value: Any) -> float | None:
    """A real number >= 0 as a float, perhaps infinite; None for anything else."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the largest float
        return None
    return number if number >= 0 else None


def parse_tolerance(tol: Any) -> float | None:
    """A tolerance as a user gives it."""
    if tol is None:
        return None
    if (number := nonnegative(tol)) is None:
        raise InputError(
            f"tol={tol!r:.40} is not a tolerance. Expected a number >= 0, the largest Frobenius error of the result, "
            "or None for no screening. Correct it."
        )
    return number
