"""What a plan will cost on a machine: seconds, bytes moved, the bound on them, and how even the shares are.

Nothing here is worked out when a plan is made; `Plan` asks when somebody reads the figure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tilewise.costs import (
    blocked_product_words,
    compulsory_bytes,
    copy_seconds,
    movement_bound_bytes,
    permute_seconds,
    product_seconds,
)
from tilewise.machine import Machine
from tilewise.patterns import Pattern
from tilewise.plans.work import Operand, Product, Sum

if TYPE_CHECKING:
    from tilewise.plans.plan import Plan

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KERNEL_BYTES = 1 << 19
"""Bytes near a worker that the kernels count on: a chunk of packed rows and a sliver of columns.  Where the
second-level cache is smaller, they lie in the third."""


def level_bytes(machine: Machine) -> int:
    """Capacity of the level whose traffic is counted: what lies near one worker."""
    return max(machine.near_bytes, KERNEL_BYTES)


def reals_per_element(plan: Plan) -> int:
    """2 for complex elements, 1 for real ones."""
    return 2 if plan.dtype.kind == "c" else 1


def multiplications(plan: Plan) -> float:
    """Multiplications of elements that a product does."""
    return plan.flops / (2 * reals_per_element(plan) ** 2)


# Time


def project_seconds(plan: Plan, machine: Machine) -> float:
    """Seconds of a run: the start, packing, and the products or the memory they stream, whichever takes longer."""
    workers = min(plan.workers, machine.cores)
    if isinstance(plan.work, Sum):
        moved = _sum_bytes(plan, plan.work)
        return machine.start_seconds + permute_seconds(moved, machine, workers)
    side = {"packed": plan.work.rows, "inplace": plan.work.cols}.get(plan.kernel)
    packed = 0 if side is None else int((side.size * side.depth * side.batch).sum()) * plan.dtype.itemsize
    packing = permute_seconds(2 * packed, machine, workers)
    streamed = copy_seconds(compulsory_bytes(list(needed_bytes(plan).values()), plan.result_bytes), machine, workers)
    seconds = cell_seconds(plan, plan.work, machine)
    if not len(seconds):
        return machine.start_seconds
    longest = float(np.add.reduceat(seconds, plan.work.cells.task_ptr[:-1]).max())
    computing = max(float(seconds.sum()) / workers, longest)
    return machine.start_seconds + packing + max(computing, streamed)


def cell_seconds(plan: Plan, work: Product, machine: Machine) -> Floats:
    """Seconds of one worker for each cell."""
    _, _, batch, depth = _cell_shapes(plan, work)
    m = work.rows.size[work.row_strips.panel[work.cells.row]]
    n = work.cols.size[work.col_strips.panel[work.cells.col]]
    _, first = np.unique(work.cells.begin, return_index=True)
    k = max(float(depth[first].sum()) / max(work.products, 1), 1.0)
    volume = m * n * k * (batch if plan.kernel == "loops" else 1.0)
    return product_seconds(work.cells.flops, np.cbrt(volume), machine, plan.dtype.itemsize // reals_per_element(plan))


def _cell_shapes(plan: Plan, work: Product) -> tuple[Floats, Floats, Floats, Floats]:
    """Rows, columns, batch elements and elements of k of each cell."""
    cells = work.cells
    rows = work.row_strips.size[cells.row].astype(np.float64)
    cols = work.col_strips.size[cells.col].astype(np.float64)
    batch = work.row_strips.batch[cells.row].astype(np.float64)
    factor = 2.0 * reals_per_element(plan) ** 2
    return rows, cols, batch, cells.flops / (factor * rows * cols * batch)


# Bytes


def project_moved(plan: Plan, machine: Machine) -> int:
    """Bytes that cross between memory and what lies near the workers.

    Packed products: the row operand is read, written in packed form, and read again once for each group of
    columns; the column operand is read once and packed near the worker, or read again for each cell where a
    group is larger than half of what is near; the result is written once. Products in place: the row operand is read
    for each strip of columns, the column operand is packed like rows above, the result is read and written for each
    product. Products left to BLAS or to plain loops: what `blocked_product_words` counts for each cell. Reductions:
    what is read and what is written. Products on devices: what crosses between them and this computer.
    """
    if isinstance(plan.work, Sum):
        return _sum_bytes(plan, plan.work)
    if plan.placement is not None:
        return plan.placement.moved_bytes
    if not len(plan.work.cells.block):
        return 0
    count = {"packed": _packed_words, "inplace": _inplace_words, "gemm": _blas_words}.get(plan.kernel, _loop_words)
    words = count(plan, plan.work, level_bytes(machine) / plan.dtype.itemsize)
    pieces = plan.work.cells.pieces
    # Partial results are zeroed before, and read to be added up after.
    added = 2 * pieces * plan.result.nnz_elements if pieces > 1 else 0
    return math.ceil((words + added) * plan.dtype.itemsize)


def _packed_words(plan: Plan, work: Product, near: float) -> float:
    cells = work.cells
    rows, cols, batch, depth = _cell_shapes(plan, work)
    side_rows, side_cols = (float((s.size * s.depth * s.batch).sum()) for s in (work.rows, work.cols))
    strip_depth = work.rows.depth[work.row_strips.panel].astype(np.float64)
    strip_words = work.row_strips.size * strip_depth
    group_words = _group_words(work)
    group = cells.group_of_col[cells.col]
    far_group = group_words[group] > near / 2
    # A strip of rows that stays near serves all columns of its group.
    pair, of_cell = np.unique(group * len(strip_words) + cells.row, return_inverse=True)
    asked = np.bincount(of_cell, rows * depth * batch)
    strip = pair % len(strip_words)
    whole = strip_words[strip] * work.row_strips.batch[strip]
    row_words = np.where(strip_words[strip] <= near / 4, np.minimum(asked, whole), asked)
    col_words = (cols * depth * batch)[far_group].sum() + group_words[group_words > near / 2].sum()
    result = (rows * cols * batch).sum()
    return float(2 * side_rows + row_words.sum() + side_cols + col_words + result)


def _inplace_words(plan: Plan, work: Product, near: float) -> float:
    rows, cols, _, depth = _cell_shapes(plan, work)
    calls = work.cells.end - work.cells.begin
    side_cols = float((work.cols.size * work.cols.depth).sum())
    col_words = float((cols * depth).sum()) if side_cols > near / 2 else side_cols
    return float((rows * depth).sum() + 2 * side_cols + col_words + (rows * cols * (2 * calls - 1)).sum())


def _group_words(work: Product) -> Floats:
    """Words of each group of columns when packed, without padding."""
    strips = work.col_strips
    words = (strips.size * work.cols.depth[strips.panel] * strips.batch).astype(np.float64)
    return np.add.reduceat(words, work.cells.group_ptr[:-1])


def _blas_words(plan: Plan, work: Product, near: float) -> float:
    rows, cols, batch, depth = _cell_shapes(plan, work)
    calls = work.cells.end - work.cells.begin
    words = blocked_product_words(rows, cols, depth, near) + 2 * rows * cols * (calls - 1)
    return float((words * batch).sum())


def _loop_words(plan: Plan, work: Product, near: float) -> float:
    """As for BLAS, but an operand that stays near as a whole is read once."""
    rows, cols, batch, depth = _cell_shapes(plan, work)
    edge = math.sqrt(near / 3)
    total = float((rows * cols * batch).sum())
    for own, other, side in ((rows, cols, work.rows), (cols, rows, work.cols)):
        whole = float((side.size * side.depth * side.batch).sum())
        again = float((own * depth * batch * np.ceil(other / edge)).sum())
        total += whole if whole <= near / 2 else max(whole, again)
    return total


def _sum_bytes(plan: Plan, work: Sum) -> int:
    """Bytes that a reduction reads and writes."""
    return int(work.elements.sum()) * plan.dtype.itemsize + plan.result_bytes


# Bound


def project_bound(plan: Plan, machine: Machine) -> int:
    """Bytes that no order of the plan's products can go below, see `tilewise.costs.movement_bound_bytes`.

    The level is what lies near all workers together. Blocks without a product that is kept need not be read.
    """
    compulsory = compulsory_bytes(list(needed_bytes(plan).values()), plan.result_bytes)
    if isinstance(plan.work, Sum):
        return compulsory
    if plan.placement is not None:
        return plan.placement.bound_bytes
    capacity = plan.workers * level_bytes(machine)
    return movement_bound_bytes(compulsory, multiplications(plan), plan.dtype.itemsize, capacity, stored_uses(plan))


def stored_uses(plan: Plan) -> int:
    """In how many places a stored element can stand: by its symmetry, and if both operands may be one tensor."""
    left, right = (operand.pattern for operand in plan.operands)
    return _exchanges(left) * _exchanges(right) * (4 if left is right else 1)


def _exchanges(pattern: Pattern) -> int:
    if pattern.symmetry is None:
        return 1
    return math.prod(math.factorial(len(modes)) for modes, _ in pattern.symmetry.groups)


def needed_bytes(plan: Plan) -> dict[int, int]:
    """Bytes of the stored blocks that are needed, by the identity of the operand's pattern.

    Two operands with one pattern may be one tensor, which is then needed once.
    """
    itemsize = plan.dtype.itemsize
    if isinstance(plan.work, Sum):
        (operand,) = plan.operands
        stored = _stored_bytes(operand, [plan.work.source], itemsize)
        read = int(plan.work.elements.sum()) // _exchanges(operand.pattern)
        return {id(operand.pattern): min(stored, read * itemsize)}
    order = (1, 0) if plan.work.swapped else (0, 1)
    used: dict[int, list[Ints]] = {}
    owners: dict[int, Operand] = {}
    for number, blocks in zip(order, _used_blocks(plan, plan.work), strict=True):
        operand = plan.operands[number]
        used.setdefault(id(operand.pattern), []).append(blocks)
        owners[id(operand.pattern)] = operand
    return {key: _stored_bytes(owners[key], blocks, itemsize) for key, blocks in used.items()}


def _stored_bytes(operand: Operand, blocks: list[Ints], itemsize: int) -> int:
    """Bytes of the unique blocks behind some blocks."""
    stored = np.unique(operand.blocks.source[np.concatenate(blocks)])
    return int(operand.pattern.block_sizes[stored].sum()) * itemsize


def _used_blocks(plan: Plan, work: Product) -> tuple[Ints, Ints]:
    """Blocks of the row and of the column operand that take part in a product that is kept."""
    if work.screened_products == 0:
        return work.rows.block, work.cols.block
    return blocks_of_cells(plan, work)


def blocks_of_cells(plan: Plan, work: Product) -> tuple[Ints, Ints]:
    """Blocks of the row and of the column operand that the cells of a product multiply."""
    cells, parts = work.cells, reals_per_element(plan)
    _, first = np.unique(cells.begin * (len(work.terms) + 1) + cells.end, return_index=True)
    counts = cells.end[first] - cells.begin[first]
    ends = np.cumsum(counts)
    terms = work.terms[np.arange(int(counts.sum())) + np.repeat(cells.end[first] - ends, counts)]
    if plan.kernel != "packed":
        return np.unique(terms[:, 0]).astype(np.int64), np.unique(terms[:, 1]).astype(np.int64)
    found = []
    for side, strips, strip, column in (
        (work.rows, work.row_strips, cells.row, 0),
        (work.cols, work.col_strips, cells.col, 1),
    ):
        before = np.cumsum(side.depth) - side.depth
        low = np.repeat(before[strips.panel[strip[first]]], counts) + terms[:, column] // parts
        at = before[np.repeat(np.arange(len(side.ptr) - 1), np.diff(side.ptr))] + side.at
        covered = np.zeros(len(at) + 1, np.int64)
        np.add.at(covered, np.searchsorted(at, low, side="right") - 1, 1)
        np.add.at(covered, np.searchsorted(at, low + terms[:, 2] // parts), -1)
        found.append(side.block[np.cumsum(covered)[:-1] > 0])
    return found[0], found[1]


# Shares


def project_imbalance(plan: Plan) -> float:
    """The largest worker's share of the work over the mean, before anybody takes over tasks of another."""
    # A result block of a reduction costs its elements and the way to it.
    weights = plan.work.elements * 2.0 + 50.0 if isinstance(plan.work, Sum) else plan.work.cells.task_flops
    total = np.concatenate([[0.0], np.cumsum(weights)])
    if total[-1] == 0:
        return 1.0
    cuts = np.searchsorted(total, np.linspace(0.0, total[-1], plan.workers + 1)[1:-1])
    ends = np.maximum.accumulate(np.concatenate([[0], cuts, [len(weights)]]))
    return float(np.diff(total[ends]).max() * plan.workers / total[-1])
