"""Which products a tolerance on the result allows to drop."""

from __future__ import annotations

import math

import numpy as np

from tilewise.plans.aside import Stop, check_stop
from tilewise.plans.joins import Entries, dropped_error
from tilewise.plans.propagation import BOUND_SLACK

STEPS = 24
"""Halvings of the threshold's logarithm; the last ones change the number of dropped products by little."""

LARGEST = 1e308
"""Thresholds stay below this: products of norms may overflow, and those that do are kept."""


def choose_drop(rows: Entries, cols: Entries, panels: int, tolerance: float | None, stop: Stop) -> tuple[float, float]:
    """The largest threshold on a product's norm whose dropped products stay within the tolerance.

    Dropping the product of blocks (i, k) and (k, j) changes block (i, j) of the result by a matrix whose
    Frobenius norm is at most the product of the operands' norms.  Errors in one block add, errors of
    different blocks are orthogonal, so

        error^2 <= sum over (i, j) of (sum over dropped k of |A_ik| |B_kj|)^2,

    which grows with the threshold: it is found by bisection.

    Returns
    -------
    tuple
        The threshold (negative: keep everything) and the bound on the error it causes.
    """
    if tolerance is None:
        return -1.0, 0.0
    known = rows.norms[np.isfinite(rows.norms)]
    other = cols.norms[np.isfinite(cols.norms)]
    if not len(known) or not len(other):
        return 0.0, 0.0
    high = min(float(known.max()) * float(other.max()), LARGEST)
    low = _smallest(known) * _smallest(other)
    if tolerance == 0 or high == 0:
        return 0.0, 0.0
    # Norms at run time may be larger by the lenience, and what is dropped with them.
    allowed = tolerance * (2 - BOUND_SLACK) / BOUND_SLACK
    if (error := dropped_error(rows, cols, panels, high)) <= allowed:
        return high, error * BOUND_SLACK
    best = 0.0
    below, above = math.log(max(low, 1e-300) * 0.5), math.log(high)
    for _ in range(STEPS):
        check_stop(stop)
        middle = 0.5 * (below + above)
        if dropped_error(rows, cols, panels, math.exp(middle)) <= allowed:
            below, best = middle, math.exp(middle)
        else:
            above = middle
    return best, dropped_error(rows, cols, panels, best) * BOUND_SLACK


def _smallest(norms: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    positive = norms[norms > 0]
    return float(positive.min()) if len(positive) else 0.0
