"""The halves and steps of a transform, each a pass over rows with the tables that the compiled loop needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.kernels.pairs import FIRST, SECOND, Factors, Outcomes, Sources
from tilewise.engines.threads import ThreadsEngine
from tilewise.engines.transform.rows import Pass, Room, no_outcomes, no_sources, run_pass
from tilewise.engines.transform.stores import Halves
from tilewise.engines.views import frozen
from tilewise.plans.transform import Problem, TilePairs
from tilewise.plans.transform.deal import Task
from tilewise.plans.transform.schedules import BATCH

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Part = tuple[int, int]


class Passes:
    """Runs passes on the workers of an engine.

    Parameters
    ----------
    host : ThreadsEngine
        Whose workers compute.
    problem : Problem
        The pairs of functions and orbitals.
    matrices : sequence of four arrays
        Coefficients of each mode of the result, in tile order.
    account : Account
        Where memory is counted.
    told : callable
        Called after each pass with the floating-point operations so far.
    """

    def __init__(
        self,
        host: ThreadsEngine,
        problem: Problem,
        matrices: Sequence[Floats],
        account: Account,
        told: Callable[[int], None],
    ) -> None:
        self.host, self.problem, self.account, self.told = host, problem, account, told
        self.matrices = [np.ascontiguousarray(matrix, np.float64) for matrix in matrices]
        self.tally = np.zeros((host.workers, 8), np.int64)

    @property
    def flops(self) -> int:
        """Floating-point operations done so far."""
        return int(self.tally[:, 2].sum())

    # Buffers

    def first_room(self, orbitals: int) -> Room:
        """Buffers for the first half, with that many leading orbitals."""
        n = self.problem.size
        return Room.make(self.host.workers, self.account, square=BATCH * n * n, middle=orbitals * n)

    def second_room(self, factors: Factors) -> Room:
        """Buffers for the second half."""
        n, wide, scattered = self.problem.size, factors.second.shape[0], self._scattered
        middle = factors.first.shape[1] * wide * (BATCH if scattered else 1)
        return Room.make(
            self.host.workers, self.account, square=BATCH * n * wide, middle=middle, buffer=BATCH * scattered
        )

    def step_room(self, wide: int, *, last: bool) -> Room:
        """Buffers for one step by itself."""
        square = 0 if last else BATCH * self.problem.size * wide
        buffer = BATCH * self._scattered if last else 0
        return Room.make(self.host.workers, self.account, square=square, middle=0, buffer=buffer)

    def release(self, room: Room) -> None:
        """Tell the account of buffers that the caller drops now."""
        self.account.give(room.nbytes)

    @property
    def _scattered(self) -> int:
        """Elements of the largest pair whose elements lie far apart in the result; 0 if none do."""
        return self.problem.second.largest if self.problem.leading else 0

    # Matrices

    def first_factors(self, part: Part) -> Factors:
        """F and G of the first half, F for a range of tiles."""
        first, other = self._matrices(self.problem.leading)
        begin, end = self._lead_range(part)
        if end - begin < first.shape[1]:
            first = np.ascontiguousarray(first[:, begin:end])
        return Factors(frozen(first), frozen(other))

    def second_factors(self, part: Part | None) -> Factors:
        """F and G of the second half; G for a range of functions only if there is a part."""
        first, other = self._matrices(1 - self.problem.leading)
        offsets = self.problem.functions.spaces[0].offsets
        rows = slice(None) if part is None else slice(offsets[part[0]], offsets[part[1]])
        return Factors(frozen(first), frozen(other[rows]))

    def _matrices(self, side: int) -> tuple[Floats, Floats]:
        """The matrix of a side that comes first, and the other one."""
        lead = self.problem.lead(self.problem.sides[side])
        first = self.matrices[2 * side + lead]
        # The first factor takes up the first function of a pair: if it is the second one's, they are exchanged.
        return (-first if lead and self.problem.sign < 0 else first), self.matrices[2 * side + 1 - lead]

    def _lead_range(self, part: tuple[int, int]) -> tuple[int, int]:
        offsets = self.problem.first.spaces[self.problem.lead(self.problem.first)].offsets
        return int(offsets[part[0]]), int(offsets[part[1]])

    # Passes

    def first_half(self, task: Task, sources: Sources, halves: Halves, room: Room) -> None:
        """O2 of a task."""
        rows, outcomes = self.problem.functions.rows(task.row), self._half_outcomes(task, halves)
        self._run(Pass(sources, self.first_factors(task.part), outcomes, *rows), room)

    def first_step(self, task: Task, sources: Sources, room: Room, kept: Floats) -> None:
        """O1 of a task."""
        rows = self.problem.functions.rows(task.row)
        self._run(Pass(sources, self.first_factors(task.part), no_outcomes(), *rows, FIRST, kept), room)

    def second_step(self, task: Task, halves: Halves, room: Room, kept: Floats) -> None:
        """O2 of a task, from O1."""
        rows, outcomes = self.problem.functions.rows(task.row), self._half_outcomes(task, halves)
        self._run(Pass(no_sources(), self.first_factors(task.part), outcomes, *rows, SECOND, kept), room)

    def orbitals(self, task: Task) -> int:
        """Leading orbitals of a task."""
        begin, end = self._lead_range(task.part)
        return end - begin

    def second_half(self, pair: int, sources: Sources, factors: Factors, room: Room, outcomes: Outcomes) -> Floats:
        """C of a pair of tiles of leading orbitals; the sum of squares of each block."""
        return self._run(Pass(sources, factors, outcomes, *self.problem.first.rows(pair)), room)

    def third_step(self, pair: int, sources: Sources, factors: Factors, room: Room, kept: Floats) -> None:
        """O3 of a pair of tiles of leading orbitals."""
        rows = self.problem.first.rows(pair)
        self._run(Pass(sources, factors, no_outcomes(), *rows, FIRST, kept), room)

    def fourth_step(self, pair: int, factors: Factors, room: Room, outcomes: Outcomes, kept: Floats) -> Floats:
        """C of a pair of tiles of leading orbitals, from O3; the sum of squares of each block."""
        rows = self.problem.first.rows(pair)
        return self._run(Pass(no_sources(), factors, outcomes, *rows, SECOND, kept), room)

    def _run(self, work: Pass, room: Room) -> Floats:
        return run_pass(self.host, work, room, self.tally, lambda: self.told(self.flops))

    # Where results go

    def _half_outcomes(self, task: Task, halves: Halves) -> Outcomes:
        """O2 of a task: the block of each pair of orbitals."""
        problem, begin = self.problem, self._lead_range(task.part)[0]
        tiles = problem.first.tiles[halves.columns, problem.lead(problem.first)]
        own = (tiles >= task.part[0]) & (tiles < task.part[1])
        table = outcome_table(problem, problem.first, halves.columns[own], begin)
        table[:, 4], table[:, 5], table[:, 6] = (
            halves.starts(task.row)[own],
            problem.first.sizes[halves.columns[own]],
            1,
        )
        return Outcomes(halves.data, frozen(table), 0.0, bool(problem.lead(problem.first)), False, 0.0)

    def result_outcomes(self, pair: int, data: Floats, starts: Ints, beta: float, *, final: bool) -> Outcomes:
        """C of a pair of leading orbitals: its blocks, which begin at `starts`."""
        problem = self.problem
        others = problem.block_pairs[problem.blocks_of(pair), 1]
        table = outcome_table(problem, problem.second, others, 0)
        sizes = problem.second.sizes[others]
        table[:, 4] = starts
        table[:, 5], table[:, 6] = (1, problem.first.sizes[pair]) if problem.leading else (sizes, 1)
        swapped = bool(problem.lead(problem.second))
        return Outcomes(data, frozen(table), beta, swapped, final, float(problem.sign))


def outcome_table(problem: Problem, side: TilePairs, pairs: Ints, begin: int) -> Ints:
    """The first four columns of a table of `Outcomes`: columns of F, counted from `begin`, and of G."""
    lead = problem.lead(side)
    columns = []
    for mode, first in ((lead, begin), (1 - lead, 0)):
        tiles = side.tiles[pairs, mode]
        columns += [side.spaces[mode].offsets[tiles] - first, side.spaces[mode].sizes[tiles]]
    empty = np.zeros(len(pairs), np.int64)
    return np.stack([*columns, empty, empty, empty], axis=1)
