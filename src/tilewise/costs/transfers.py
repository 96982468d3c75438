"""Seconds and words of moving elements: copies, permutations, and the operands of a dense product."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.machine import Machine

Floats = npt.NDArray[np.float64]


def copy_seconds(moved_bytes: float, machine: Machine, workers: int) -> float:
    """Seconds to move bytes, read and written ones counted, in the order they lie.

    One core alone is taken to reach half of what all reach together: memory, not the core, sets the limit.
    """
    return moved_bytes / (machine.copy_rate * 1e9 * _share(machine, workers))


def permute_seconds(moved_bytes: float, machine: Machine, workers: int) -> float:
    """Seconds to permute modes or to pack panels, bytes read and written counted."""
    return moved_bytes / (machine.permute_rate * 1e9 * _share(machine, workers))


def _share(machine: Machine, workers: int) -> float:
    """Part of the rate of all cores that some of them reach."""
    busy = min(workers, machine.cores)
    return max(busy / machine.cores, min(0.5 * busy, 1.0))


def blocked_product_words(m: Any, n: Any, k: Any, capacity_words: float) -> Floats:
    """Words that a dense m x k by k x n product moves through a level when it is cut into square tiles.

    Three tiles of edge t = sqrt(S/3) fit, one of each matrix; a row of tiles of A is read for each column of
    tiles of B and the other way round, and C stays until it is done (written, after it was read)::

        Q = m k ceil(n / t) + k n ceil(m / t) + 2 m n

    Never below `product_bound_words`, of which it is about twice. Arguments may be arrays.

    Examples
    --------
    >>> from tilewise.costs import blocked_product_words
    >>> float(blocked_product_words(100, 100, 50, capacity_words=1e6))
    30000.0
    """
    edge = max(math.floor(math.sqrt(capacity_words / 3)), 1)
    rows, cols, depth = (np.asarray(value, np.float64) for value in (m, n, k))
    words = rows * depth * np.ceil(cols / edge) + depth * cols * np.ceil(rows / edge) + 2 * rows * cols
    return np.asarray(words)
