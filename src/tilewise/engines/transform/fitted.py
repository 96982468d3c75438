"""Running transforms of fitted integrals: the vectors pass by, then blocks of the result are products of theirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.kernels.pairs import PACKED, Factors, Outcomes, Sources
from tilewise.engines.threads import ThreadsEngine
from tilewise.engines.transform.passes import outcome_table
from tilewise.engines.transform.rows import Pass, Room, run_pass
from tilewise.engines.transform.run import Outcome
from tilewise.engines.transform.stores import allocate, release
from tilewise.engines.transform.team import Alone
from tilewise.engines.views import frozen
from tilewise.errors import InputError
from tilewise.patterns import Pattern
from tilewise.plans.transform import TilePairs
from tilewise.plans.transform.fitted import FittedSizes
from tilewise.plans.transform.schedules import BATCH
from tilewise.tensors import BlockTensor
from tilewise.tensors.storage import Arena

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bring = Callable[[int], Iterable[Floats]]
"""Gives all vectors, at most so many at a time: arrays (vectors, pairs of functions p >= q)."""


def run_fitted(
    host: ThreadsEngine,
    sizes: FittedSizes,
    bring: Bring,
    matrices: Sequence[Floats],
    budget: int,
    told: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Transform fitted integrals to orbitals.

    Parameters
    ----------
    host : ThreadsEngine
        Whose workers compute.
    sizes : FittedSizes
        The problem, and how many vectors there are.
    bring : callable
        Gives the vectors.
    matrices : sequence of four arrays
        Coefficients of each mode of the result, orbitals in tile order, functions in that of the vectors.
    budget : int
        Bytes that may be held.
    told : callable, optional
        Called now and then with the flops that are done, and 0.
    """
    run = FittedRun(host, sizes, matrices, Account(budget), told)
    begin = time.perf_counter()
    sides = run.transform(bring(sizes.at_once(budget)))
    middle = time.perf_counter()
    tensor = run.multiply(sides)
    seconds = (("vectors", middle - begin), ("products", time.perf_counter() - middle))
    return Outcome(tensor, run.flops, 0, run.account.peak, 0, 0, 0, seconds)


class FittedRun:
    """One run."""

    def __init__(
        self,
        host: ThreadsEngine,
        sizes: FittedSizes,
        matrices: Sequence[Floats],
        account: Account,
        told: Callable[[int, int], None] | None,
    ) -> None:
        self.host, self.sizes, self.problem, self.account, self._told = host, sizes, sizes.problem, account, told
        self.matrices = [np.ascontiguousarray(matrix, np.float64) for matrix in matrices]
        account.take(sum(matrix.nbytes for matrix in self.matrices), "The coefficients")
        self.tally = np.zeros((host.workers, 8), np.int64)
        self._products = 0

    @property
    def flops(self) -> int:
        """Floating-point operations done."""
        return int(self.tally[:, 2].sum()) + self._products

    def _tell(self) -> None:
        if self._told is not None:
            self._told(self.flops, 0)

    def transform(self, chunks: Iterable[Floats]) -> list[Floats]:
        """The vectors over pairs of orbitals of each side: for each pair of tiles a matrix (vectors, elements)."""
        count, n = self.sizes.vectors, self.problem.size
        made = [allocate(self.account, count * side.elements, "Fitted vectors") for side, _ in self.sizes.sides]
        middle = self.sizes.orbitals * n
        room = Room.make(self.host.workers, self.account, square=BATCH * n * n, middle=middle)
        done = 0
        for chunk in chunks:
            self.account.take(chunk.nbytes, "Fitted vectors of functions")
            for (side, mode), data in zip(self.sizes.sides, made, strict=True):
                self._transform_chunk(side, mode, np.ascontiguousarray(chunk), done, data, room)
            done += len(chunk)
            self.account.give(chunk.nbytes)
        self.account.give(room.nbytes)
        if done != count:
            raise InputError(f"{done} fitted vectors came. Expected {count}. Make the density fitting anew.")
        return made * 2 if self.sizes.same else made

    def _transform_chunk(self, side: TilePairs, mode: int, chunk: Floats, done: int, data: Floats, room: Room) -> None:
        n, lead = self.problem.size, self.problem.lead(side)
        block = np.array([[PACKED, 0, 0, n, n, 0, chunk.shape[1], 1]], np.int64)
        table = outcome_table(self.problem, side, np.arange(side.count), 0)
        table[:, 4], table[:, 5], table[:, 6] = self._starts(side) + done * side.sizes, side.sizes, 1
        work = Pass(
            Sources(frozen(chunk.reshape(-1)), frozen(block), 1.0, False),
            Factors(frozen(self.matrices[mode + lead]), frozen(self.matrices[mode + 1 - lead])),
            Outcomes(data, frozen(table), 0.0, bool(lead), False, 0.0),
            np.arange(len(chunk)),
            np.full(len(chunk), -1),
        )
        run_pass(self.host, work, room, self.tally, self._tell)

    def _starts(self, side: TilePairs) -> Ints:
        """Where the matrix of each pair of tiles begins."""
        starts: Ints = self.sizes.vectors * (np.cumsum(side.sizes) - side.sizes)
        return starts

    def multiply(self, sides: list[Floats]) -> BlockTensor:
        """The result, block by block."""
        problem = self.problem
        arena = Alone(problem, self.host, self.host.memory).new_result(self.account)
        with self.host.blas.single_threaded(), ThreadPoolExecutor(self.host.workers) as pool:
            list(pool.map(lambda block: self._product(block, sides, arena), range(problem.result.nnz_blocks)))
        self._products += 2 * self.sizes.vectors * problem.result.nnz_elements
        self._tell()
        release(self.account, *sides[: len(self.sizes.sides)])
        pattern = problem.result
        known = Pattern.trusted(pattern.spaces, pattern.index, arena.norms(), pattern.symmetry)
        return BlockTensor(known, arena, self.host)

    def _product(self, block: int, sides: list[Floats], arena: Arena) -> None:
        """C(ab, cd) = B(ab)' B(cd)."""
        factors, index = [], self.problem.result.index[block]
        for number, (side, data) in enumerate(zip(self.problem.sides, sides, strict=True)):
            pair = int(side.number[tuple(index[2 * number : 2 * number + 2])])
            begin, size = int(self._starts(side)[pair]), int(side.sizes[pair])
            factors.append(data[begin : begin + self.sizes.vectors * size].reshape(self.sizes.vectors, size))
        left, right = factors
        shape = left.shape[1], right.shape[1]
        begin = int(arena.offsets[block])
        np.matmul(left.T, right, out=arena.data[begin : begin + shape[0] * shape[1]].reshape(shape))
