"""Packing: blocks of one panel copied into slivers, in the order in which the register tile reads them.

A *panel* is all blocks of an operand that share their free tiles, ordered by k; a *strip* is a range of
its free elements.  The row operand's strip is cut into slivers of up to ``MAX_ROWS`` elements of nearly
equal width, without padding; the column operand's into slivers of whole vectors, the last one padded
with zeros.  Inside a sliver, k is the slow index.  Permutations of modes, signs and the factor alpha are
applied on the way, so that an operand is read once.

Complex products run on the real register tile: with the row operand as pairs (re, im) along k, and each
element b of the column operand as the 2 x 2 matrix ((re, im), (-im, re)), the real product is the complex
one with interleaved parts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewise.engines.kernels.blocks import look_up
from tilewise.engines.kernels.compile import compiled, inlined
from tilewise.engines.kernels.microkernel import LANES_4, LANES_8, MAX_VECTORS
from tilewise.engines.kernels.vectors import copy_vector, transpose_vectors


class Panels(NamedTuple):
    """An operand cut into panels and strips."""

    ptr: Any
    """First entry of each panel in `block`; one more at the end."""
    block: Any
    """Block numbers, ordered by panel and k."""
    at: Any
    """Position of each entry along its panel's k range."""
    depth: Any
    """Length of each panel's k range."""
    tiles: Any
    """Sizes of each panel's batch and free tiles."""
    strip_panel: Any
    """Panel of each strip."""
    strip_begin: Any
    """First free element of each strip."""
    strip_size: Any
    """Free elements of each strip."""
    strip_batch: Any
    """Batch elements of each strip."""
    slivers: Any
    """Row slivers of each strip."""
    narrow: Any
    """Width of the narrower slivers of each strip, which come last."""
    wider: Any
    """How many slivers of each strip are one wider."""


@compiled
def padded(columns: int, lanes: int) -> int:
    """Columns rounded up to whole vectors; `lanes` is a power of two."""
    return (columns + lanes - 1) & -lanes


@compiled
def lanes_of(data: Any) -> int:
    """Elements of one vector register; a constant to the compiler, which knows the type."""
    return LANES_8 if data.itemsize == 8 else LANES_4


@compiled
def sliver_reals(left: int, lanes: int, widest: int) -> int:
    """Reals per position of k of the next sliver of columns, of `left` that are not cut yet.

    The last sliver has up to `widest` halves of a vector, those before it whole vectors.  With an odd `widest` nothing
    of one or three halves is left behind wider slivers: such tiles have too few sums to keep the CPU busy.
    """
    halves = (2 * left + lanes - 1) // lanes
    if halves <= widest:
        return left
    return lanes if halves - widest == 2 and widest % 2 else lanes * MAX_VECTORS


@compiled
def pack_rows(
    blocks: Any, panels: Any, strip: int, out: Any, at: int, re: float, im: float, parts: int, tables: Any
) -> None:
    """Pack one strip of the row operand, times the factor re + i im, at ``out[at]``."""
    panel = panels.strip_panel[strip]
    begin, size = panels.strip_begin[strip], panels.strip_size[strip]
    slivers, narrow, wider = panels.slivers[strip], panels.narrow[strip], panels.wider[strip]
    depth = panels.depth[panel]
    for entry in range(panels.ptr[panel], panels.ptr[panel + 1]):
        b = panels.block[entry]
        look_up(blocks, b, tables, parts)
        base = blocks.start[b] * parts
        sign = blocks.sign[b]
        for e in range(tables.count[2]):
            source = base + tables.batch[e]
            target = at + (e * size * depth) * parts
            first = 0
            for s in range(slivers):
                width = narrow + 1 if s < wider else narrow
                to = target + (first * depth + panels.at[entry] * width) * parts
                if parts == 1:
                    _pack_rows_real(blocks.data, source, tables, begin + first, width, out, to, re * sign)
                else:
                    _pack_rows_complex(blocks.data, source, tables, begin + first, width, out, to, re * sign, im * sign)
                first += width


@inlined
def _pack_rows_real(
    data: Any, source: int, tables: Any, begin: int, width: int, out: Any, to: int, factor: float
) -> None:
    scale = data.dtype.type(factor)
    lanes, count = lanes_of(data), tables.count[1]
    done = 0
    if tables.step[1] == 1 and tables.step[0] > 1 and width >= lanes:
        done = count & -lanes
        step, first = tables.step[0], source + tables.free[begin]
        _transpose(data, first, step, done, out, to, width, scale)
        if width > lanes:  # the last rows once more with those before them: a whole register again
            rest = width - lanes
            _transpose(data, first + rest * step, step, done, out, to + rest, width, scale)
    for k in range(done, count):
        line = source + tables.inner[k]
        for r in range(width):
            out[to + k * width + r] = data[line + tables.free[begin + r]] * scale


@inlined
def _transpose(data: Any, source: int, step: int, count: int, out: Any, to: int, width: int, scale: float) -> None:
    """A register's width of lines, `step` apart, become a column of that width of a sliver; `count` whole registers."""
    item, lanes = data.itemsize, lanes_of(data)
    line, target = np.int64(data.ctypes.data) + source * item, np.int64(out.ctypes.data) + to * item
    for k in range(0, count, lanes):
        transpose_vectors(scale, target + k * width * item, width * item, line + k * item, step * item)


@compiled
def _pack_rows_complex(
    data: Any, source: int, tables: Any, begin: int, width: int, out: Any, to: int, re: float, im: float
) -> None:
    a, b = data.dtype.type(re), data.dtype.type(im)
    for k in range(tables.count[1]):
        for r in range(width):
            line = source + tables.inner[k] + tables.free[begin + r]
            x, y = data[line], data[line + 1]
            out[to + 2 * k * width + r] = a * x - b * y
            out[to + (2 * k + 1) * width + r] = a * y + b * x


@compiled
def pack_columns(
    blocks: Any, panels: Any, strip: int, out: Any, at: int, factor: float, parts: int, widest: int, tables: Any
) -> None:
    """Pack one strip of the column operand, times a factor, at ``out[at]``; for `widest` see `sliver_reals`."""
    panel = panels.strip_panel[strip]
    begin, size = panels.strip_begin[strip], panels.strip_size[strip]
    depth, lanes = panels.depth[panel], lanes_of(out)
    stride = padded(size * parts, lanes) * depth * parts
    for entry in range(panels.ptr[panel], panels.ptr[panel + 1]):
        b = panels.block[entry]
        look_up(blocks, b, tables, parts)
        base, scale = blocks.start[b] * parts, factor * blocks.sign[b]
        for e in range(tables.count[2]):
            source, first = base + tables.batch[e], 0
            target = at + e * stride
            if parts == 1 and tables.step[0] == 1 and scale == 1.0:
                at_k = panels.at[entry]
                first = _pack_lines(blocks.data, source, tables, begin, size, out, target, depth, at_k, widest)
            while first < size:
                columns = sliver_reals((size - first) * parts, lanes, widest) // parts
                width = padded(columns * parts, lanes)
                to = target + (first * parts * depth + panels.at[entry] * width) * parts
                if parts == 1:
                    _pack_columns_real(blocks.data, source, tables, begin + first, columns, width, out, to, scale)
                else:
                    _pack_columns_complex(blocks.data, source, tables, begin + first, columns, width, out, to, scale)
                first += columns


@inlined
def _pack_lines(
    data: Any, source: int, tables: Any, begin: int, size: int, out: Any, target: int, depth: int, k0: int, widest: int
) -> int:
    """The first slivers of a block whose columns are neighbours: read line by line; returns the columns done."""
    item, lanes = data.itemsize, lanes_of(data)
    sample = data.dtype.type(0)
    whole = lanes * MAX_VECTORS
    slivers = 0
    while slivers * whole < size and sliver_reals(size - slivers * whole, lanes, widest) == whole:
        slivers += 1
    step = whole * depth * item
    for k in range(tables.count[1]):
        line = np.int64(data.ctypes.data) + (source + tables.inner[k] + tables.free[begin]) * item
        to = np.int64(out.ctypes.data) + (target + (k0 + k) * whole) * item
        for _ in range(slivers):
            copy_vector(sample, to, line)
            copy_vector(sample, to + lanes * item, line + lanes * item)
            line += whole * item
            to += step
    return slivers * whole


@inlined
def _pack_columns_real(
    data: Any, source: int, tables: Any, begin: int, columns: int, width: int, out: Any, to: int, sign: float
) -> None:
    scale = data.dtype.type(sign)
    lanes, count = lanes_of(data), tables.count[1]
    done = 0
    if columns == width and tables.step[1] == 1 and tables.step[0] > 1:
        done = count & -lanes
        step, first = tables.step[0], source + tables.free[begin]
        for v in range(0, width, lanes):
            _transpose(data, first + v * step, step, done, out, to + v, width, scale)
    for k in range(done, count):
        line = source + tables.inner[k]
        for c in range(columns):
            out[to + k * width + c] = data[line + tables.free[begin + c]] * scale
        for c in range(columns, width):
            out[to + k * width + c] = 0


@compiled
def _pack_columns_complex(
    data: Any, source: int, tables: Any, begin: int, columns: int, width: int, out: Any, to: int, sign: float
) -> None:
    scale = data.dtype.type(sign)
    for k in range(tables.count[1]):
        line = source + tables.inner[k]
        row, below = to + 2 * k * width, to + (2 * k + 1) * width
        for c in range(columns):
            at = line + tables.free[begin + c]
            x, y = data[at], data[at + 1]
            out[row + 2 * c] = scale * x
            out[row + 2 * c + 1] = scale * y
            out[below + 2 * c] = -scale * y
            out[below + 2 * c + 1] = scale * x
        for c in range(2 * columns, width):
            out[row + c] = 0
            out[below + c] = 0
