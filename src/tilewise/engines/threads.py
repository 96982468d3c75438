"""The threads engine: runs plans on the cores of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.blas import Blas, preferred_blas
from tilewise.engines.kernels.blocks import make_tables
from tilewise.engines.kernels.gemm import gemm_cells
from tilewise.engines.kernels.inplace import Columns, multiply_in_place, pack_all_columns
from tilewise.engines.kernels.loops import loop_cells
from tilewise.engines.kernels.microkernel import REGISTER_BYTES
from tilewise.engines.kernels.products import Packed, make_tile, multiply_cells, pack_all_rows
from tilewise.engines.kernels.reductions import gather_blocks, make_scratch
from tilewise.engines.kernels.squares import block_squares
from tilewise.engines.progress import Tell, check_progress
from tilewise.engines.streaming import Call, Runner
from tilewise.engines.targets import Target, make_target, scale_target
from tilewise.engines.views import blocks_view, cells_view, frozen, gather_view, panels_view, result_view
from tilewise.engines.workers import Loop, Workers, available_cores
from tilewise.errors import InputError
from tilewise.machine import Machine
from tilewise.plans import Plan, Product, Sum
from tilewise.plans.cells import keep_blocks
from tilewise.plans.inspector import packed_columns, packed_rows
from tilewise.plans.sides import Modes
from tilewise.plans.steps import reinspected
from tilewise.spaces.integers import parse_count
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.memory import Memory
from tilewise.tensors.protocol import Scalar
from tilewise.tensors.storage import Arena, block_offsets
from tilewise.trace import Trace

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

Follow = Callable[[Callable[[], int]], AbstractContextManager[None]]
"""Takes what counts the flops done so far, and gives a context in which they are done."""

OWN_KERNEL = f"register tile, {8 * REGISTER_BYTES} bits"
"""What a trace calls our own kernel."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one plan."""

    plan: Plan
    """What is done."""
    operands: tuple[BlockTensor, ...]
    """The operands in the result's element type."""
    target: BlockTensor
    """Where the result goes."""
    slots: Ints | None
    """Place of each result block in the target; None if the target has the result's own pattern."""
    alpha: complex
    """Factor of the result."""
    fresh: bool
    """Whether the target's blocks hold nothing yet, not even zeros."""
    squares: Floats
    """Filled in: sum of squared elements of each cell (of each result block of a reduction)."""
    tally: Ints
    """Filled in: tasks, dense products and flops of each worker."""
    account: Account | None
    """Where buffers are counted; None if nobody asked for a budget."""
    run_tasks: Callable[[Loop, Floats], None]
    """Has the workers run the tasks, given what each costs."""

    def holding(self, size: int, what: str) -> AbstractContextManager[None]:
        """Count a buffer during a ``with`` block."""
        return nullcontext() if self.account is None else self.account.holding(size, what)

    @property
    def parts(self) -> int:
        """Reals per element."""
        return 2 if self.plan.dtype.kind == "c" else 1

    @property
    def factor(self) -> Any:
        """Alpha in the result's element type."""
        return self.plan.dtype.type(self.alpha if self.plan.dtype.kind == "c" else self.alpha.real)

    def views(self, work: Product, data: Callable[[Array], Array]) -> tuple[Any, Any, Any]:
        """The blocks of rows, columns and result."""
        order = (1, 0) if work.swapped else (0, 1)
        rows, cols = (
            blocks_view(
                self.operands[i],
                self.plan.operands[i].blocks,
                side.modes,
                frozen(data(self.operands[i].arena.data)),
            )
            for i, side in zip(order, (work.rows, work.cols), strict=True)
        )
        return rows, cols, result_view(self.target, work.result, data(self.target.arena.data))


class ThreadsEngine(Runner):
    """Runs plans with threads of ours, one BLAS thread in each.

    Parameters
    ----------
    workers : int, optional
        Number of threads; all cores this process may use by default.
    blas : Blas, optional
        The library for large blocks; by default the one that ``tilewise doctor`` found faster, else SciPy's.
    progress : callable, optional
        Called every few seconds of a run with a `tilewise.engines.progress.Progress`; ``print`` writes a line each.
    """

    name = "threads"

    def __init__(self, workers: int | None = None, blas: Blas | None = None, progress: Tell | None = None) -> None:
        self._workers = Workers(available_cores() if workers is None else parse_count("workers", workers, "threads"))
        self.memory = Memory()
        self.blas: Blas = preferred_blas(Machine.measured()) if blas is None else blas
        self.progress = check_progress(progress)

    def __reduce__(self) -> tuple[Any, ...]:
        """Threads cannot be copied: a tensor that comes from another process belongs to the engine in use here."""
        return _engine_in_use, ()

    @property
    def workers(self) -> int:
        """Number of threads."""
        return self._workers.count

    def run_loop(self, loop: Loop, weights: Floats) -> None:
        """Have the workers run the tasks of a compiled loop, given what each costs."""
        self._workers.run(loop, weights)

    def prepare(self, plan: Plan) -> Plan:
        """The plan with its products on this computer, should they have been meant for devices."""
        return reinspected(plan, plan.dtype) if plan.kernel == "device" else plan

    def run_resident(self, call: Call) -> tuple[BlockTensor, Trace]:
        """Run a plan, or the part of one, whose operands are in memory."""
        plan = call.plan
        begin = time.perf_counter()
        target = make_target(self, self.memory, plan, call.out, call.account)
        scale_target(target, call.beta)
        job = self._job(plan, call.operands, target, call.alpha, call.account)
        with call.watch.following(lambda: int(job.tally[:, 2].sum())):
            packing_seconds, buffer_bytes, squares = self._compute(job)
        target.finish(squares, call.beta)
        tasks, calls, flops = (int(n) for n in job.tally.sum(axis=0))
        return job.target, Trace(
            label=plan.label,
            seconds=time.perf_counter() - begin,
            packing_seconds=packing_seconds,
            flops=flops,
            tasks=tasks,
            calls=calls,
            workers=self.workers,
            buffer_bytes=buffer_bytes + job.target.nbytes,
            library=self.blas.name if plan.kernel == "gemm" else OWN_KERNEL,
        )

    def add_blocks(
        self,
        plan: Plan,
        operands: Sequence[BlockTensor],
        target: Target,
        alpha: Scalar,
        wanted: npt.NDArray[np.bool_],
        account: Account | None,
        follow: Follow | None = None,
    ) -> tuple[Floats, Ints]:
        """Compute some result blocks of a product while others are filled in elsewhere; `follow` may see how far it is.

        Returns
        -------
        tuple
            Sum of squares of each result block, zero for those not wanted; tasks, dense products and flops.
        """
        assert isinstance(plan.work, Product)
        part = replace(plan, work=replace(plan.work, cells=keep_blocks(plan.work.cells, wanted)))
        return self.add(part, operands, target, alpha, account, follow)

    def add(
        self,
        part: Plan,
        operands: Sequence[BlockTensor],
        target: Target,
        alpha: Scalar,
        account: Account | None,
        follow: Follow | None = None,
        run_tasks: Callable[[Loop, Floats], None] | None = None,
    ) -> tuple[Floats, Ints]:
        """Compute what the part of a plan adds to a target; the sums of squares and the counts as of `add_blocks`."""
        job = self._job(part, operands, target, alpha, account)
        job = job if run_tasks is None else replace(job, run_tasks=run_tasks)
        with nullcontext() if follow is None else follow(lambda: int(job.tally[:, 2].sum())):
            squares = self._compute(job)[2]
        return squares, job.tally.sum(axis=0)

    def _compute(self, job: Job) -> tuple[float, int, Floats]:
        """Seconds of packing, bytes of buffers, and the sum of squares of each result block."""
        plan = job.plan
        if isinstance(plan.work, Sum):
            self._gather(job, plan.work)
            return 0.0, 0, job.squares
        seconds, buffer_bytes = self._multiply(job, plan.work) if len(job.squares) else (0.0, 0)
        squares = np.bincount(plan.work.cells.block, job.squares, plan.result.nnz_blocks)
        return seconds, buffer_bytes, squares.astype(np.float64)

    def _job(
        self,
        plan: Plan,
        operands: Sequence[BlockTensor],
        target: Target,
        alpha: Scalar,
        account: Account | None,
    ) -> Job:
        count = plan.result.nnz_blocks if isinstance(plan.work, Sum) else len(plan.work.cells.block)
        # One cache line for each worker's tally.
        tally = np.zeros((self.workers, 8), np.int64)[:, :3]
        return Job(
            plan,
            tuple(operands),
            target.tensor,
            target.slots,
            complex(alpha),
            target.fresh,
            np.zeros(count),
            tally,
            account,
            self._workers.run,
        )

    def _multiply(self, job: Job, work: Product) -> tuple[float, int]:
        kernels = {"packed": self._packed, "inplace": self._in_place, "gemm": self._gemm, "loops": self._loops}
        run = kernels[job.plan.kernel]
        pieces = work.cells.pieces
        if pieces == 1:
            return run(job, work)
        with job.holding(pieces * job.plan.result_bytes, "The pieces of a sum"):
            partial = np.zeros(pieces * job.plan.result.nnz_elements, job.plan.dtype)
            own = BlockTensor(job.plan.result, Arena(partial, block_offsets(job.plan.result)), self)
            seconds, buffer_bytes = run(replace(job, target=own, slots=None, fresh=False), work)
            _add_pieces(partial.reshape(pieces, -1), job, work)
            return seconds, buffer_bytes + partial.nbytes

    def _packed(self, job: Job, work: Product) -> tuple[float, int]:
        """Pack the rows, then multiply; seconds of packing and bytes of all buffers."""
        row_reals = packed_rows(work.row_strips, work.rows.depth, job.parts)
        col_at, longest = _column_places(work, job)
        size = (int(row_reals.sum()) + self.workers * longest) * (job.plan.dtype.itemsize // job.parts)
        with job.holding(size, "Packing"):
            return self._multiply_packed(job, work, row_reals, col_at, longest), size

    def _multiply_packed(self, job: Job, work: Product, row_reals: Ints, col_at: Ints, longest: int) -> float:
        """Pack the rows, then multiply; seconds of packing."""
        begin = time.perf_counter()
        rows, cols, result = job.views(work, _reals)
        row_panels, col_panels = (
            panels_view(work.rows, work.row_strips),
            panels_view(work.cols, work.col_strips),
        )
        row_at = frozen(np.cumsum(row_reals) - row_reals)
        packed = self.memory.empty(int(row_reals.sum()), rows.data.dtype)

        def pack(worker: int, queues: Ints, stop: Ints) -> None:
            pack_all_rows(
                worker,
                queues,
                stop,
                rows,
                row_panels,
                packed,
                row_at,
                job.alpha.real,
                job.alpha.imag,
                job.parts,
                make_tables(rows),
            )

        self._workers.run(pack, row_reals.astype(np.float64))
        seconds = time.perf_counter() - begin
        strips = int(np.diff(work.cells.group_ptr).max())
        cells = cells_view(work, job.target, job.slots)

        def multiply(worker: int, queues: Ints, stop: Ints) -> None:
            buffer = self.memory.empty(longest, rows.data.dtype)
            multiply_cells(
                worker,
                queues,
                stop,
                cells,
                row_panels,
                col_panels,
                Packed(frozen(packed), row_at, buffer, col_at, np.zeros(strips, np.bool_)),
                cols,
                make_tables(cols),
                result,
                make_tables(result),
                make_tile(rows.data.dtype),
                job.fresh,
                job.parts,
                job.squares,
                job.tally,
            )

        job.run_tasks(multiply, work.cells.task_flops)
        return seconds

    def _in_place(self, job: Job, work: Product) -> tuple[float, int]:
        """Pack the columns, then multiply rows where they lie; seconds of packing and bytes of what is packed."""
        reals = packed_columns(work.col_strips, work.cols.depth, job.plan.dtype.itemsize, 1)
        size = int(reals.sum()) * job.plan.dtype.itemsize
        with job.holding(size, "Packing"):
            return self._multiply_in_place(job, work, reals), size

    def _multiply_in_place(self, job: Job, work: Product, reals: Ints) -> float:
        begin = time.perf_counter()
        rows, cols, result = job.views(work, _reals)
        row_panels, col_panels = panels_view(work.rows, work.row_strips), panels_view(work.cols, work.col_strips)
        strip_at, block_at = frozen(np.cumsum(reals) - reals), np.zeros(len(cols.start), np.int64)
        block_at[work.cols.block] = work.cols.at
        packed = self.memory.empty(int(reals.sum()), cols.data.dtype)

        def pack(worker: int, queues: Ints, stop: Ints) -> None:
            tables = make_tables(cols)
            pack_all_columns(worker, queues, stop, cols, col_panels, packed, strip_at, job.alpha.real, tables)

        self._workers.run(pack, reals.astype(np.float64))
        seconds = time.perf_counter() - begin
        cells = cells_view(work, job.target, job.slots)
        columns = Columns(frozen(packed), strip_at, frozen(block_at))

        def multiply(worker: int, queues: Ints, stop: Ints) -> None:
            multiply_in_place(
                worker,
                queues,
                stop,
                cells,
                row_panels,
                rows,
                col_panels,
                columns,
                result,
                make_tables(rows),
                make_tables(result),
                make_tile(rows.data.dtype),
                job.fresh,
                job.squares,
                job.tally,
            )

        job.run_tasks(multiply, work.cells.task_flops)
        return seconds

    def _gemm(self, job: Job, work: Product) -> tuple[float, int]:
        rows, cols, result = job.views(work, _reals)
        row_panels, col_panels = (
            panels_view(work.rows, work.row_strips),
            panels_view(work.cols, work.col_strips),
        )
        cells = cells_view(work, job.target, job.slots)
        address = self.blas.gemm(job.plan.dtype)

        def multiply(worker: int, queues: Ints, stop: Ints) -> None:
            gemm_cells(
                worker,
                queues,
                stop,
                address,
                cells,
                row_panels,
                rows,
                col_panels,
                cols,
                result,
                job.alpha.real,
                job.alpha.imag,
                job.fresh,
                job.parts,
                job.squares,
                make_tables(rows),
                make_tables(cols),
                make_tables(result),
                job.tally,
            )

        with self.blas.single_threaded():
            job.run_tasks(multiply, work.cells.task_flops)
        return 0.0, 0

    def _loops(self, job: Job, work: Product) -> tuple[float, int]:
        rows, cols, result = job.views(work, lambda data: data)
        cells = cells_view(work, job.target, job.slots)

        def multiply(worker: int, queues: Ints, stop: Ints) -> None:
            loop_cells(
                worker,
                queues,
                stop,
                cells,
                rows,
                cols,
                result,
                job.factor,
                job.squares,
                make_tables(rows),
                make_tables(cols),
                make_tables(result),
                job.parts,
                job.tally,
            )

        job.run_tasks(multiply, work.cells.task_flops)
        return 0.0, 0

    def _gather(self, job: Job, work: Sum) -> None:
        if not len(job.squares):
            return
        (operand,), target = job.operands, job.target
        source = blocks_view(operand, job.plan.operands[0].blocks, Modes((), (), ()), frozen(operand.arena.data))
        start = frozen(target.arena.offsets if job.slots is None else target.arena.offsets[job.slots])
        gather = gather_view(work)

        def add(worker: int, queues: Ints, stop: Ints) -> None:
            gather_blocks(
                worker,
                queues,
                stop,
                gather,
                source,
                target.arena.data,
                start,
                job.factor,
                job.fresh,
                job.parts == 1,
                job.squares,
                make_scratch(gather, operand.ndim),
                job.tally,
            )

        weights = np.add.reduceat(work.elements.astype(np.float64), work.task_ptr[:-1])
        self._workers.run(add, np.asarray(weights, np.float64))


class Hosted(Runner):
    """An engine that leaves some of its work to the workers of this computer."""

    host: ThreadsEngine

    def __reduce__(self) -> tuple[Any, ...]:
        """As for threads: a tensor that comes from another process belongs to the engine in use here."""
        return self.host.__reduce__()

    @property
    def workers(self) -> int:
        """Threads of this process."""
        return self.host.workers


def hosting(engine: Engine) -> ThreadsEngine:
    """The workers of this computer behind an engine."""
    found = engine if isinstance(engine, ThreadsEngine) else getattr(engine, "host", None)
    if not isinstance(found, ThreadsEngine):
        raise InputError(
            f"engine={engine!r} has no workers on this computer. Expected one that tw.engine makes. Leave engine= away."
        )
    return found


def _engine_in_use() -> Engine:
    from tilewise.engines.base import current_engine

    return current_engine()


def _add_pieces(partial: Array, job: Job, work: Product) -> None:
    """Sum the pieces in order, add the sum to the target, and note the squares with each block's first cell."""
    total = partial[0]
    for piece in partial[1:]:
        total += piece
    blocks, first = np.unique(work.cells.block, return_index=True)
    arena, sizes = job.target.arena, job.plan.result.block_sizes[blocks]
    begins = block_offsets(job.plan.result)[blocks]
    places = arena.offsets[blocks if job.slots is None else job.slots[blocks]]
    for begin, at, size in zip(begins.tolist(), places.tolist(), sizes.tolist(), strict=True):
        part = arena.data[at : at + size]
        part[...] = total[begin : begin + size] if job.fresh else part + total[begin : begin + size]
    job.squares[...] = 0
    job.squares[first] = block_squares(arena.data, places, sizes)


def _column_places(work: Product, job: Job) -> tuple[Ints, int]:
    """Where each strip of columns begins in a worker's buffer, and the buffer's length, in reals."""
    reals = packed_columns(work.col_strips, work.cols.depth, job.plan.dtype.itemsize, job.parts)
    groups, group_of_col = work.cells.group_ptr[:-1], work.cells.group_of_col
    before = np.cumsum(reals) - reals
    return frozen(before - before[groups][group_of_col]), int(np.add.reduceat(reals, groups).max())


def _reals(data: Array) -> Array:
    """Complex elements as pairs of reals, real ones as they are."""
    return data.view(data.real.dtype)
