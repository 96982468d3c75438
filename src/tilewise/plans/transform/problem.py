"""What a four-index transform works on: pairs of tiles of functions and of orbitals, and the tensors between them.

The four steps are those of Rajbhandari et al. (2017), equation 2: A (functions) -> O1 -> O2 -> O3 -> C (orbitals). The
pair of orbitals that comes first is the *leading* one; within a pair the smaller set is transformed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.patterns import Pattern, Symmetry
from tilewise.spaces import Space

Ints = npt.NDArray[np.int64]

NO_TWIN = -1
"""Stands for the twin of a row that has none."""


@dataclass(frozen=True, eq=False)
class TilePairs:
    """Pairs of tiles of two spaces, one of each two that an exchange of indices makes equal."""

    spaces: tuple[Space, Space]
    """The two spaces."""
    symmetric: bool
    """Whether (p, q) and (q, p) stand for the same; then the first tile is not after the second."""
    packed: bool
    """Whether a pair of equal tiles keeps its elements with p >= q only."""

    @cached_property
    def tiles(self) -> Ints:
        """The two tiles of each pair, ordered by the second one, then by the first."""
        first, second = (space.ntiles for space in self.spaces)
        pairs = [(p, q) for q in range(second) for p in range(q + 1 if self.symmetric else first)]
        return np.array(pairs, np.int64).reshape(-1, 2)

    @cached_property
    def number(self) -> Ints:
        """The pair of two tiles, -1 where there is none, in a table (first tiles, second tiles)."""
        table = np.full([space.ntiles for space in self.spaces], -1, np.int64)
        table[self.tiles[:, 0], self.tiles[:, 1]] = np.arange(len(self.tiles))
        return table

    @cached_property
    def sizes(self) -> Ints:
        """Elements that are kept of each pair."""
        first, second = (space.sizes[self.tiles[:, side]] for side, space in enumerate(self.spaces))
        full = first * second
        return np.where(self._is_diagonal, first * (first + 1) // 2, full) if self.packed else full

    @cached_property
    def unique(self) -> Ints:
        """Elements of each pair that no other element of it repeats."""
        first = self.spaces[0].sizes[self.tiles[:, 0]]
        return np.where(self._is_diagonal, first * (first + 1) // 2, self.sizes)

    @property
    def _is_diagonal(self) -> npt.NDArray[np.bool_]:
        return self.symmetric & (self.tiles[:, 0] == self.tiles[:, 1])

    @property
    def count(self) -> int:
        """Number of pairs of tiles."""
        return len(self.tiles)

    @property
    def elements(self) -> int:
        """Elements of all pairs."""
        return int(self.sizes.sum())

    @property
    def largest(self) -> int:
        """Elements of the largest pair."""
        return int(self.sizes.max(initial=0))

    def is_diagonal(self, pair: int) -> bool:
        """Whether a pair has two equal tiles whose elements repeat each other."""
        return bool(self._is_diagonal[pair])

    def rows(self, pair: int) -> tuple[Ints, Ints]:
        """The elements of a pair that have to be computed, and for each the one that repeats it."""
        if self.packed or not self.is_diagonal(pair):
            every = np.arange(self.sizes[pair])
            return every, np.full(len(every), NO_TWIN)
        size = int(self.spaces[0].sizes[self.tiles[pair, 0]])
        first, second = np.triu_indices(size)
        twins = np.where(first == second, NO_TWIN, second * size + first)
        return first * size + second, twins


@dataclass(frozen=True, eq=False)
class Problem:
    """A tensor of functions, four sets of orbitals, and the blocks of the result."""

    functions: TilePairs
    """Pairs of functions, packed."""
    sides: tuple[TilePairs, TilePairs]
    """Pairs of orbitals of the first two and of the last two modes of the result."""
    sign: int
    """(pq|rs) = sign (qp|rs) = sign (pq|sr)."""
    result: Pattern
    """The blocks of the result."""
    needed: npt.NDArray[np.bool_] | None = None
    """Which blocks of A are not negligible, in a table of pairs of functions against pairs; None if all are needed."""

    @classmethod
    def of(cls, functions: Space, orbitals: Sequence[Space], equal: tuple[bool, bool], sign: int = 1) -> Problem:
        """The problem of some spaces.

        Parameters
        ----------
        functions : Space
            The functions of all four modes of A.
        orbitals : sequence of four Space
            The modes of the result.
        equal : (bool, bool)
            Whether the matrices of the first two and of the last two modes are the same.
        sign : int
            +1 or -1: what an exchange of two functions of a pair does to A.
        """
        modes = tuple(orbitals)
        if len(modes) != 4 or sign not in (1, -1):
            raise InputError(
                f"A transform to {len(modes)} sets of orbitals with sign {sign!r} was asked for. Expected four sets "
                "and +1 or -1. Correct them."
            )
        sides = tuple(TilePairs((modes[2 * i], modes[2 * i + 1]), equal[i], packed=False) for i in (0, 1))
        groups = [((2 * i, 2 * i + 1), sign) for i in (0, 1) if equal[i]]
        symmetry = Symmetry(*groups) if groups else None
        labelled = all(space.irrep is not None for space in modes)
        result = Pattern.allowed(modes, irrep=0, symmetry=symmetry) if labelled else Pattern.dense(modes, symmetry)
        return cls(TilePairs((functions, functions), True, packed=True), (sides[0], sides[1]), sign, result)

    @property
    def size(self) -> int:
        """Number of functions."""
        return self.functions.spaces[0].size

    @property
    def matrix_elements(self) -> int:
        """Elements of the four matrices."""
        return self.size * sum(space.size for side in self.sides for space in side.spaces)

    @cached_property
    def row_elements(self) -> Ints:
        """Elements of A that each pair of functions needs."""
        sizes = self.functions.sizes
        if self.needed is None:
            return sizes * int(sizes.sum())
        return sizes * (self.needed @ sizes)

    @cached_property
    def kept_elements(self) -> int:
        """Elements of A, one of each two blocks that are equal."""
        sizes = self.functions.sizes
        diagonal = sizes if self.needed is None else sizes * np.diagonal(self.needed)
        return int((self.row_elements.sum() + (sizes * diagonal).sum()) // 2)

    @cached_property
    def leading(self) -> int:
        """The side that is transformed first: the one that makes less work."""
        return min((0, 1), key=lambda side: (self._flops(side), side))

    @property
    def first(self) -> TilePairs:
        """Pairs of orbitals of the leading side."""
        return self.sides[self.leading]

    @property
    def second(self) -> TilePairs:
        """Pairs of orbitals of the other side."""
        return self.sides[1 - self.leading]

    @staticmethod
    def lead(side: TilePairs) -> int:
        """The mode of a pair that is transformed first: the one with fewer orbitals, of equal ones the first."""
        return int(side.spaces[0].size > side.spaces[1].size)

    @cached_property
    def block_pairs(self) -> Ints:
        """Pair of the leading side and pair of the other side of each block of the result."""
        index = self.result.index
        pairs = [side.number[index[:, 2 * i], index[:, 2 * i + 1]] for i, side in enumerate(self.sides)]
        return np.stack([pairs[self.leading], pairs[1 - self.leading]], axis=1)

    @cached_property
    def _blocks(self) -> tuple[Ints, Ints]:
        """Blocks ordered by their leading pair, and where those of each pair begin."""
        leading = self.block_pairs[:, 0]
        ends = np.cumsum(np.bincount(leading, minlength=self.first.count))
        return np.argsort(leading, kind="stable"), np.concatenate([[0], ends])

    def blocks_of(self, pair: int) -> Ints:
        """The blocks of the result that have a pair of the leading side."""
        order, begin = self._blocks
        return order[begin[pair] : begin[pair + 1]]

    @cached_property
    def partners(self) -> Ints:
        """Elements of the pairs of the other side that the result has with each pair of the leading side."""
        pairs = self.block_pairs
        sizes = self.second.sizes[pairs[:, 1]]
        return np.bincount(pairs[:, 0], sizes, self.first.count).astype(np.int64)

    @cached_property
    def tensor_elements(self) -> tuple[int, int, int, int, int]:
        """Elements of A, O1, O2, O3 and C, none twice (Table 1 of Rajbhandari et al. 2017, lower orders included)."""
        n, pairs, first, second = self.size, self.functions.elements, self.first, self.second
        rows = int(first.unique.sum())
        blocks = self.block_pairs
        result = int((first.unique[blocks[:, 0]] * second.unique[blocks[:, 1]]).sum())
        lead = [side.spaces[self.lead(side)].size for side in (first, second)]
        return pairs**2, pairs * lead[0] * n, pairs * rows, rows * lead[1] * n, result

    def steps(self, rows: int) -> tuple[int, int, int, int]:
        """Floating-point operations of the four steps, if `rows` pairs of functions pass through the first two.

        The loops of Listing 1: an orbital, a function that is summed over and the three indices that stay, one pair of
        each two that are equal; a multiplication and an addition each.
        """
        n, first, second = self.size, self.first, self.second
        return (
            2 * rows * n * n * first.spaces[self.lead(first)].size,
            2 * rows * n * first.elements,
            2 * int(first.unique.sum()) * n * n * second.spaces[self.lead(second)].size,
            2 * n * int((first.unique * self.partners).sum()),
        )

    def _flops(self, leading: int) -> int:
        """About the work with one side first: without spatial symmetry."""
        n, pairs = self.size, self.functions.elements
        first, second = self.sides[leading], self.sides[1 - leading]
        rows = int(first.unique.sum())
        half = pairs * (n * n * first.spaces[self.lead(first)].size + n * first.elements)
        return half + rows * (n * n * second.spaces[self.lead(second)].size + n * second.elements)
