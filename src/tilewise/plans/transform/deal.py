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
    passes: tuple[Part, ...] = ()
    """Ranges of tiles of leading orbitals that are done one after the other; empty for all at once."""

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return -(-self.ranks // self.ranks_per_node)

    @cached_property
    def column_owner(self) -> Ints:
        """The rank of each pair of leading orbitals; those of a pass are dealt by themselves, so that all have some."""
        first = self.problem.first
        weights = (first.unique * (1 + self.problem.partners)).astype(np.float64)
        owner = deal_mirrored(weights, self.ranks)
        tiles = first.tiles[:, self.problem.lead(first)]
        for begin, end in self.passes:
            own = (tiles >= begin) & (tiles < end)
            owner[own] = deal_mirrored(weights[own], self.ranks)
        return owner

    def tasks(self, rows: Ints, part: Part) -> list[Task]:
        """The first half of some pairs of functions and tiles of leading orbitals, each with its rank, pair by pair."""
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
        if not tasks:
            return np.zeros((len(rows), len(columns)), np.int64)
        table = np.array([task.rank for task in tasks]).reshape(len(rows), -1)
        begins = np.array([task.part[0] for task in tasks[: table.shape[1]]])
        return table[:, np.searchsorted(begins, lead, side="right") - 1]

    def between_bytes(self, owner: Ints, rows: Ints, columns: Ints) -> int:
        """Bytes of O2 that go from node to node between the halves."""
        sizes = np.multiply.outer(self.problem.functions.sizes[rows], self.problem.first.sizes[columns])
        there = np.broadcast_to(self.column_owner[columns], owner.shape)
        return 8 * int(sizes[owner // self.ranks_per_node != there // self.ranks_per_node].sum())

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
