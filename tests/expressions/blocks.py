"""Patterns, reduced to what an order needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.spaces import Space


@dataclass(frozen=True)
class Blocks:
    """The non-zero blocks of a tensor."""

    spaces: tuple[Space, ...]
    index: npt.NDArray[np.int64]

    def mask(self) -> npt.NDArray[np.int64]:
        """Ones where the non-zero blocks are."""
        mask = np.zeros([space.size for space in self.spaces], dtype=np.int64)
        for tiles in self.index:
            places = [slice(s.offsets[t], s.offsets[t + 1]) for s, t in zip(self.spaces, tiles, strict=True)]
            mask[tuple(places)] = 1
        return mask


def blocks(spaces: Sequence[Space], where: npt.ArrayLike | None = None) -> Blocks:
    """The blocks where a boolean array over the tiles is true; all of them without it."""
    shape = tuple(space.ntiles for space in spaces)
    flags = np.ones(shape, dtype=bool) if where is None else np.asarray(where, dtype=bool).reshape(shape)
    return Blocks(tuple(spaces), np.argwhere(flags).astype(np.int64))
