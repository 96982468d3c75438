"""Who of several ranks does what of a transform, and what that moves (Rajbhandari et al. 2017, 7.3).

In the first half only pairs of functions can go to different ranks without anything being done twice; where there are
fewer of them than ranks, the leading orbitals are cut into parts as well, and every rank that has a part of a pair
makes its integrals. In the second half pairs of leading orbitals go to ranks, and the blocks of the result stay there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tilewise.plans.balance import cut_evenly, deal_mirrored
from tilewise.plans.transform.problem import Problem

Ints = npt.NDArray[np.int64]
Part = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Task:
    """A pair of tiles of functions, for some tiles of leading orbitals."""

    row: int
    """The pair of functions."""
    part: Part
    """Range of tiles of leading orbitals."""
    rank: int
    """Who does it."""


@dataclass(frozen=True, eq=False)
class Deal:
    """How ranks share a transform."""

    problem: Problem
    """What is shared."""
    ranks: int = 1
    """How many there are."""
    ranks_per_node: int = 1
    """How many of them share a node."""

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return -(-self.ranks // self.ranks_per_node)

    @cached_property
    def column_owner(self) -> Ints:
        """The rank of each pair of leading orbitals."""
        first = self.problem.first
        return deal_mirrored((first.unique * (1 + self.problem.partners)).astype(np.float64), self.ranks)

    def tasks(self, rows: Ints, part: Part) -> list[Task]:
        """The first half of some pairs of functions and tiles of leading orbitals, each with its rank."""
        count = len(rows)
        pieces = 1 if count >= self.ranks or not count else min(-(-self.ranks // count), part[1] - part[0])
        parts = self._cut(part, pieces)
        weights = np.multiply.outer(
            self.problem.functions.sizes[rows].astype(np.float64), [self._weight(piece) for piece in parts]
        )
        owner = deal_mirrored(weights.ravel(), self.ranks).reshape(weights.shape)
        return [
            Task(int(row), piece, int(owner[i, j]))
            for i, row in enumerate(rows.tolist())
            for j, piece in enumerate(parts)
        ]

    def half_owner(self, tasks: list[Task], rows: Ints, columns: Ints) -> Ints:
        """The rank that makes each block of O2, in a table of pairs of functions against pairs of orbitals."""
        lead = self.problem.first.tiles[columns, self.problem.lead(self.problem.first)]
        owner = np.zeros((len(rows), len(columns)), np.int64)
        for task in tasks:
            own = (lead >= task.part[0]) & (lead < task.part[1])
            owner[np.searchsorted(rows, task.row), own] = task.rank
        return owner

    def largest_half(self, owner: Ints, rows: Ints, columns: Ints) -> int:
        """Most elements of O2 that a rank has."""
        sizes = np.multiply.outer(self.problem.functions.sizes[rows], self.problem.first.sizes[columns])
        return int(np.bincount(owner.ravel(), sizes.ravel(), self.ranks).max(initial=0))

    def between_bytes(self, owner: Ints, rows: Ints, columns: Ints) -> int:
        """Bytes of O2 that go from node to node between the halves."""
        sizes = np.multiply.outer(self.problem.functions.sizes[rows], self.problem.first.sizes[columns])
        there = np.broadcast_to(self.column_owner[columns], owner.shape)
        return 8 * int(sizes[owner // self.ranks_per_node != there // self.ranks_per_node].sum())

    @cached_property
    def largest_result(self) -> int:
        """Most elements of C that a rank has."""
        first = self.problem.first
        return int(np.bincount(self.column_owner, first.sizes * self.problem.partners, self.ranks).max(initial=0))

    def largest_of(self, values: Ints, owner: Ints) -> int:
        """The largest sum of values that a rank has."""
        return int(np.bincount(owner, values, self.ranks).max(initial=0))

    def _cut(self, part: Part, pieces: int) -> list[Part]:
        """A range of tiles of leading orbitals in pieces of about equal work."""
        if pieces == 1:
            return [part]
        weights = np.array([self._weight((tile, tile + 1)) for tile in range(*part)])
        ends = (part[0] + cut_evenly(weights, pieces)).tolist()
        return [(begin, end) for begin, end in pairwise(ends) if begin < end]

    def _weight(self, part: Part) -> float:
        """Work of a range of leading orbitals for one pair of functions: both steps of the first half."""
        problem, lead = self.problem, self.problem.lead(self.problem.first)
        offsets, tiles = problem.first.spaces[lead].offsets, problem.first.tiles[:, lead]
        own = (tiles >= part[0]) & (tiles < part[1])
        return float(problem.size * (offsets[part[1]] - offsets[part[0]]) + problem.first.sizes[own].sum())
