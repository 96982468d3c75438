"""Where the elements of a tensor lie: blocks one after the other in one array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.patterns import Pattern

DTYPES = ("float32", "float64", "complex64", "complex128")
"""The element types of a tensor."""

NORM_SLACK = 1.0 + 1e-12
"""Factor that makes a computed norm an upper bound in spite of rounding."""


@dataclass(frozen=True, slots=True)
class Arena:
    """The blocks of a pattern in its order, each C-contiguous, without gaps."""

    data: npt.NDArray[Any]
    """All elements."""
    offsets: npt.NDArray[np.int64]
    """First element of each block."""

    @classmethod
    def allocate(cls, pattern: Pattern, dtype: npt.DTypeLike, *, zero: bool) -> Arena:
        """Storage for a pattern's blocks; `zero=False` leaves them uninitialised."""
        sizes = pattern.block_sizes
        offsets = np.cumsum(sizes) - sizes
        offsets.flags.writeable = False
        make = np.zeros if zero else np.empty
        return cls(make(pattern.nnz_elements, dtype), offsets)


def parse_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The element type of a tensor made from data of the given type; integers become float64."""
    kind = np.dtype(dtype)
    if kind.kind in "iub":
        kind = np.dtype(np.float64)
    if kind.name not in DTYPES:
        raise InputError(
            f"dtype {kind.name} is not an element type of tensors. Expected one of {', '.join(DTYPES)}. "
            "Convert the data with astype() first."
        )
    return kind


def block_norms(data: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Upper bounds on the Frobenius norms of blocks; infinite where an element is not finite."""
    if not len(offsets):
        return np.zeros(0)
    wide = data.astype(np.complex128 if data.dtype.kind == "c" else np.float64, copy=False)
    squares = (wide.real**2 + wide.imag**2) if wide.dtype.kind == "c" else wide * wide
    return norms_of_squares(np.add.reduceat(squares, offsets))


def norms_of_squares(squares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Upper bounds on norms from sums of squares; squares that vanish or overflow make no bound."""
    norms = np.sqrt(squares) * NORM_SLACK
    norms[~np.isfinite(norms)] = np.inf
    # A square below the smallest normal number may have lost elements: bound it by what could be lost.
    return np.where((squares < 1e-290) & (squares > 0), np.maximum(norms, 1e-140), norms)
