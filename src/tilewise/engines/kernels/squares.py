"""Sums of squares, from which the norms of result blocks come."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.kernels.compile import compiled, compiled_fast
from tilewise.plans.aside import run_aside

Ints = npt.NDArray[np.int64]


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


def block_squares(data: npt.NDArray[Any], begins: Ints, sizes: Ints) -> npt.NDArray[np.float64]:
    """The sum of squares of each of several blocks, added up as the loops that sum blocks do it."""
    squares = np.zeros(len(begins))
    run_aside(lambda stop: _note_squares(data, begins, sizes, squares), short=True)
    return squares


@compiled
def _note_squares(data: Any, begins: Any, sizes: Any, squares: Any) -> None:
    for block in range(len(squares)):
        squares[block] = sum_squares(data, begins[block], sizes[block])
