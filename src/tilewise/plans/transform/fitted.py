"""What a transform of fitted integrals costs: (pq|rs) = sum_Q B(Q, pq) B(Q, rs), with B transformed instead of A."""

from __future__ import annotations

from dataclasses import dataclass

from tilewise.errors import MemoryBudgetError
from tilewise.plans.explain import bytes_text
from tilewise.plans.transform.problem import Problem, TilePairs
from tilewise.plans.transform.schedules import BATCH, WORD, Cost

FITTED = "fitted"
"""What takes the place of a schedule."""


@dataclass(frozen=True, slots=True)
class FittedSizes:
    """Sizes of the tensors and buffers, in bytes."""

    problem: Problem
    """Orbitals; the functions in the order of the vectors."""
    vectors: int
    """How many Q there are."""
    same: bool
    """Whether both sides have the same orbitals, so that their vectors are made once."""
    workers: int
    """Workers that share it."""

    @property
    def sides(self) -> list[tuple[TilePairs, int]]:
        """The sides whose vectors are made, each with its first mode."""
        bra, ket = self.problem.sides
        return [(bra, 0)] if self.same else [(bra, 0), (ket, 2)]

    @property
    def one(self) -> int:
        """One vector of pairs of functions."""
        return WORD * self.problem.size * (self.problem.size + 1) // 2

    @property
    def made(self) -> int:
        """All vectors of pairs of orbitals."""
        return WORD * self.vectors * sum(side.elements for side, _ in self.sides)

    @property
    def orbitals(self) -> int:
        """Most orbitals that are transformed first."""
        return max(side.spaces[self.problem.lead(side)].size for side, _ in self.sides)

    @property
    def fixed(self) -> int:
        """Matrices, buffers of workers and vectors of orbitals."""
        n = self.problem.size
        room = self.workers * (BATCH * n * n + self.orbitals * n)
        return WORD * (self.problem.matrix_elements + room) + self.made

    @property
    def result(self) -> int:
        """Matrices, vectors of orbitals and the result."""
        return WORD * (self.problem.matrix_elements + self.problem.result.nnz_elements) + self.made

    def at_once(self, budget: int) -> int:
        """Vectors of functions that are brought at a time; if there is no room for one, an error says what would do."""
        room = (budget - self.fixed) // max(self.one, 1)
        if room < 1 or self.result > budget:
            least = max(self.fixed + self.one, self.result)
            raise MemoryBudgetError(
                f"The transform of {self.vectors} fitted vectors needs more than the budget of {budget} bytes "
                f"({bytes_text(budget)}): the least is {least} bytes ({bytes_text(least)}), for vectors "
                f"over orbitals and the result. Expected a budget at least as large. Give memory={least}, or transform "
                "fewer orbitals.",
                budget,
                least,
            )
        return min(room, max(self.vectors, 1))

    def cost(self, budget: int) -> Cost:
        """What it costs within a budget."""
        n, chunk = self.problem.size, self.at_once(budget)
        halves = sum(n * n * side.spaces[self.problem.lead(side)].size + n * side.elements for side, _ in self.sides)
        flops = 2 * self.vectors * (halves + self.problem.result.nnz_elements)
        live = (("B", self.fixed + chunk * self.one), ("B, C", self.result))
        return Cost(flops, 0, live)
