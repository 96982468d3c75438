"""Products with hardly any rows or columns, and elementwise ones: plain loops over offset tables."""

from __future__ import annotations

from typing import Any

from tilewise.engines.kernels.atomics import take
from tilewise.engines.kernels.blocks import look_up
from tilewise.engines.kernels.compile import compiled, compiled_fast
from tilewise.engines.kernels.squares import sum_squares


@compiled
def loop_cells(
    worker: int,
    queues: Any,
    stop: Any,
    cells: Any,
    rows: Any,
    cols: Any,
    result: Any,
    alpha: Any,
    squares: Any,
    row_tables: Any,
    col_tables: Any,
    tables: Any,
    parts: int,
    tally: Any,
) -> None:
    """Run the tasks this worker takes; result blocks start from what they hold."""
    while stop[0] == 0:
        task = take(queues, worker)
        if task < 0:
            break
        tally[worker, 0] += 1
        for cell in range(cells.task_ptr[task], cells.task_ptr[task + 1]):
            block = cells.block[cell]
            look_up(result, block, tables, 1)
            for term in range(cells.begin[cell], cells.end[cell]):
                if stop[0] != 0:
                    break
                left, right, _, _ = cells.terms[term]
                look_up(rows, left, row_tables, 1)
                look_up(cols, right, col_tables, 1)
                tally[worker, 1] += 1
                m, k, batches = row_tables.count
                tally[worker, 2] += 2 * parts * parts * batches * m * col_tables.count[0] * k
                factor = alpha * result.data.dtype.type(rows.sign[left] * cols.sign[right])
                _multiply(rows, left, row_tables, cols, right, col_tables, result, cells.start[cell], tables, factor)
            squares[cell] = sum_squares(
                result.data, cells.start[cell], tables.count[0] * tables.count[1] * tables.count[2]
            )


@compiled
def _multiply(
    rows: Any,
    left: int,
    row_tables: Any,
    cols: Any,
    right: int,
    col_tables: Any,
    result: Any,
    c0: int,
    tables: Any,
    factor: Any,
) -> None:
    m, k, batches = row_tables.count
    n = col_tables.count[0]
    a0, b0 = rows.start[left], cols.start[right]
    if m == 1 and n == 1 and k == 1:
        for e in range(batches):
            result.data[c0 + tables.batch[e]] += (
                factor * rows.data[a0 + row_tables.batch[e]] * cols.data[b0 + col_tables.batch[e]]
            )
        return
    neighbours = row_tables.step[1] == 1 and col_tables.step[1] == 1
    for e in range(batches):
        a1, b1, c1 = a0 + row_tables.batch[e], b0 + col_tables.batch[e], c0 + tables.batch[e]
        for i in range(m):
            for j in range(n):
                a, b = a1 + row_tables.free[i], b1 + col_tables.free[j]
                if neighbours:
                    value = _dot(rows.data, a, cols.data, b, k)
                else:
                    value = _gathered_dot(rows.data, a, row_tables.inner, cols.data, b, col_tables.inner, k)
                result.data[c1 + tables.free[i] + tables.inner[j]] += factor * value


@compiled_fast
def _dot(left: Any, a: int, right: Any, b: int, count: int) -> Any:
    total = left.dtype.type(0)
    for i in range(count):
        total += left[a + i] * right[b + i]
    return total


@compiled
def _gathered_dot(left: Any, a: int, left_at: Any, right: Any, b: int, right_at: Any, count: int) -> Any:
    total = left.dtype.type(0)
    for i in range(count):
        total += left[a + left_at[i]] * right[b + right_at[i]]
    return total
