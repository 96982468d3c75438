"""`OrbitalSpaces`: occupied and virtual orbitals in tiles, and the letters of the equations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.origins import tile_orbitals
from tilewise.iteration import allowed_pattern
from tilewise.patterns import Pattern
from tilewise.spaces import Pairs, Space

__all__ = ["OrbitalSpaces", "joined_space", "plain_space", "stored_elements"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OrbitalSpaces:
    """Occupied and virtual orbitals in tiles of one irrep each, and pairs of them."""

    occ: Space
    """Occupied orbitals."""
    vir: Space
    """Virtual orbitals."""
    letters: Mapping[str, Space | Pairs]
    """What the letters of equations stand for."""

    @classmethod
    def of(cls, counts: tuple[int, int], irreps: tuple[Ints | None, Ints | None], tile: int) -> OrbitalSpaces:
        """Tiles of about `tile` orbitals."""
        occ, vir = (
            _named(tile_orbitals(count, tile, labels), name)
            for count, labels, name in zip(counts, irreps, ("occ", "vir"), strict=True)
        )
        letters: dict[str, Space | Pairs] = {}
        for space, plain, even, odd in ((occ, "ijkl", "xy", "XY"), (vir, "abcd", "pq", "PQ")):
            letters |= dict.fromkeys(plain, space)
            letters |= dict.fromkeys(even, Pairs.of(space, 1)) | dict.fromkeys(odd, Pairs.of(space, -1))
        return cls(occ, vir, letters)

    def pattern(self, indices: str) -> Pattern:
        """All blocks that irreps allow."""
        return allowed_pattern(self.letters, indices)


def _named(space: Space, name: str) -> Space:
    plain = Space(space.sizes, name, irrep=space.irrep)
    return Space.reordered(plain, space.order) if space.is_reordered else plain


def plain_space(space: Space) -> Space:
    """The same tiles for orbitals that are in their order already."""
    return Space(space.sizes, space.name, irrep=space.irrep)


def joined_space(first: Space, second: Space) -> Space:
    """The tiles of one space, then those of another."""
    irrep = None
    if first.irrep is not None and second.irrep is not None:
        irrep = np.concatenate([first.irrep, second.irrep])
    return Space(np.concatenate([first.sizes, second.sizes]), "mo", irrep=irrep)


def stored_elements(pattern: Pattern) -> npt.NDArray[np.bool_]:
    """Which elements lie in blocks that are stored."""
    mask = np.zeros(pattern.shape, np.bool_)
    for index in pattern.index.tolist():
        where = tuple(slice(s.offsets[t], s.offsets[t + 1]) for s, t in zip(pattern.spaces, index, strict=True))
        mask[where] = True
    return mask
