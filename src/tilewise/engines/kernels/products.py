"""The loop over the cells of a packed product: what a worker does between taking tasks.

A *cell* is one strip of rows times one strip of columns of one result block; its terms are the k
segments of the products that survived inspection.  The terms are summed in chunks of about
``CHUNK_DEPTH`` so that slivers stay in the near caches; the chunks of a cell start from zero and
are added in order.  What is a chunk depends on the terms alone, so the bits of a result depend neither
on the number of workers nor on who ran which cell.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewise.engines.kernels.atomics import take
from tilewise.engines.kernels.blocks import look_up_cell
from tilewise.engines.kernels.compile import compiled
from tilewise.engines.kernels.microkernel import MAX_VECTORS, SEGMENT_BYTES, multiply_tile
from tilewise.engines.kernels.packing import lanes_of, pack_columns, pack_rows, padded
from tilewise.engines.kernels.vectors import LINE_BYTES, add_vector, copy_vector, prefetch, sum_squares

SHORT_DEPTH = 12
"""Segments shorter than this are not asked for one by one: asking would cost more than it saves."""

NEAR_BYTES = 65536
"""Strips of rows up to this size are asked for as a whole."""


class Cells(NamedTuple):
    """The work of a packed product, ordered by column group, row, column."""

    block: Any
    """Result block of each cell."""
    start: Any
    """Element number at which that block begins."""
    row: Any
    """Row strip."""
    col: Any
    """Column strip."""
    begin: Any
    """First term."""
    end: Any
    """One past the last term."""
    terms: Any
    """Segments: start in the row panel, start in the column panel, length; in elements of k."""
    task_ptr: Any
    """First cell of each task; one more at the end."""
    group_of_col: Any
    """Column group of each column strip."""
    group_ptr: Any
    """First column strip of each group; one more at the end."""


class Packed(NamedTuple):
    """Both operands in packed form."""

    rows: Any
    """Slivers of all row strips."""
    row_at: Any
    """Where each row strip begins in `rows`."""
    cols: Any
    """Slivers of the column strips of one group."""
    col_at: Any
    """Where each column strip begins in `cols`."""


@compiled
def pack_all_rows(
    worker: int,
    queues: Any,
    stop: Any,
    blocks: Any,
    panels: Any,
    out: Any,
    at: Any,
    re: float,
    im: float,
    parts: int,
    tables: Any,
) -> None:
    """Pack the strips of the row operand that this worker takes."""
    while stop[0] == 0:
        strip = take(queues, worker)
        if strip < 0:
            break
        pack_rows(blocks, panels, strip, out, at[strip], re, im, parts, tables)


@compiled
def multiply_cells(
    worker: int,
    queues: Any,
    stop: Any,
    cells: Any,
    row_panels: Any,
    col_panels: Any,
    packed: Any,
    cols: Any,
    col_tables: Any,
    result: Any,
    tables: Any,
    tile: Any,
    fresh: bool,
    chunk_depth: int,
    parts: int,
    squares: Any,
    tally: Any,
) -> None:
    """Run the tasks this worker takes: pack their columns, multiply their cells."""
    packed_group, last_row = -1, -1
    while stop[0] == 0:
        task = take(queues, worker)
        if task < 0:
            break
        first, last = cells.task_ptr[task], cells.task_ptr[task + 1]
        tally[worker, 0] += 1
        group = cells.group_of_col[cells.col[first]]
        if group != packed_group:
            for strip in range(cells.group_ptr[group], cells.group_ptr[group + 1]):
                pack_columns(cols, col_panels, strip, packed.cols, packed.col_at[strip], parts, col_tables)
            packed_group = group
        for cell in range(first, last):
            row = cells.row[cell]
            if cell + 1 < last and cells.terms[cells.begin[cell], 2] >= SHORT_DEPTH:
                _fetch_cell(cells, cell + 1, row_panels, packed, parts)
            elif row != last_row and row + 1 < len(row_panels.strip_size):
                _fetch_strip(row_panels, row + 1, packed, parts)
            last_row = row
            look_up_cell(
                result,
                row_panels.tiles,
                row_panels.strip_panel[cells.row[cell]],
                col_panels.tiles,
                col_panels.strip_panel[cells.col[cell]],
                tables,
                parts,
            )
            squares[cell] = _multiply_cell(
                cells,
                cell,
                row_panels,
                col_panels,
                packed,
                result,
                tables,
                tile,
                fresh,
                chunk_depth,
                parts,
                tally,
                worker,
            )
            if stop[0] != 0:
                break


@compiled
def _multiply_cell(
    cells: Any,
    cell: int,
    row_panels: Any,
    col_panels: Any,
    packed: Any,
    result: Any,
    tables: Any,
    tile: Any,
    fresh: bool,
    chunk_depth: int,
    parts: int,
    tally: Any,
    worker: int,
) -> float:
    """One cell of the result; returns the sum of its squared elements."""
    row, col = cells.row[cell], cells.col[cell]
    m, n = row_panels.strip_size[row], col_panels.strip_size[col]
    row_depth = row_panels.depth[row_panels.strip_panel[row]]
    col_depth = col_panels.depth[col_panels.strip_panel[col]]
    row_step = m * row_depth * parts
    col_step = padded(n * parts, lanes_of(tile)) * col_depth * parts
    first_row, first_col = row_panels.strip_begin[row], col_panels.strip_begin[col]
    total = 0.0
    for e in range(tables.count[2]):
        base = cells.start[cell] * parts + tables.batch[e]
        begin, store = cells.begin[cell], fresh
        while begin < cells.end[cell]:
            end, depth = begin + 1, cells.terms[begin, 2]
            while end < cells.end[cell] and depth + cells.terms[end, 2] <= chunk_depth:
                depth += cells.terms[end, 2]
                end += 1
            _multiply_chunk(
                cells.terms,
                begin,
                end,
                row_panels,
                row,
                packed.rows,
                packed.row_at[row] + e * row_step,
                row_depth,
                packed.cols,
                packed.col_at[col] + e * col_step,
                col_depth,
                n,
                result.data,
                base,
                tables,
                first_row,
                first_col,
                store,
                parts,
                tile,
            )
            tally[worker, 1] += end - begin
            tally[worker, 2] += 2 * m * n * depth * parts
            begin, store = end, False
        total += _cell_squares(result.data, base, tables, first_row, m, first_col, n, parts)
    return total


@compiled
def _multiply_chunk(
    terms: Any,
    begin: int,
    end: int,
    row_panels: Any,
    strip: int,
    packed_rows: Any,
    row_at: int,
    row_depth: int,
    packed_cols: Any,
    col_at: int,
    col_depth: int,
    n: int,
    data: Any,
    base: int,
    tables: Any,
    row0: int,
    col0: int,
    store: bool,
    parts: int,
    tile: Any,
) -> None:
    """All register tiles of one cell for one chunk of its terms."""
    item, lanes = data.itemsize, lanes_of(data)
    sample = data.dtype.type(0)
    terms_address = np.int64(terms.ctypes.data) + begin * SEGMENT_BYTES
    tile_address, data_address = np.int64(tile.ctypes.data), np.int64(data.ctypes.data)
    slivers, narrow, wider = row_panels.slivers[strip], row_panels.narrow[strip], row_panels.wider[strip]
    whole, vector = lanes * MAX_VECTORS // parts, lanes * item
    neighbours = tables.step[1] == parts
    col_sliver = np.int64(packed_cols.ctypes.data) + col_at * item
    first = 0
    while first < n:
        columns = min(whole, n - first)
        width = padded(columns * parts, lanes)
        # Whole vectors of neighbouring elements are added as such, the rest one by one.
        full = columns * parts // lanes if neighbours else 0
        to = data_address + (base + tables.inner[col0 + first]) * item
        row_sliver = np.int64(packed_rows.ctypes.data) + row_at * item
        row = row0
        for s in range(slivers):
            rows = narrow + 1 if s < wider else narrow
            sliver_bytes = rows * row_depth * parts * item
            ahead = sliver_bytes if s + 1 < slivers else 0
            # The result's lines are on their way while the tile is computed.
            for r in range(row, row + rows):
                prefetch(to + tables.free[r] * item)
            multiply_tile(
                sample,
                (rows - 1) * MAX_VECTORS + width // lanes - 1,
                row_sliver,
                col_sliver,
                terms_address,
                end - begin,
                tile_address,
                ahead,
            )
            source = tile_address
            for r in range(row, row + rows):
                target = to + tables.free[r] * item
                for v in range(full):
                    if store:
                        copy_vector(sample, target + v * vector, source + v * vector)
                    else:
                        add_vector(sample, target + v * vector, source + v * vector)
                source += width * item
            if full * lanes < columns * parts:
                _scatter(
                    tile,
                    rows,
                    full * lanes // parts,
                    columns,
                    width,
                    data,
                    base,
                    tables,
                    row,
                    col0 + first,
                    store,
                    parts,
                )
            row += rows
            row_sliver += sliver_bytes
        first += whole
        col_sliver += width * col_depth * parts * item


@compiled
def _scatter(
    tile: Any,
    rows: int,
    column: int,
    columns: int,
    width: int,
    data: Any,
    base: int,
    tables: Any,
    row0: int,
    col0: int,
    store: bool,
    parts: int,
) -> None:
    """Add columns of a register tile to result elements one by one."""
    for r in range(rows):
        line = base + tables.free[row0 + r]
        for c in range(column, columns):
            at = line + tables.inner[col0 + c]
            for part in range(parts):
                value = tile[r * width + c * parts + part]
                data[at + part] = value if store else data[at + part] + value


@compiled
def _cell_squares(data: Any, base: int, tables: Any, row0: int, m: int, col0: int, n: int, parts: int) -> float:
    """Sum of the squared elements of a cell."""
    item = data.itemsize
    sample = data.dtype.type(0)
    address = np.int64(data.ctypes.data) + base * item
    length = n if tables.step[1] == parts else 1
    if length == n and tables.step[0] == n * parts:
        return sum_squares(sample, address + (tables.free[row0] + tables.inner[col0]) * item, m * n * parts)
    total = 0.0
    for r in range(row0, row0 + m):
        line = address + tables.free[r] * item
        c = col0
        while c < col0 + n:
            total += sum_squares(sample, line + tables.inner[c] * item, length * parts)
            c += length
    return total


@compiled
def _fetch_cell(cells: Any, cell: int, row_panels: Any, packed: Any, parts: int) -> None:
    """Ask for the slivers of rows that a cell reads: segments too short for the CPU to guess."""
    item = packed.rows.itemsize
    row = cells.row[cell]
    slivers, narrow, wider = row_panels.slivers[row], row_panels.narrow[row], row_panels.wider[row]
    depth = row_panels.depth[row_panels.strip_panel[row]]
    address = np.int64(packed.rows.ctypes.data) + packed.row_at[row] * item
    for s in range(slivers):
        rows = narrow + 1 if s < wider else narrow
        for t in range(cells.begin[cell], cells.end[cell]):
            line = address + cells.terms[t, 0] * rows * item
            _fetch(line, line + cells.terms[t, 2] * rows * item)
        address += rows * depth * parts * item


@compiled
def _fetch_strip(row_panels: Any, row: int, packed: Any, parts: int) -> None:
    """Ask for all slivers of a short strip of rows."""
    item = packed.rows.itemsize
    size = row_panels.strip_size[row] * row_panels.depth[row_panels.strip_panel[row]] * parts * item
    if size <= NEAR_BYTES:
        begin = np.int64(packed.rows.ctypes.data) + packed.row_at[row] * item
        _fetch(begin, begin + size)


@compiled
def _fetch(line: int, end: int) -> None:
    while line < end:
        prefetch(line)
        line += LINE_BYTES
