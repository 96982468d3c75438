"""`FittedIntegrals`: integrals over orbitals made of three-index vectors, block by block, when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.reference import Reference
from tilewise.chemistry.spaces import OrbitalSpaces, joined_space, plain_space
from tilewise.chemistry.vectors import Vectors, to_orbitals
from tilewise.engines.blas import limit_blas
from tilewise.engines.folding import find_block
from tilewise.factories import from_function
from tilewise.patterns import Pattern
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor, Engine

__all__ = ["FittedIntegrals", "making_bytes", "side_bytes"]

Floats = npt.NDArray[np.float64]

TILE = 32
"""Products of blocks are about as fast as those of matrices of this size."""


AT_ONCE = 32
"""Vectors over functions that are transformed at once."""


def making_bytes(vectors: Vectors) -> int:
    """Bytes that making vectors over orbitals takes besides them: those over functions, and slices of squares."""
    return vectors.held_bytes + 4 * 8 * min(vectors.count, AT_ONCE) * vectors.size**2


def side_bytes(count: int, modes: Sequence[Space]) -> int:
    """Bytes of the vectors over both pairs of orbitals that the largest block of integrals over four modes is made of.

    Parameters
    ----------
    count : int
        How many vectors there are.
    modes : sequence of four Space
        The orbitals.
    """
    first, second, third, fourth = (int(space.sizes.max(initial=0)) for space in modes)
    return 8 * count * (first * second + third * fourth)


@dataclass(frozen=True, slots=True, eq=False)
class FittedIntegrals:
    """Vectors B(Q, ip), with p any orbital, and B(Q, ab)."""

    mixed: BlockTensor
    """Of an occupied and any orbital."""
    virtual: BlockTensor
    """Of two virtual orbitals."""
    nocc_tiles: int
    """Tiles of occupied orbitals."""
    rate: float
    """Floating-point operations per second of one worker."""

    @classmethod
    def of(cls, reference: Reference, spaces: OrbitalSpaces, vectors: Vectors, engine: Engine) -> FittedIntegrals:
        """The vectors over the orbitals of a reference; every rank has all of them."""
        occ, vir, every = plain_space(spaces.occ), plain_space(spaces.vir), joined_space(spaces.occ, spaces.vir)
        both = np.hstack([reference.occupied, reference.virtual])
        sides = (reference.occupied, both, (occ, every)), (reference.virtual, reference.virtual, (vir, vir))
        mixed, virtual = (
            engine.spread(to_orbitals(vectors, *side, at_once=AT_ONCE, engine=engine), "replicated") for side in sides
        )
        return cls(mixed, virtual, spaces.occ.ntiles, 1e9 * float(engine.machine.gemm_rate(TILE)))

    def tensor(self, which: str) -> BlockTensor:
        """Integrals (pq|rs) as a tensor whose blocks are made on demand.

        Parameters
        ----------
        which : str
            A letter for each mode: o occupied, v virtual, p any orbital.
        """
        occ, every = self.mixed.spaces[1:]
        spaces = {"o": occ, "v": self.virtual.spaces[1], "p": every}
        modes = [spaces[letter] for letter in which]
        labelled = all(space.irrep is not None for space in modes)
        shifts = [self.nocc_tiles if letter == "v" else 0 for letter in which]

        def make(index: tuple[int, ...]) -> Floats:
            tiles = [tile + shift for tile, shift in zip(index, shifts, strict=True)]
            left, right = self._pair(*tiles[:2]), self._pair(*tiles[2:])
            with limit_blas():  # NumPy's, which need not be the library that the engine works with
                block: Floats = np.matmul(left.reshape(len(left), -1).T, right.reshape(len(right), -1))
            return block.reshape(*left.shape[1:], *right.shape[1:])

        pattern = Pattern.allowed(modes, irrep=0 if labelled else None)
        return from_function(make, pattern=pattern, working_bytes=side_bytes(self.mixed.shape[0], modes))

    def _pair(self, first: int, second: int) -> Floats:
        """All vectors of two tiles of orbitals, occupied ones counted first."""
        if first < self.nocc_tiles:
            return _gathered(self.mixed, (first, second), (0, 1, 2))
        if second < self.nocc_tiles:
            return _gathered(self.mixed, (second, first), (0, 2, 1))
        return _gathered(self.virtual, (first - self.nocc_tiles, second - self.nocc_tiles), (0, 1, 2))

    def seconds(self, pattern: Pattern, products: int) -> Floats:
        """What making each block of a tensor takes, if a block needs so many products of vectors."""
        return np.asarray(2.0 * products * self.mixed.shape[0] * pattern.block_sizes / self.rate, np.float64)


def _gathered(vectors: BlockTensor, tiles: tuple[int, int], axes: tuple[int, int, int]) -> Floats:
    """All vectors of two tiles in one array, with their modes in another order."""
    aux, *pair = vectors.spaces
    shape = aux.size, *(int(space.sizes[tile]) for space, tile in zip(pair, tiles, strict=True))
    made = np.empty([shape[axis] for axis in axes])
    for number, begin in enumerate(aux.offsets[:-1].tolist()):
        block = find_block(vectors, (number, *tiles))
        assert block is not None
        made[begin : begin + len(block)] = block.transpose(axes)
    return made
