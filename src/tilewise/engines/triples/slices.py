"""What is held of the operands at a time, and which tasks a rank has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np
import numpy.typing as npt

from tilewise.engines.kernels.microkernel import LANES_8
from tilewise.engines.triples.orbitals import Orbitals
from tilewise.patterns import Pattern
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Slices = tuple[tuple[int, int], ...]
"""First chunk of each slice, and one past its last."""
Three = tuple[int, int, int]
"""Three slices in descending order."""

WORD = 8
"""Bytes of an element, and of a number."""


@dataclass(frozen=True, slots=True)
class TriplesInput:
    """What the triples correction is made of; orbitals in the order of their tiles."""

    occ: Space
    """Occupied orbitals, perhaps with irreps."""
    vir: Space
    """Virtual orbitals, perhaps with irreps."""
    occupied_energies: Floats
    """Diagonal of the Fock matrix, in hartree."""
    virtual_energies: Floats
    """Diagonal of the Fock matrix, in hartree."""
    fov: BlockTensor
    """[i, a]: the Fock matrix."""
    t1: BlockTensor
    """[i, a]: amplitudes."""
    t2: BlockTensor
    """[i, a, j, b]: amplitudes."""
    ovov: BlockTensor
    """[i, a, j, b] = (ia|jb)."""
    ooov: BlockTensor
    """[k, i, l, c] = (ki|lc)."""
    ovvv: BlockTensor
    """[b, k, c, d] = (kc|bd); its elements may be somewhere else than in memory."""


def list_threes(count: int) -> Iterator[Three]:
    """Three of so many slices in descending order; the last changes fastest."""
    return ((a, b, c) for a in range(count) for b in range(a + 1) for c in range(b + 1))


def cut_slices(orbitals: Orbitals, count: int) -> Slices:
    """Cut the chunks into so many slices of about the same number of virtual orbitals."""
    ideal = np.linspace(0, orbitals.nvir, count + 1)
    ends = np.unique(np.searchsorted(orbitals.chunks, ideal - 0.5))
    return tuple(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))


@dataclass(frozen=True)
class Holding:
    """What is held of the operands at a time: rows and pairs by two slices, columns by one."""

    orbitals: Orbitals
    """The orbitals."""
    slices: Slices
    """The slices."""

    @property
    def panels(self) -> int:
        """Ordered pairs of slices that are held at once."""
        return (1, 3, 6)[min(len(self.slices), 3) - 1]

    @property
    def columns(self) -> int:
        """Slices whose columns are held at once."""
        return min(len(self.slices), 3)

    @cached_property
    def _counts(self) -> Ints:
        """(slice, irrep): virtual orbitals."""
        chunks, irreps = self.orbitals.chunks, self.orbitals.vir_irrep
        spans = [(chunks[begin], chunks[end]) for begin, end in self.slices]
        return np.array([np.bincount(irreps[b:e], minlength=self.orbitals.irreps) for b, e in spans])

    def _largest_panel(self, sizes: Ints) -> int:
        """Elements of the largest panel, given those of ab by irrep."""
        by_irrep = sizes[self.orbitals.xor]
        return int((self._counts @ by_irrep @ self._counts.T).max())

    @cached_property
    def row_panel(self) -> int:
        """Elements of the rows of two slices at most."""
        return self._largest_panel(self.orbitals.row_sizes.sum(axis=1))

    @cached_property
    def pair_panel(self) -> int:
        """Elements of the pairs of two slices at most."""
        return self._largest_panel(self.orbitals.pairs)

    @cached_property
    def column_panel(self) -> int:
        """Elements of the columns of a slice at most, in one order."""
        return int((self._counts @ self.orbitals.col_sizes.sum(axis=1)).max())

    @property
    def pair_elements(self) -> int:
        """Elements of all pairs, with those that are read beyond them and not used."""
        return self.panels * self.pair_panel + int(self.orbitals.pairs.max()) + LANES_8

    @property
    def passes(self) -> float:
        """How often one process that does everything reads (kc|bd)."""
        held: set[tuple[int, int]] = set()
        sizes, elements = self._counts.sum(axis=1), 0
        for three in list_threes(len(self.slices)):
            needed = set(permutations(three, 2))
            elements += sum(int(sizes[x] * sizes[y]) for x, y in needed - held)
            held = needed
        return elements / self.orbitals.nvir**2

    def peak_bytes(self, given: TriplesInput, workers: int) -> int:
        """Bytes that a run adds to what the tensors hold."""
        pairs = self.pair_elements * (2 if has_fock(given) else 1)
        operands = WORD * (self.panels * self.row_panel + 2 * self.columns * self.column_panel + pairs)
        return operands + self._table_bytes(workers) + _block_bytes(given)

    def _table_bytes(self, workers: int) -> int:
        """Bytes of tables, of the energies of all tasks, and of what workers have to themselves."""
        orbitals = self.orbitals
        most = max(end - begin for begin, end in self.slices)
        tasks = 12 * most**3 + 2 * orbitals.ntasks
        singles = 4 * orbitals.nvir * (orbitals.nocc + LANES_8)
        places = 7 * orbitals.nvir**2
        return WORD * (places + singles + tasks + workers * sum(orbitals.room_sizes))


def total_irreps(pattern: Pattern, index: Ints) -> Ints:
    """The product of the irreps of each block's tiles: blocks for which it is not 0 vanish by symmetry."""
    total = np.zeros(len(index), np.int64)
    for mode, space in enumerate(pattern.spaces):
        if space.irrep is not None:
            total ^= space.irrep[index[:, mode]]
    return total


def has_fock(given: TriplesInput) -> bool:
    """Whether the Fock matrix has elements between occupied and virtual orbitals."""
    return bool((given.fov.pattern.norms > 0).any())


def _block_bytes(given: TriplesInput) -> int:
    """Bytes of a block while it is read, where it does not lie in memory as the loops need it."""
    most = 0
    for tensor in (given.t2, given.ovov, given.ooov, given.ovvv):
        seen = tensor.in_memory and tensor.arena.complete
        plain = tensor.dtype == np.float64 and tensor.symmetry is None
        copies = (not seen) + 2 * (not plain)
        most = max(most, WORD * copies * int(tensor.pattern.block_sizes.max(initial=0)))
    return most


def share_tasks(holding: Holding, flops: int, ranks: int, rank: int) -> Iterator[tuple[Three, Ints, Ints, int]]:
    """What one of several ranks does: three slices, their tasks, the flops of each, and the number of the first.

    All tasks stand in a row, and each rank has the same part of the flops: neighbouring tasks need the same slices.
    """
    before = number = 0
    for three in list_threes(len(holding.slices)):
        tasks = holding.orbitals.tasks([holding.slices[each] for each in three])
        work = holding.orbitals.task_flops(tasks)
        starts = before + np.cumsum(work) - work
        own = np.flatnonzero((starts.astype(np.float64) / max(flops, 1) * ranks).astype(np.int64) == rank)
        if len(own):
            yield three, tasks[own], work[own], number + int(own[0])
        before, number = before + int(work.sum()), number + len(tasks)
