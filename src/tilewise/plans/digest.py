"""Numbers that tell things apart, so that ranks can see whether they mean the same."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.patterns import Pattern


def digest(words: object, arrays: Iterable[npt.NDArray[Any]] = ()) -> int:
    """A number from how something prints and from arrays."""
    found = zlib.crc32(str(words).encode())
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array).data, zlib.crc32(str(array.shape).encode(), found))
    return found


def pattern_digest(pattern: Pattern) -> int:
    """A number from the tiles, blocks and symmetry of a tensor, not from its norms."""
    return digest(pattern.symmetry, [pattern.index, *(space.sizes for space in pattern.spaces)])
