"""One pass over rows: workers put their matrices together, multiply twice, and leave blocks of the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.kernels.pairs import BOTH, FIRST, Factors, Outcomes, Rows, Sources, transform_rows
from tilewise.engines.threads import ThreadsEngine
from tilewise.engines.views import frozen
from tilewise.plans.transform.schedules import BATCH, WORD

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Room:
    """Buffers of all workers for one kind of pass."""

    square: Floats
    """S of a batch of rows, (workers, elements)."""
    middle: Floats
    """W, (workers, elements)."""
    buffer: Floats
    """Blocks of a batch of rows, where results lie scattered."""

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return self.square.nbytes + self.middle.nbytes + self.buffer.nbytes

    @classmethod
    def make(cls, workers: int, account: Account, *, square: int, middle: int, buffer: int = 0) -> Room:
        """Allocate buffers of some elements for each worker, and count them."""
        account.take(WORD * workers * (square + middle + buffer), "Buffers of workers")
        sizes = (square, middle, buffer)
        return cls(*(np.empty((workers, size)) for size in sizes))


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass over rows does."""

    sources: Sources
    """Where S comes from."""
    factors: Factors
    """F and G."""
    outcomes: Outcomes
    """Where the results go."""
    numbers: Ints
    """The rows."""
    twins: Ints
    """The row that repeats each; -1 if there is none."""
    stage: int = BOTH
    """Which of the two products is done."""
    kept: Floats = field(default_factory=lambda: np.empty(0))
    """Intermediates of the rows, one after the other, if they are kept."""

    @property
    def row_flops(self) -> int:
        """Floating-point operations of a row."""
        high, wide = self.factors.first.shape[0], self.factors.second.shape[0]
        first = 2 * high * wide * self.factors.first.shape[1]
        second = 2 * wide * int((self.outcomes.table[:, 1] * self.outcomes.table[:, 3]).sum())
        return {BOTH: first + second, FIRST: first}.get(self.stage, second)


def no_outcomes() -> Outcomes:
    """For a pass that only keeps intermediates."""
    return Outcomes(np.empty(0), frozen(np.empty((0, 7), np.int64)), 0.0, False, False, 0.0)


def no_sources() -> Sources:
    """For a pass that takes up intermediates."""
    return Sources(frozen(np.empty(0)), frozen(np.empty((0, 8), np.int64)), 0.0, False)


def run_pass(host: ThreadsEngine, work: Pass, room: Room, tally: Ints, told: Callable[[], None]) -> Floats:
    """Run a pass on the workers of an engine; return the sum of squares of each block, and add to the tally."""
    count = len(work.numbers)
    if not count:
        return np.zeros(len(work.outcomes.table))
    rows = Rows(frozen(work.numbers), frozen(work.twins))
    tasks = -(-count // BATCH)
    squares = np.zeros((tasks, len(work.outcomes.table)))
    address = host.blas.gemm(np.dtype(np.float64))

    def loop(worker: int, queues: Ints, stop: Ints) -> None:
        transform_rows(
            worker,
            queues,
            stop,
            address,
            work.stage,
            work.sources,
            work.factors,
            work.outcomes,
            rows,
            work.kept,
            room.square[worker],
            room.middle[worker],
            room.buffer[worker],
            squares,
            tally,
        )

    weights = np.full(tasks, float(BATCH * work.row_flops))
    with host.blas.single_threaded():
        host.run_loop(loop, weights)
    told()
    total: Floats = squares.sum(axis=0)
    return total
