"""Ranks that draw tasks during a run, from counters that they share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tilewise.engines.mpi.counter import Counter
from tilewise.engines.mpi.world import World
from tilewise.engines.workers import Loop, share
from tilewise.plans import Plan, Product
from tilewise.plans.cells import Cells
from tilewise.plans.parts import keep_part
from tilewise.plans.sharing import Pool

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Drawing:
    """One rank's draws in one run."""

    pool: Pool
    """The tasks."""
    counter: Counter
    """One counter on each rank, all at zero."""
    world: World
    """The ranks."""
    workers: int
    """Its workers."""
    ptr: Ints
    """First task of the compiled loop of each result block; one more at the end."""
    blocks: list[int] = field(default_factory=list)
    """Result blocks that it drew."""
    tickets: int = 0
    """Draws, those that found a queue empty included."""

    def run(self, loop: Loop, weights: Floats) -> None:
        """Have each worker draw and do tasks until all queues are empty."""
        run_each(loop, self.workers, ((int(self.ptr[block]), int(self.ptr[block + 1])) for block in self._draw()))

    def _draw(self) -> Iterator[int]:
        """Result blocks, one ticket after the other; null tasks are drawn and left."""
        for queue in self.pool.visits(self.world.rank):
            for block in self._blocks(queue):
                if block >= 0:
                    self.blocks.append(block)
                    yield block

    def _blocks(self, queue: int) -> Iterator[int]:
        """What this rank draws of a queue; if nobody else draws from it, that needs no tickets."""
        blocks = self.pool.block[self.pool.tasks(queue)].tolist()
        if not self.pool.is_shared(queue):
            yield from blocks
            return
        while True:
            with self.world.calling:
                ticket = self.counter.draw(place=int(self.pool.place[queue]))
            self.tickets += 1
            if ticket >= len(blocks):
                return
            yield blocks[ticket]


@dataclass(slots=True)
class Timing:
    """Does the tasks of a part one by one, and notes what each takes."""

    workers: int
    """Its workers."""
    seconds: Floats = field(default_factory=lambda: np.zeros(0))
    """What each task took."""

    def run(self, loop: Loop, weights: Floats) -> None:
        """Have each worker take the next task until there is none."""
        self.seconds = np.zeros(len(weights))
        run_each(loop, self.workers, ((task, task + 1) for task in range(len(weights))), self._note)

    def _note(self, task: int, seconds: float) -> None:
        self.seconds[task] = seconds

    def by_block(self, part: Plan) -> Floats:
        """What each result block took: tasks have cells of several, which share its time as they share its flops."""
        assert isinstance(part.work, Product)
        cells = part.work.cells
        if not len(self.seconds):
            return np.zeros(part.result.nnz_blocks)
        task = np.repeat(np.arange(len(self.seconds)), np.diff(cells.task_ptr))
        flops = np.maximum(np.bincount(task, cells.flops, len(self.seconds)), 1.0)
        weight = (self.seconds / flops)[task] * cells.flops
        return np.asarray(np.bincount(cells.block, weight, part.result.nnz_blocks))


def run_each(
    loop: Loop, workers: int, tasks: Iterator[tuple[int, int]], note: Callable[[int, float], None] | None = None
) -> None:
    """Have workers do runs of tasks, one run after the other, each by whoever is free.

    Parameters
    ----------
    loop : callable
        Does tasks.
    workers : int
        How many do.
    tasks : iterator of (int, int)
        First task of each run, and one past the last.
    note : callable, optional
        Told the first task of each run and the seconds it took.
    """
    stop, lock = np.zeros(1, np.int64), threading.Lock()

    def work(worker: int) -> None:
        while not stop[0]:
            with lock:
                run = next(tasks, None)
            if run is None:
                return
            queues = share(np.zeros(0), workers)
            queues[worker] = run[1] << 32 | run[0]
            begin = time.perf_counter()
            loop(worker, queues, stop)
            if note is not None:
                note(run[0], time.perf_counter() - begin)

    with ThreadPoolExecutor(workers, thread_name_prefix="tilewise-draw") as threads:
        futures = [threads.submit(work, worker) for worker in range(workers)]
        try:
            wait(futures)
        finally:
            stop[0] = 1
    for future in futures:
        future.result()


def by_block(plan: Plan, wanted: npt.NDArray[np.bool_]) -> tuple[Plan, Ints]:
    """Some blocks of a product, as tasks in their order, and the first task of each block, one more at the end.

    A task has columns of one group: a block whose columns are in two has two tasks.
    """
    assert isinstance(plan.work, Product)
    part = keep_part(plan, plan.work, wanted).plan
    assert isinstance(part.work, Product)
    cells = part.work.cells
    group = cells.group_of_col[cells.col]
    order = np.lexsort((group, cells.block))
    block, group = cells.block[order], group[order]
    first = np.flatnonzero((np.diff(block, prepend=-1) != 0) | (np.diff(group, prepend=-1) != 0))
    ordered = _ordered(cells, order, np.append(first, len(block)))
    ptr = np.searchsorted(block[first], np.arange(plan.result.nnz_blocks + 1))
    return replace(part, work=replace(part.work, cells=ordered)), ptr


def _ordered(cells: Cells, order: Ints, task_ptr: Ints) -> Cells:
    return replace(
        cells,
        block=cells.block[order],
        piece=cells.piece[order],
        row=cells.row[order],
        col=cells.col[order],
        begin=cells.begin[order],
        end=cells.end[order],
        flops=cells.flops[order],
        task_ptr=task_ptr.astype(np.int64),
    )
