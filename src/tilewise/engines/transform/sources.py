"""Where the elements of A come from, block by block: pairs of tiles of functions against pairs of tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tilewise.plans.transform import TilePairs

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Source(Protocol):
    """Makes or reads blocks of A."""

    @property
    def needed(self) -> Bools | None:
        """Which blocks are not negligible, in a table of pairs against pairs; None if all are needed."""

    def read(self, row: int, column: int, out: Floats) -> None:
        """Write A(column pair | row pair), transposed, into an array (elements of the row pair, of the column pair)."""


@dataclass(frozen=True, slots=True)
class ArraySource:
    """Blocks of an array that is in memory or in a file, as the functions stand in it."""

    pairs: TilePairs
    """Pairs of tiles of functions."""
    order: npt.NDArray[np.int64]
    """The function of the array that each function in tile order is."""
    look_up: Callable[[Any, Any], Any]
    """Rows and columns of the matrix of pairs: ``look_up((i, j), (k, l))`` for arrays of functions."""

    @property
    def needed(self) -> Bools | None:
        """All of them."""
        return None

    def read(self, row: int, column: int, out: Floats) -> None:
        """Pick the elements of a block."""
        kl, ij = (pair_functions(self.pairs, pair, self.order) for pair in (row, column))
        out[...] = self.look_up(ij, kl).T


def pair_functions(
    pairs: TilePairs, pair: int, order: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The two functions of each element of a pair of tiles, as they are stored."""
    first, second = (
        order[space.offsets[tile] : space.offsets[tile + 1]]
        for space, tile in zip(pairs.spaces, pairs.tiles[pair].tolist(), strict=True)
    )
    if pairs.packed and pairs.is_diagonal(pair):
        i, j = np.tril_indices(len(first))
        return first[i], first[j]
    return np.repeat(first, len(second)), np.tile(second, len(first))
