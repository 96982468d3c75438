"""The threads engine: runs plans on the cores of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.blas import Blas, scipy_blas
from tilewise.engines.kernels.blocks import make_tables
from tilewise.engines.kernels.gemm import gemm_cells
from tilewise.engines.kernels.loops import loop_cells
from tilewise.engines.kernels.microkernel import REGISTER_BYTES, TILE_ELEMENTS
from tilewise.engines.kernels.products import Packed, multiply_cells, pack_all_rows
from tilewise.engines.kernels.reductions import gather_blocks, make_scratch
from tilewise.engines.views import blocks_view, cells_view, frozen, gather_view, panels_view, result_view
from tilewise.engines.workers import Workers, available_cores
from tilewise.errors import InputError
from tilewise.patterns import Pattern
from tilewise.plans import Plan, Product, Sum
from tilewise.plans.inspector import CHUNK_DEPTH, packed_columns, packed_rows
from tilewise.tensors import BlockTensor
from tilewise.tensors.protocol import Scalar
from tilewise.tensors.storage import Arena, norms_of_squares

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


class ThreadsEngine:
    """Runs plans with threads of ours, one BLAS thread in each.

    Parameters
    ----------
    workers : int, optional
        Number of threads; all cores this process may use by default.
    """

    name = "threads"

    def __init__(self, workers: int | None = None) -> None:
        count = available_cores() if workers is None else workers
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
            raise InputError(f"workers={workers!r} is no number of threads. Expected an integer >= 1. Correct it.")
        self._workers = Workers(int(count))
        self.blas: Blas = scipy_blas()

    @property
    def workers(self) -> int:
        """Number of threads."""
        return self._workers.count

    def run(
        self,
        plan: Plan,
        operands: Sequence[BlockTensor],
        *,
        out: BlockTensor | None = None,
        alpha: Scalar = 1,
        beta: Scalar = 0,
    ) -> BlockTensor:
        """Run a plan; see `tilewise.tensors.Engine`."""
        given = [self._promoted(tensor, plan.dtype) for tensor in operands]
        fresh = out is None and plan.kernel == "packed"
        if out is None:
            target = BlockTensor(plan.result, Arena.allocate(plan.result, plan.dtype, zero=not fresh), self)
            slots = None
        else:
            target = out
            slots = _slots(plan.result, out.pattern)
            _scale(out.arena.data, beta)
        if isinstance(plan.work, Sum):
            squares = self._sum(plan.work, plan, given[0], target, slots, alpha)
        else:
            squares = self._multiply(plan.work, plan, given, target, slots, alpha, fresh)
        self._update_norms(target, slots, squares, beta, out is None)
        return target

    @staticmethod
    def _promoted(tensor: BlockTensor, dtype: np.dtype[Any]) -> BlockTensor:
        return tensor if tensor.dtype == dtype else tensor.astype(dtype)

    def _multiply(
        self, work: Product, plan: Plan, operands: list[BlockTensor], target: BlockTensor, slots: Ints | None,
        alpha: Scalar, fresh: bool,
    ) -> npt.NDArray[np.float64]:
        """Run a product; sums of squares of the plan's result blocks."""
        cell_squares = np.zeros(len(work.cells.block))
        if len(cell_squares):
            {"packed": self._packed, "gemm": self._gemm, "loops": self._loops}[plan.kernel](
                work, plan, operands, target, slots, complex(alpha), fresh, cell_squares
            )
        return np.bincount(work.cells.block, cell_squares, plan.result.nnz_blocks)

    def _packed(
        self, work: Product, plan: Plan, operands: list[BlockTensor], target: BlockTensor, slots: Ints | None,
        alpha: complex, fresh: bool, squares: npt.NDArray[np.float64],
    ) -> None:
        parts = 2 if plan.dtype.kind == "c" else 1
        rows, cols = _operand_views(work, plan, operands, _reals)
        row_panels, col_panels = panels_view(work.rows, work.row_strips), panels_view(work.cols, work.col_strips)
        row_reals = packed_rows(work.row_strips, work.rows.depth, parts)
        row_at = frozen(np.cumsum(row_reals) - row_reals)
        packed = np.empty(int(row_reals.sum()), rows.data.dtype)
        self._workers.run(
            lambda w, queues, stop: pack_all_rows(
                w, queues, stop, rows, row_panels, packed, row_at, alpha.real, alpha.imag, parts,
                make_tables(rows),
            ),
            row_reals * 4.0,
        )
        col_reals = packed_columns(work.col_strips, work.cols.depth, plan.dtype.itemsize, parts, REGISTER_BYTES)
        before = np.cumsum(col_reals) - col_reals
        cells = cells_view(work, slots)
        col_at = frozen(before - before[cells.group_ptr[:-1]][cells.group_of_col])
        longest = int(np.add.reduceat(col_reals, cells.group_ptr[:-1]).max())
        result = result_view(target, work.result, _reals(target.arena.data))

        def multiply(worker: int, queues: Ints, stop: Ints) -> None:
            buffer = np.empty(longest, rows.data.dtype)
            multiply_cells(
                worker, queues, stop, cells, row_panels, col_panels, Packed(frozen(packed), row_at, buffer, col_at),
                cols, make_tables(cols), result, make_tables(result), np.empty(TILE_ELEMENTS, rows.data.dtype),
                fresh, CHUNK_DEPTH, parts, squares,
            )

        self._workers.run(multiply, work.cells.task_flops)

    def _gemm(
        self, work: Product, plan: Plan, operands: list[BlockTensor], target: BlockTensor, slots: Ints | None,
        alpha: complex, fresh: bool, squares: npt.NDArray[np.float64],
    ) -> None:
        rows, cols = _operand_views(work, plan, operands, _reals)
        row_panels, col_panels = panels_view(work.rows, work.row_strips), panels_view(work.cols, work.col_strips)
        cells = cells_view(work, slots)
        result = result_view(target, work.result, _reals(target.arena.data))
        address, parts = self.blas.gemm(plan.dtype), 2 if plan.dtype.kind == "c" else 1
        with self.blas.single_threaded():
            self._workers.run(
                lambda w, queues, stop: gemm_cells(
                    w, queues, stop, address, cells, row_panels, rows, col_panels, cols, result, alpha.real,
                    alpha.imag, parts, squares, make_tables(rows), make_tables(cols), make_tables(result),
                ),
                work.cells.task_flops,
            )

    def _loops(
        self, work: Product, plan: Plan, operands: list[BlockTensor], target: BlockTensor, slots: Ints | None,
        alpha: complex, fresh: bool, squares: npt.NDArray[np.float64],
    ) -> None:
        rows, cols = _operand_views(work, plan, operands, frozen)
        cells = cells_view(work, slots)
        result = result_view(target, work.result, target.arena.data)
        factor = _factor(alpha, plan.dtype)
        self._workers.run(
            lambda w, queues, stop: loop_cells(
                w, queues, stop, cells, rows, cols, result, factor, squares, make_tables(rows), make_tables(cols),
                make_tables(result),
            ),
            work.cells.task_flops,
        )

    def _sum(
        self, work: Sum, plan: Plan, operand: BlockTensor, target: BlockTensor, slots: Ints | None, alpha: Scalar
    ) -> npt.NDArray[np.float64]:
        squares = np.zeros(plan.result.nnz_blocks)
        if not len(squares):
            return squares
        modes = plan.operands[0].blocks
        source = blocks_view(operand, modes, _no_modes(), frozen(operand.arena.data))
        start = target.arena.offsets if slots is None else target.arena.offsets[slots]
        load = work.flops * 2 + 50
        task_ptr = _even_tasks(load)
        gather = gather_view(work, task_ptr)
        factor = _factor(complex(alpha), plan.dtype)
        self._workers.run(
            lambda w, queues, stop: gather_blocks(
                w, queues, stop, gather, source, target.arena.data, frozen(start), factor, squares,
                make_scratch(gather, operand.ndim),
            ),
            np.add.reduceat(load, task_ptr[:-1]),
        )
        return squares

    @staticmethod
    def _update_norms(
        target: BlockTensor, slots: Ints | None, squares: npt.NDArray[np.float64], beta: Scalar, new: bool
    ) -> None:
        norms = norms_of_squares(squares)
        if not new:
            every = target.pattern.norms * abs(beta) if beta else np.zeros(target.pattern.nnz_blocks)
            every[slots] = norms
            norms = every
        target.replace_norms(norms)


def _operand_views(work: Product, plan: Plan, operands: list[BlockTensor], data: Any) -> tuple[Any, Any]:
    """The operands that give rows and columns."""
    order = (1, 0) if work.swapped else (0, 1)
    rows, cols = (
        blocks_view(operands[i], plan.operands[i].blocks, side.modes, frozen(data(operands[i].arena.data)))
        for i, side in zip(order, (work.rows, work.cols), strict=True)
    )
    return rows, cols


def _no_modes() -> Any:
    from tilewise.plans.sides import Modes

    return Modes((), (), ())


def _reals(data: Array) -> Array:
    """Complex elements as pairs of reals, real ones as they are."""
    return data.view(data.real.dtype)


def _factor(alpha: complex, dtype: np.dtype[Any]) -> Any:
    return dtype.type(alpha if dtype.kind == "c" else alpha.real)


def _even_tasks(load: npt.NDArray[np.float64]) -> Ints:
    """Result blocks gathered into some hundred tasks of alike load."""
    target = max(float(load.sum()) / 256, 2e4)
    label = ((np.cumsum(load) - load) // target).astype(np.int64)
    return np.concatenate([[0], np.flatnonzero(np.diff(label)) + 1, [len(load)]])


def _slots(result: Pattern, given: Pattern) -> Ints:
    """The place of each result block in the tensor given as out."""
    if result.index is given.index:
        return np.arange(result.nnz_blocks)
    slots = given.find(result.index)
    if len(slots) and slots.min() < 0:
        missing = tuple(result.index[np.argmin(slots)].tolist())
        raise InputError(
            f"out= has no block {missing}, which the result needs. Expected a tensor that stores every block of the "
            "result. Make it with tw.zeros(pattern=plan.result), or a pattern that holds it."
        )
    return slots


def _scale(data: Array, beta: Scalar) -> None:
    if beta == 0:
        data[...] = 0
    elif beta != 1:
        data *= data.dtype.type(beta)
