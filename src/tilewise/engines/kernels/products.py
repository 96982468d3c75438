"""The loop over the cells of a packed product: what a worker does between taking tasks.

A *cell* is one strip of rows times one strip of columns of one result block; its terms are the k
segments of the products that survived inspection.  The terms are summed in chunks of up to
``CHUNK_DEPTH`` so that slivers stay in the near caches; the chunks of a cell start from zero and
are added in order.  What is a chunk depends on the terms alone, so the bits of a result depend neither
on the number of workers nor on who ran which cell.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tilewise.engines.kernels.atomics import take
from tilewise.engines.kernels.blocks import look_up_cell
from tilewise.engines.kernels.compile import compiled, inlined
from tilewise.engines.kernels.microkernel import (
    MAX_ROWS,
    MAX_VECTORS,
    REGISTER_BYTES,
    SEGMENT_BYTES,
    WIDEST_HALVES,
    multiply_tile,
)
from tilewise.engines.kernels.packing import lanes_of, pack_columns, pack_rows, padded, sliver_reals
from tilewise.engines.kernels.squares import sum_squares
from tilewise.engines.kernels.vectors import LINE_BYTES, add_vector, copy_vector, prefetch

SHORT_DEPTH = 12
"""Segments shorter than this are not asked for one by one: asking would cost more than it saves."""

NEAR_BYTES = 65536
"""Strips of rows up to this size are asked for as a whole."""


class Cells(NamedTuple):
    """The work of a product, ordered by column group, row, column."""

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
    """Packed: segments, that is start in the row panel, start in the column panel and length, in reals.
    Otherwise: row block, column block, length in elements of k."""
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
    held: Any
    """Whether each strip of the group that is worked on is in `cols`."""


class Tile(NamedTuple):
    """A worker's buffer for one register tile."""

    data: Any
    """The tile's elements."""
    lines: Any
    """Where each of its rows begins."""


def make_tile(dtype: npt.DTypeLike) -> Tile:
    """A buffer for the largest register tile of an element type."""
    pitch = REGISTER_BYTES // np.dtype(dtype).itemsize * ((WIDEST_HALVES + 1) // 2)
    return Tile(np.empty(MAX_ROWS * pitch, dtype), np.arange(MAX_ROWS) * pitch)


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
    parts: int,
    squares: Any,
    tally: Any,
) -> None:
    """Run the tasks this worker takes: pack columns when they are first met, multiply cells."""
    packed_group, last_row = -1, -1
    while stop[0] == 0:
        task = take(queues, worker)
        if task < 0:
            break
        first, last = cells.task_ptr[task], cells.task_ptr[task + 1]
        tally[worker, 0] += 1
        group = cells.group_of_col[cells.col[first]]
        if group != packed_group:
            packed.held[:] = False
            packed_group = group
        for cell in range(first, last):
            row, col = cells.row[cell], cells.col[cell]
            if not packed.held[col - cells.group_ptr[group]]:
                to = packed.col_at[col]
                pack_columns(cols, col_panels, col, packed.cols, to, 1.0, parts, 2 * MAX_VECTORS, col_tables)
                packed.held[col - cells.group_ptr[group]] = True
            if cell + 1 < last and cells.terms[cells.begin[cell], 2] >= SHORT_DEPTH:
                # A short strip of rows is near once its first cell was multiplied.
                if cells.row[cell + 1] != row or _strip_bytes(row_panels, row, packed, parts) > NEAR_BYTES:
                    _fetch_cell(cells, cell + 1, row_panels, packed, parts)
            elif row != last_row and row + 1 < len(row_panels.strip_size):
                _fetch_strip(row_panels, row + 1, packed, parts)
            last_row = row
            look_up_cell(
                result,
                row_panels.tiles,
                row_panels.strip_panel[row],
                col_panels.tiles,
                col_panels.strip_panel[col],
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
                parts,
                tally,
                worker,
            )
            if stop[0] != 0:
                break


@inlined
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
    parts: int,
    tally: Any,
    worker: int,
) -> float:
    """One cell of the result; returns the sum of its squared elements."""
    row, col = cells.row[cell], cells.col[cell]
    m, n = row_panels.strip_size[row], col_panels.strip_size[col]
    total = 0.0
    for e in range(tables.count[2]):
        base = cells.start[cell] * parts + tables.batch[e]
        begin, store = cells.begin[cell], fresh
        while begin < cells.end[cell]:
            end, depth = begin + 1, cells.terms[begin, 2]
            while end < cells.end[cell] and cells.terms[end, 3] == cells.terms[begin, 3]:
                depth += cells.terms[end, 2]
                end += 1
            _multiply_chunk(
                cells,
                cell,
                begin,
                end,
                e,
                row_panels,
                col_panels,
                packed,
                result.data,
                base,
                tables,
                tile,
                store,
                parts,
            )
            tally[worker, 1] += end - begin
            tally[worker, 2] += 2 * m * n * depth * parts
            begin, store = end, False
        first_row, first_col = row_panels.strip_begin[row], col_panels.strip_begin[col]
        total += cell_squares(result.data, base, tables, first_row, m, first_col, n, parts)
    return total


@inlined
def _multiply_chunk(
    cells: Any,
    cell: int,
    begin: int,
    end: int,
    e: int,
    row_panels: Any,
    col_panels: Any,
    packed: Any,
    data: Any,
    base: int,
    tables: Any,
    tile: Any,
    store: bool,
    parts: int,
) -> None:
    """All register tiles of one cell for terms `begin` to `end`; `e` is the batch element."""
    strip, col = cells.row[cell], cells.col[cell]
    m, n = row_panels.strip_size[strip], col_panels.strip_size[col]
    row0, col0 = row_panels.strip_begin[strip], col_panels.strip_begin[col]
    row_depth = row_panels.depth[row_panels.strip_panel[strip]]
    col_depth = col_panels.depth[col_panels.strip_panel[col]]
    item, lanes = data.itemsize, lanes_of(data)
    sample = data.dtype.type(0)
    row_at = packed.row_at[strip] + e * m * row_depth * parts
    col_at = packed.col_at[col] + e * padded(n * parts, lanes) * col_depth * parts
    terms_address = np.int64(cells.terms.ctypes.data) + begin * SEGMENT_BYTES
    data_address, free_address = np.int64(data.ctypes.data), np.int64(tables.free.ctypes.data)
    tile_address, tile_lines = np.int64(tile.data.ctypes.data), np.int64(tile.lines.ctypes.data)
    slivers, narrow, wider = row_panels.slivers[strip], row_panels.narrow[strip], row_panels.wider[strip]
    neighbours = tables.step[1] == parts
    col_sliver = np.int64(packed.cols.ctypes.data) + col_at * item
    first = 0
    while first < n:
        columns = sliver_reals((n - first) * parts, lanes, 2 * MAX_VECTORS) // parts
        width = padded(columns * parts, lanes)
        # Whole vectors of neighbouring elements go straight to the result, others through a buffer.
        direct = neighbours and columns * parts == width
        to = data_address + (base + tables.inner[col0 + first]) * item
        col_bytes = width * col_depth * parts * item
        row_sliver = np.int64(packed.rows.ctypes.data) + row_at * item
        row = row0
        for s in range(slivers):
            rows = narrow + 1 if s < wider else narrow
            sliver_bytes = rows * row_depth * parts * item
            ahead = sliver_bytes if s + 1 < slivers else col_bytes
            multiply_tile(
                sample,
                (rows - 1) * MAX_VECTORS + width // lanes - 1,
                row_sliver,
                col_sliver,
                terms_address,
                end - begin,
                to if direct else tile_address,
                free_address + row * 8 if direct else tile_lines,
                1 if direct and not store else 0,
                ahead,
                0 if s + 1 < slivers else 1,
            )
            if not direct:
                scatter_tile(tile, rows, columns, data, base, tables, row, col0 + first, store, parts)
            row += rows
            row_sliver += sliver_bytes
        first += columns
        col_sliver += col_bytes


@inlined
def scatter_tile(
    tile: Any,
    rows: int,
    columns: int,
    data: Any,
    base: int,
    tables: Any,
    row0: int,
    col0: int,
    store: bool,
    parts: int,
) -> None:
    """Bring a register tile from its buffer to the result: whole vectors, then one by one."""
    item, lanes = data.itemsize, lanes_of(data)
    sample = data.dtype.type(0)
    reals = columns * parts
    whole = reals & -lanes if tables.step[1] == parts else 0
    for r in range(rows):
        line = base + tables.free[row0 + r]
        source = np.int64(tile.data.ctypes.data) + tile.lines[r] * item
        target = np.int64(data.ctypes.data) + (line + tables.inner[col0]) * item
        for v in range(0, whole * item, lanes * item):
            if store:
                copy_vector(sample, target + v, source + v)
            else:
                add_vector(sample, target + v, source + v)
        for i in range(whole, reals):
            at = line + tables.inner[col0 + i // parts] + i % parts
            value = tile.data[tile.lines[r] + i]
            data[at] = value if store else data[at] + value


@inlined
def cell_squares(data: Any, base: int, tables: Any, row0: int, m: int, col0: int, n: int, parts: int) -> float:
    """Sum of the squared elements of a cell."""
    length = n if tables.step[1] == parts else 1
    if length == n and tables.step[0] == n * parts:
        return sum_squares(data, base + tables.free[row0] + tables.inner[col0], m * n * parts)
    total = 0.0
    for r in range(row0, row0 + m):
        c = col0
        while c < col0 + n:
            total += sum_squares(data, base + tables.free[r] + tables.inner[c], length * parts)
            c += length
    return total


@inlined
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


@inlined
def _fetch_strip(row_panels: Any, row: int, packed: Any, parts: int) -> None:
    """Ask for all slivers of a short strip of rows."""
    size = _strip_bytes(row_panels, row, packed, parts)
    if size <= NEAR_BYTES:
        begin = np.int64(packed.rows.ctypes.data) + packed.row_at[row] * packed.rows.itemsize
        _fetch(begin, begin + size)


@inlined
def _strip_bytes(row_panels: Any, row: int, packed: Any, parts: int) -> int:
    """Bytes of a packed strip of rows, of one batch element."""
    return row_panels.strip_size[row] * row_panels.depth[row_panels.strip_panel[row]] * parts * packed.rows.itemsize


@inlined
def _fetch(line: int, end: int) -> None:
    while line < end:
        prefetch(line)
        line += LINE_BYTES
