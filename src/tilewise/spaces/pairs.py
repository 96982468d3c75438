"""`Pairs`: pairs of the elements of a space, symmetric or antisymmetric, as a space of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.spaces.tiling import Space

__all__ = ["Pairs"]

_Ints = npt.NDArray[np.int64]

MOST_GATHERED = 384
"""Pairs in a tile that is put together of several parts, at the most."""


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Normalised pairs of elements: (pq + qp) / sqrt(2) for p > q and pp, or (pq - qp) / sqrt(2) for p > q.

    The pairs of two tiles P >= Q are a *part* of a tile: all p, q of different tiles with q running fastest, and those
    with p >= q (p > q if antisymmetric) of one tile.  Without irreps each part is a tile; parts whose irreps have the
    same product, which becomes the irrep of the tile, are put together up to `MOST_GATHERED` pairs, since tiles of few
    orbitals have few.

    Examples
    --------
    >>> from tilewise.spaces import Pairs, Space
    >>> vir = Space([2, 3], name="vir")
    >>> Pairs.of(vir, 1).space.sizes, Pairs.of(vir, -1).space.sizes
    (array([3, 6, 6]), array([1, 6, 3]))
    >>> Pairs.of(Space([2, 3], irrep=[0, 1]), 1).space.sizes
    array([9, 6])
    """

    base: Space
    """The space whose elements are paired."""
    sign: int
    """+1 for symmetric pairs, -1 for antisymmetric ones."""
    space: Space
    """The pairs."""
    tiles: _Ints
    """The tiles P >= Q of each part, one row each, in the order of the pairs."""
    ptr: _Ints
    """First part of each tile of pairs; one more at the end."""
    begin: _Ints
    """Where each part begins in its tile."""

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
        parts, sizes = np.stack([first, second], axis=1)[kept], sizes[kept]
        irrep = None if base.irrep is None else base.irrep[parts[:, 0]] ^ base.irrep[parts[:, 1]]
        if irrep is not None:
            order = np.argsort(irrep, kind="stable")
            parts, sizes, irrep = parts[order], sizes[order], irrep[order]
        tile = _gather(sizes, irrep)
        ptr = np.searchsorted(tile, np.arange(int(tile.max(initial=-1)) + 2))
        before = np.cumsum(sizes) - sizes
        kind = "symmetric" if sign > 0 else "antisymmetric"
        name = None if base.name is None else f"{kind} {base.name} pairs"
        lengths = np.bincount(tile, sizes).astype(np.int64)
        space = Space(lengths, name, irrep=None if irrep is None else irrep[ptr[:-1]])
        return cls(base, sign, space, parts, ptr, before - before[ptr[tile]])

    def parts(self, tile: int) -> range:
        """The parts of a tile of pairs."""
        return range(int(self.ptr[tile]), int(self.ptr[tile + 1]))

    def tile_of(self, part: _Ints) -> _Ints:
        """The tile of pairs that a part belongs to."""
        return np.asarray(np.searchsorted(self.ptr, part, side="right") - 1)

    def part(self, first: _Ints, second: _Ints) -> _Ints:
        """The part that two tiles make, in either order; -1 if they make none."""
        table = np.full((self.base.ntiles,) * 2, -1, np.int64)
        every = np.arange(len(self.tiles))
        table[self.tiles[:, 0], self.tiles[:, 1]] = every
        table[self.tiles[:, 1], self.tiles[:, 0]] = every
        return table[first, second]

    def number(self, first: _Ints, second: _Ints) -> _Ints:
        """The tile of pairs that two tiles belong to, in either order; -1 if they make no pair."""
        part = self.part(first, second)
        return np.where(part < 0, -1, self.tile_of(part))


def _gather(sizes: _Ints, irrep: _Ints | None) -> _Ints:
    """The tile that each part goes to: one of its own, or together with neighbours of the same irrep."""
    if irrep is None:
        return np.arange(len(sizes))
    tile, filled = np.zeros(len(sizes), np.int64), 0
    for part in range(1, len(sizes)):
        filled += int(sizes[part - 1])
        opens = irrep[part] != irrep[part - 1] or filled + sizes[part] > MOST_GATHERED
        tile[part] = tile[part - 1] + (1 if opens else 0)
        filled = 0 if opens else filled
    return tile
