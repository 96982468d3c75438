"""`Orbitals`: what belongs to each irrep, and the tasks that chunks of virtual orbitals make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.kernels.microkernel import LANES_8, MAX_ROWS
from tilewise.engines.kernels.triples import ORDERS, WIDTH, Occupied
from tilewise.engines.views import frozen
from tilewise.spaces import Space

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LARGEST_CHUNK = 8
"""Virtual orbitals of a chunk at most: what they are multiplied with stays in caches meanwhile."""

LEAST_CHUNKS = 16
"""About how many chunks there are at least, so that workers have something to share."""

NOBODY = -1e300
"""Energy of an orbital that is not there: what does not count is divided by it."""


@dataclass(frozen=True)
class Orbitals:
    """The orbitals by irrep, and the tasks that they make."""

    irreps: int
    """How many irreps there are, a power of two; 1 without symmetry."""
    occ_irrep: Ints
    """Irrep of each occupied orbital."""
    vir_irrep: Ints
    """Irrep of each virtual orbital."""
    chunks: Ints
    """First virtual orbital of each chunk; one more at the end."""

    @classmethod
    def of(cls, occ: Space, vir: Space) -> Orbitals:
        """The orbitals of two spaces; irreps count if both have them."""
        tiles = [space.irrep for space in (occ, vir) if space.irrep is not None]
        if len(tiles) < 2:
            tiles = [np.zeros(space.ntiles, np.int64) for space in (occ, vir)]
        most = max(int(labels.max(initial=0)) for labels in tiles)
        occ_irrep, vir_irrep = (np.repeat(each, space.sizes) for each, space in zip(tiles, (occ, vir), strict=True))
        return cls(1 << most.bit_length(), occ_irrep, vir_irrep, _cut(vir))

    @property
    def nocc(self) -> int:
        """Occupied orbitals."""
        return len(self.occ_irrep)

    @property
    def nvir(self) -> int:
        """Virtual orbitals."""
        return len(self.vir_irrep)

    @property
    def nchunks(self) -> int:
        """Chunks; none if there are no triples."""
        return len(self.chunks) - 1 if min(self.nocc, self.nvir) > 1 else 0

    @property
    def ntasks(self) -> int:
        """Three chunks in descending order."""
        return self.nchunks * (self.nchunks + 1) * (self.nchunks + 2) // 6

    # Sizes by irrep

    @cached_property
    def xor(self) -> Ints:
        """The product of two irreps."""
        return np.bitwise_xor.outer(np.arange(self.irreps), np.arange(self.irreps))

    @cached_property
    def occupied(self) -> Ints:
        """Occupied orbitals of each irrep."""
        return np.bincount(self.occ_irrep, minlength=self.irreps)

    @cached_property
    def depths(self) -> Ints:
        """Orbitals of each irrep."""
        return self.occupied + np.bincount(self.vir_irrep, minlength=self.irreps)

    @cached_property
    def pairs(self) -> Ints:
        """Pairs of occupied orbitals of each irrep."""
        counts: Ints = (self.occupied * self.occupied[self.xor]).sum(axis=1)
        return counts

    @cached_property
    def row_sizes(self) -> Ints:
        """(irrep of ab, irrep of i): elements of packed rows."""
        return self.occupied * self.depths[self.xor]

    @cached_property
    def col_sizes(self) -> Ints:
        """(irrep of c, irrep of the pair): elements of packed columns."""
        return _padded(self.pairs, LANES_8) * self.depths[self.xor]

    @cached_property
    def pair_sizes(self) -> Ints:
        """(irrep of the pair, irrep of its first orbital): pairs of occupied orbitals."""
        return self.occupied * self.occupied[self.xor]

    @cached_property
    def occ_number(self) -> Ints:
        """Number of each occupied orbital when they are sorted by irrep."""
        number = np.empty(self.nocc, np.int64)
        number[np.argsort(self.occ_irrep, kind="stable")] = np.arange(self.nocc)
        return number

    @cached_property
    def depth_numbers(self) -> tuple[Ints, Ints]:
        """Number of each occupied and of each virtual orbital among those of its irrep, virtual ones first."""
        virtual = _number_equal(self.vir_irrep)
        return _number_equal(self.occ_irrep) + (self.depths - self.occupied)[self.occ_irrep], virtual

    @property
    def pitch(self) -> int:
        """Elements from row to row of a sum."""
        return int(_padded(self.pairs.max(initial=1), WIDTH))

    @property
    def wide(self) -> int:
        """Orbitals of the largest irrep, rounded up to whole vectors."""
        return int(_padded(self.occupied.max(initial=1), LANES_8))

    @property
    def room_sizes(self) -> tuple[int, int]:
        """Elements of a worker's buffers: sums, and W in several orders."""
        sums, wide = (3 * self.nocc + LANES_8) * self.pitch, self.wide
        return sums, 3 * (wide * self.nocc + LANES_8) * wide if self.irreps == 1 else ORDERS * wide

    def occupied_view(self, energies: Floats) -> Occupied:
        """The occupied orbitals as the compiled loops see them."""
        occupied, order = self.occupied, np.argsort(self.occ_irrep, kind="stable")
        slivers = -(-occupied // MAX_ROWS)
        whole = np.maximum(slivers, 1)
        segments = np.zeros((self.irreps, 4), np.int32)
        segments[:, 2] = self.depths
        return Occupied(
            begin=frozen(np.append(0, np.cumsum(occupied))),
            irrep=frozen(self.occ_irrep[order]),
            energy=frozen(np.append(energies[order], np.full(LANES_8, NOBODY))),
            depth=frozen(self.depths),
            pairs=frozen(self.pairs),
            pair_at=frozen(begins(self.pair_sizes)),
            row_at=frozen(begins(self.row_sizes)),
            col_at=frozen(begins(self.col_sizes)),
            slivers=frozen(np.stack([slivers, occupied // whole, occupied % whole], axis=1)),
            segments=frozen(segments),
            lines=frozen(np.arange(MAX_ROWS) * self.pitch),
            pitch=self.pitch,
            wide=self.wide,
        )

    # Tasks

    def tasks(self, three: Sequence[tuple[int, int]]) -> Ints:
        """All tasks of three slices, (tasks, 3): chunks in descending order."""
        a, b, c = (np.arange(*chunks) for chunks in three)
        grid = np.stack(np.meshgrid(a, b, c, indexing="ij"), axis=-1).reshape(-1, 3)
        return grid[(grid[:, 0] >= grid[:, 1]) & (grid[:, 1] >= grid[:, 2])]

    def task_flops(self, tasks: Ints) -> Ints:
        """Floating-point operations of the products of each task: six for three virtuals, three if two are equal."""
        a, b, c = (self.vir_irrep[self.chunks[tasks[:, mode]]] for mode in range(3))
        total = a ^ b ^ c
        ab, ac, bc = (self._product_flops[pair, total] for pair in (a ^ b, a ^ c, b ^ c))
        counts: Ints = self._count_halves(tasks) * (ab + ac + bc)
        return counts

    @cached_property
    def _product_flops(self) -> Ints:
        """(irrep of ab, irrep of abc): floating-point operations of a product."""
        flops: Ints = 2 * np.einsum("h,ht,hx->xt", self.occupied, self.pairs[self.xor], self.depths[self.xor])
        return flops

    def _count_halves(self, tasks: Ints) -> Ints:
        """Triples of each task: two for a > b > c, one for a == b > c or a > b == c."""
        a, b, c = np.diff(self.chunks)[tasks].T
        upper, lower = tasks[:, 0] == tasks[:, 1], tasks[:, 1] == tasks[:, 2]
        # n^3 - n over 3 for a >= b >= c in one chunk, n^2 for a >= b: each pair or triple of equal ones counts less.
        counts: Ints = np.select(
            [upper & lower, upper, lower], [a * (a - 1) * (a + 1) // 3, a * a * c, a * b * b], 2 * a * b * c
        )
        return counts


def _cut(vir: Space) -> Ints:
    """Cut tiles into chunks of about the same size."""
    most = min(max(vir.size // LEAST_CHUNKS, 1), LARGEST_CHUNK)
    sizes = [part.size for tile in vir.sizes.tolist() for part in np.array_split(np.arange(tile), -(-tile // most))]
    return np.append(0, np.cumsum(np.array(sizes, np.int64)))


def _padded(count: Any, width: int) -> Any:
    return -(-count // width) * width


def begins(sizes: Ints) -> Ints:
    """Where parts of some sizes begin, along the last axis."""
    begins: Ints = np.cumsum(sizes, axis=-1) - sizes
    return begins


def _number_equal(labels: Ints) -> Ints:
    """The number of each entry among those with the same label."""
    numbers = np.empty(len(labels), np.int64)
    for label in np.unique(labels).tolist():
        numbers[labels == label] = np.arange(np.count_nonzero(labels == label))
    return numbers
