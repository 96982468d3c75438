"""Products of a large operand that is read where it lies with a small one that is packed once.

Each product of two blocks is cut along k into nearly equal chunks of up to ``CHUNK_DEPTH``; a chunk of a strip of rows
stays in the second-level cache while it meets all slivers of columns.  Chunks start from zero and are added to the
result in order, so that its bits depend on the products alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewise.engines.kernels.atomics import take
from tilewise.engines.kernels.blocks import look_up, look_up_cell
from tilewise.engines.kernels.compile import compiled, inlined
from tilewise.engines.kernels.microkernel import WIDEST_HALVES
from tilewise.engines.kernels.packing import lanes_of, pack_columns, padded, sliver_reals
from tilewise.engines.kernels.products import cell_squares, scatter_tile
from tilewise.engines.kernels.strided import multiply_strided
from tilewise.plans.inspector import CHUNK_DEPTH


class Columns(NamedTuple):
    """The small operand in packed form."""

    data: Any
    """Slivers of all strips."""
    strip_at: Any
    """Where each strip begins in `data`."""
    block_at: Any
    """Position of each block along its panel's k range."""


@compiled
def pack_all_columns(
    worker: int, queues: Any, stop: Any, blocks: Any, panels: Any, out: Any, at: Any, factor: float, tables: Any
) -> None:
    """Pack the strips of the column operand that this worker takes."""
    while stop[0] == 0:
        strip = take(queues, worker)
        if strip < 0:
            break
        pack_columns(blocks, panels, strip, out, at[strip], factor, 1, WIDEST_HALVES, tables)


@compiled
def multiply_in_place(
    worker: int,
    queues: Any,
    stop: Any,
    cells: Any,
    row_panels: Any,
    rows: Any,
    col_panels: Any,
    columns: Any,
    result: Any,
    row_tables: Any,
    tables: Any,
    tile: Any,
    fresh: bool,
    squares: Any,
    tally: Any,
) -> None:
    """Run the tasks this worker takes."""
    while stop[0] == 0:
        task = take(queues, worker)
        if task < 0:
            break
        tally[worker, 0] += 1
        for cell in range(cells.task_ptr[task], cells.task_ptr[task + 1]):
            row, col = cells.row[cell], cells.col[cell]
            m, n = row_panels.strip_size[row], col_panels.strip_size[col]
            look_up_cell(
                result,
                row_panels.tiles,
                row_panels.strip_panel[row],
                col_panels.tiles,
                col_panels.strip_panel[col],
                tables,
                1,
            )
            base = cells.start[cell]
            store = fresh
            for term in range(cells.begin[cell], cells.end[cell]):
                if stop[0] != 0:
                    break
                left, right, k, _ = cells.terms[term]
                look_up(rows, left, row_tables, 1)
                following = cells.terms[min(term + 1, cells.end[cell] - 1)][0]
                to_following = rows.start[following] - rows.start[left]
                chunks = (k + CHUNK_DEPTH - 1) // CHUNK_DEPTH
                for chunk in range(chunks):
                    begin, end = chunk * k // chunks, (chunk + 1) * k // chunks
                    _multiply_chunk(
                        rows,
                        rows.start[left],
                        begin,
                        end - begin,
                        row_tables.step[1] * (end - begin) if end < k else to_following - row_tables.inner[begin],
                        row_panels,
                        row,
                        row_tables,
                        col_panels,
                        col,
                        columns,
                        columns.block_at[right] + begin,
                        result.data,
                        base,
                        tables,
                        tile,
                        store,
                    )
                    store = False
                tally[worker, 1] += 1
                tally[worker, 2] += 2 * m * n * k
            first_row, first_col = row_panels.strip_begin[row], col_panels.strip_begin[col]
            squares[cell] = cell_squares(result.data, base, tables, first_row, m, first_col, n, 1)


@inlined
def _multiply_chunk(
    rows: Any,
    start: int,
    k0: int,
    length: int,
    to_next: int,
    row_panels: Any,
    strip: int,
    row_tables: Any,
    col_panels: Any,
    col: int,
    columns: Any,
    col_k0: int,
    data: Any,
    base: int,
    tables: Any,
    tile: Any,
    store: bool,
) -> None:
    """All register tiles of one cell for `length` elements of k: from `k0` of a row block, `col_k0` of the columns.

    `to_next` is the distance, in elements, to the chunk that comes next.  Its slivers are asked for one after the other
    while all columns pass by, so that memory has the time of the whole chunk to bring them.
    """
    n = col_panels.strip_size[col]
    row0, col0 = row_panels.strip_begin[strip], col_panels.strip_begin[col]
    depth = col_panels.depth[col_panels.strip_panel[col]]
    item, lanes = data.itemsize, lanes_of(data)
    sample = data.dtype.type(0)
    row_step, k_step = row_tables.step[0] * item, row_tables.step[1] * item
    corner = start + row_tables.free[row0] + row_tables.inner[k0]
    data_address, free_address = np.int64(data.ctypes.data), np.int64(tables.free.ctypes.data)
    tile_address, tile_lines = np.int64(tile.data.ctypes.data), np.int64(tile.lines.ctypes.data)
    slivers, narrow, wider = row_panels.slivers[strip], row_panels.narrow[strip], row_panels.wider[strip]
    neighbours = tables.step[1] == 1
    first = 0
    while first < n:
        count = sliver_reals(n - first, lanes, WIDEST_HALVES)
        width = padded(count, lanes)
        halves = (2 * count + lanes - 1) // lanes
        direct = neighbours and 2 * count == halves * lanes
        to = data_address + (base + tables.inner[col0 + first]) * item
        col_at = columns.strip_at[col] + first * depth + col_k0 * width
        row, row_at = row0, np.int64(rows.data.ctypes.data) + corner * item
        below = 0 if first else row_step  # after the first columns the rows are in the cache
        for s in range(slivers):
            size = narrow + 1 if s < wider else narrow
            is_turn = first <= s * n // slivers < first + count
            multiply_strided(
                sample,
                (size - 1) * WIDEST_HALVES + halves - 1,
                row_at,
                row_step,
                k_step,
                np.int64(columns.data.ctypes.data) + col_at * item,
                length,
                to if direct else tile_address,
                free_address + row * 8 if direct else tile_lines,
                1 if direct and not store else 0,
                to_next * item if is_turn else size * below,
            )
            if not direct:
                scatter_tile(tile, size, count, data, base, tables, row, col0 + first, store, 1)
            row += size
            row_at += size * row_step
        first += count
