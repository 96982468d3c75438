"""`Pairs`: pairs of the elements of a space, symmetric or antisymmetric, as a space of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.spaces.tiling import Space

__all__ = ["Pairs"]

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Normalised pairs of elements: (pq + qp) / sqrt(2) for p > q and pp, or (pq - qp) / sqrt(2) for p > q.

    A tile holds the pairs of two tiles P >= Q: all p, q of different tiles with q running fastest, and those with
    p >= q (p > q if antisymmetric) of one tile.  Its irrep is the product of theirs.

    Examples
    --------
    >>> from tilewise.spaces import Pairs, Space
    >>> vir = Space([2, 3], name="vir")
    >>> Pairs.of(vir, 1).space.sizes, Pairs.of(vir, -1).space.sizes
    (array([3, 6, 6]), array([1, 6, 3]))
    """

    base: Space
    """The space whose elements are paired."""
    sign: int
    """+1 for symmetric pairs, -1 for antisymmetric ones."""
    space: Space
    """The pairs."""
    tiles: _Ints
    """The tiles P >= Q of each tile of pairs, one row each."""

    @classmethod
    def of(cls, base: Space, sign: int) -> Pairs:
        """All pairs of one kind."""
        if sign not in (1, -1):
            raise InputError(f"Pairs have the sign {sign!r}. Expected 1 or -1. Pass one of them.")
        first, second = np.tril_indices(base.ntiles)
        sizes = base.sizes[first] * base.sizes[second]
        same = first == second
        sizes[same] = (sizes[same] + sign * base.sizes[first[same]]) // 2
        kept = sizes > 0
        first, second, sizes = first[kept], second[kept], sizes[kept]
        irrep = None if base.irrep is None else base.irrep[first] ^ base.irrep[second]
        kind = "symmetric" if sign > 0 else "antisymmetric"
        name = None if base.name is None else f"{kind} {base.name} pairs"
        return cls(base, sign, Space(sizes, name, irrep=irrep), np.stack([first, second], axis=1))

    def number(self, first: _Ints, second: _Ints) -> _Ints:
        """The tile of pairs that two tiles make, in either order; -1 if they make none."""
        table = np.full((self.base.ntiles,) * 2, -1, np.int64)
        every = np.arange(len(self.tiles))
        table[self.tiles[:, 0], self.tiles[:, 1]] = every
        table[self.tiles[:, 1], self.tiles[:, 0]] = every
        return table[first, second]
