"""Sums of squares, from which the norms of result blocks come."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewise.engines.kernels.compile import compiled_fast


@compiled_fast
def sum_squares(data: Any, start: int, count: int) -> float:
    """The sum of the squared moduli of neighbouring elements, in double precision."""
    total = 0.0
    first = np.uint64(start)  # an unsigned position needs no look at its sign
    for i in range(np.uint64(count)):
        value = data[first + i]
        re, im = np.float64(value.real), np.float64(value.imag)
        total += re * re + im * im
    return total
