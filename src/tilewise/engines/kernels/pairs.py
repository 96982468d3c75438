"""Two indices of many matrices transformed at once: Y = F' S G for every row of a tensor of pairs.

A *row* is one pair of indices that stays, its matrix S the pair that is transformed. S is put together from source
blocks, which lie row by row or column by column, then multiplied twice by BLAS where it lies in a cache; what comes
out goes straight to the blocks of the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tilewise.engines.kernels.atomics import take
from tilewise.engines.kernels.compile import compiled, inlined
from tilewise.engines.kernels.gemm import call_gemm
from tilewise.engines.kernels.prefetch import prefetch
from tilewise.engines.kernels.squares import sum_squares
from tilewise.plans.transform.schedules import BATCH

BOTH, FIRST, SECOND = 0, 1, 2
"""Which of the two products is done: both, one whose result is kept, one that takes up what was kept."""

PLAIN, PACKED, TURNED, EMPTY = 0, 1, 2, 3
"""How a source block stands in S: as it is, as a packed triangle (i >= j), transposed, or not at all: it is zero."""

AHEAD = 24
"""How many elements that lie far apart are asked for before they are needed."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Sources(NamedTuple):
    """Where the elements of the matrices come from."""

    data: Any
    """Elements of all source blocks."""
    table: Any
    """Per block: kind, first row and column in S, rows and columns, first element, stride of rows, of elements."""
    sign: float
    """S[j, i] = sign S[i, j]; 0 if S has no symmetry."""
    mirror: bool
    """Whether plain blocks are also put where the symmetry says."""


class Outcomes(NamedTuple):
    """Where the results go."""

    data: Any
    """Elements of all result blocks."""
    table: Any
    """Per block: first column of F and how many, first column of G and how many, first element, stride of rows, of
    elements."""
    beta: float
    """What is there counts that many times: 0 or 1."""
    swapped: bool
    """Whether G's columns come before F's in a block."""
    final: bool
    """Whether nothing is added later: norms and copies are made."""
    sign: float
    """Factor of a row's copy."""


class Factors(NamedTuple):
    """The two matrices."""

    first: Any
    """F, (rows of S, orbitals)."""
    second: Any
    """G, (columns of S, orbitals)."""


class Rows(NamedTuple):
    """Which rows are done."""

    number: Any
    """Row of each."""
    twin: Any
    """The row that is a copy of it; -1 if there is none."""


@inlined
def _copy(square: Any, target: int, step: int, data: Any, source: int, count: int, factor: float) -> None:
    """Copy neighbouring elements to places `step` apart; unsigned positions need no look at their sign."""
    at, by, first = np.uint64(target), np.uint64(step), np.uint64(source)
    for b in range(np.uint64(count)):
        square[at + b * by] = factor * data[first + b]


@compiled
def _fill_block(sources: Any, block: int, rows: Any, begin: int, count: int, square: Any, high: int, wide: int) -> None:
    """Put one source block into the matrices of some rows."""
    table = sources.table
    kind, ni, nj, stride = table[block, 0], table[block, 3], table[block, 4], table[block, 7]
    size, at = high * wide, table[block, 1] * wide + table[block, 2]
    if kind == EMPTY:
        for r in range(count):
            for a in range(ni):
                line = np.uint64(r * size + at + a * wide)
                for b in range(np.uint64(nj)):
                    square[line + b] = 0.0
    elif stride == 1:
        down, right = (1, wide) if kind == TURNED else (wide, 1)
        factor = sources.sign if kind == TURNED else 1.0
        for r in range(count):
            source = table[block, 5] + rows.number[begin + r] * table[block, 6]
            for a in range(ni):
                length = a + 1 if kind == PACKED else nj
                _copy(square, r * size + at + a * down, right, sources.data, source, length, factor)
                source += length
    else:
        _fill_scattered(sources, block, rows, begin, count, square, size, wide)


@compiled
def _fill_scattered(
    sources: Any, block: int, rows: Any, begin: int, count: int, square: Any, size: int, wide: int
) -> None:
    """Put a source block whose elements lie far apart, those of neighbouring rows together, into the matrices."""
    table, data = sources.table, sources.data
    kind, ni, nj, row_stride, stride = (
        table[block, 0],
        table[block, 3],
        table[block, 4],
        table[block, 6],
        table[block, 7],
    )
    down, right = (1, wide) if kind == TURNED else (wide, 1)
    factor = sources.sign if kind == TURNED else 1.0
    at, source = table[block, 1] * wide + table[block, 2], table[block, 5]
    first = rows.number[begin] * row_stride
    end = source + stride * (ni * (ni + 1) // 2 if kind == PACKED else ni * nj)
    neighbours = row_stride == 1 and rows.number[begin + count - 1] - rows.number[begin] == count - 1
    for a in range(ni):
        for b in range(a + 1 if kind == PACKED else nj):
            target = at + a * down + b * right
            if source + AHEAD * stride < end:
                prefetch(data, source + AHEAD * stride + first)
            if neighbours:
                _copy(square, target, size, data, source + first, count, factor)
            else:
                for r in range(count):
                    square[r * size + target] = factor * data[source + rows.number[begin + r] * row_stride]
            source += stride


@compiled
def _mirror_block(sources: Any, block: int, count: int, square: Any, high: int, wide: int) -> None:
    """Complete what the symmetry of S says of one source block that was put in."""
    table, sign = sources.table, sources.sign
    kind, i0, j0, ni, nj = table[block, 0], table[block, 1], table[block, 2], table[block, 3], table[block, 4]
    plain = kind == PLAIN or (kind == EMPTY and i0 != j0)
    if kind != PACKED and not (sources.mirror and plain):
        return
    down, right = (i0, j0) if kind == PACKED else (j0, i0)
    for r in range(count):
        base = r * high * wide
        for a0 in range(0, ni, 8):
            for b in range(min(a0 + 8, ni) if kind == PACKED else nj):
                first = max(a0, b + 1) if kind == PACKED else a0
                target = np.uint64(base + (down + b) * wide + right + first)
                source, by = np.uint64(base + (i0 + first) * wide + j0 + b), np.uint64(wide)
                for a in range(np.uint64(max(min(a0 + 8, ni) - first, 0))):
                    square[target + a] = sign * square[source + a * by]


@compiled
def _multiply_first(address: int, square: int, high: int, wide: int, factors: Any, middle: int) -> None:
    """W (orbitals, columns) = F' S; `square` and `middle` are addresses."""
    sample = factors.first.dtype.type(0)
    orbitals = factors.first.shape[1]
    call_gemm(
        sample,
        address,
        78,
        84,
        wide,
        orbitals,
        high,
        sample + 1,
        sample,
        sample,
        square,
        wide,
        np.int64(factors.first.ctypes.data),
        orbitals,
        middle,
        wide,
    )


@compiled
def _multiply_second(
    address: int, middle: int, wide: int, factors: Any, outcomes: Any, block: int, place: int, beta: float
) -> None:
    """One block of a row of the result, (F's columns, G's columns) or swapped, at the address `place`."""
    table = outcomes.table
    c0, nc, d0, nd = table[block, 0], table[block, 1], table[block, 2], table[block, 3]
    sample = factors.second.dtype.type(0)
    item, orbitals = factors.second.itemsize, factors.second.shape[1]
    left, right = middle + c0 * wide * item, np.int64(factors.second.ctypes.data) + d0 * item
    one, weight = sample + 1, sample + beta
    if outcomes.swapped:
        call_gemm(sample, address, 84, 84, nc, nd, wide, one, sample, weight, left, wide, right, orbitals, place, nc)
    else:
        call_gemm(sample, address, 78, 78, nd, nc, wide, one, sample, weight, right, orbitals, left, wide, place, nd)


@compiled
def _finish_rows(outcomes: Any, rows: Any, begin: int, count: int, squares: Any, task: int) -> None:
    """Add up the squares of rows that are done, and copy each to its twin."""
    table, data = outcomes.table, outcomes.data
    for block in range(len(table)):
        size, start = table[block, 1] * table[block, 3], table[block, 4]
        row_stride, stride = table[block, 5], table[block, 6]
        total = 0.0
        for r in range(count if stride == 1 else 0):
            source, twin = start + rows.number[begin + r] * row_stride, rows.twin[begin + r]
            part = sum_squares(data, source, size)
            total += part
            if twin >= 0:
                total += part
                _copy(data, start + twin * row_stride, 1, data, source, size, outcomes.sign)
        for e in range(size if stride != 1 else 0):
            for r in range(count):
                value, twin = data[start + rows.number[begin + r] * row_stride + e * stride], rows.twin[begin + r]
                total += value * value
                if twin >= 0:
                    total += value * value
                    data[start + twin * row_stride + e * stride] = outcomes.sign * value
        squares[task, block] = total


@compiled
def _scatter(outcomes: Any, block: int, rows: Any, begin: int, count: int, buffer: Any) -> None:
    """Bring one block of some rows from a buffer, row after row, to where its elements lie far apart."""
    table, data = outcomes.table, outcomes.data
    size, start = table[block, 1] * table[block, 3], table[block, 4]
    row_stride, stride = table[block, 5], table[block, 6]
    for e in range(size):
        for r in range(count):
            target = start + rows.number[begin + r] * row_stride + e * stride
            value = buffer[r * size + e]
            data[target] = value + data[target] if outcomes.beta != 0 else value


@compiled
def transform_rows(
    worker: int,
    queues: Any,
    stop: Any,
    address: int,
    stage: int,
    sources: Any,
    factors: Any,
    outcomes: Any,
    rows: Any,
    kept: Any,
    square: Any,
    middle: Any,
    buffer: Any,
    squares: Any,
    tally: Any,
) -> None:
    """Transform the batches of rows that this worker takes.

    Parameters
    ----------
    stage : int
        `BOTH`, `FIRST` or `SECOND`.
    kept : array
        Intermediates of the rows, one after the other, if they are kept.
    square, middle, buffer : array
        Room of this worker: S of a batch of rows, W of one row (of all rows of a batch if elements of a result lie far
        apart), one block of a batch of rows.
    squares : array (batches, blocks)
        Filled in: sums of squared elements; of each batch by itself, so that they do not depend on who does it.
    tally : array (workers, 3)
        Filled in: batches, calls of BLAS, flops.
    """
    high, wide = factors.first.shape[0], factors.second.shape[0]
    orbitals, item = factors.first.shape[1], np.int64(factors.first.itemsize)
    s0, w0, k0 = np.int64(square.ctypes.data), np.int64(middle.ctypes.data), np.int64(kept.ctypes.data)
    c0, y0 = np.int64(outcomes.data.ctypes.data), np.int64(buffer.ctypes.data)
    total, length = len(rows.number), orbitals * wide
    scattered = len(outcomes.table) > 0 and outcomes.table[0, 6] != 1
    while stop[0] == 0:
        task = take(queues, worker)
        if task < 0:
            break
        tally[worker, 0] += 1
        begin = task * BATCH
        count = min(BATCH, total - begin)
        if stage != SECOND:
            for block in range(len(sources.table)):
                _fill_block(sources, block, rows, begin, count, square, high, wide)
            for block in range(len(sources.table)):
                _mirror_block(sources, block, count, square, high, wide)
        for r in range(count):
            w = w0 + r * length * item if scattered else w0
            if stage != BOTH:
                w = k0 + (begin + r) * length * item
            if stage != SECOND:
                _multiply_first(address, s0 + r * high * wide * item, high, wide, factors, w)
                tally[worker, 1] += 1
                tally[worker, 2] += 2 * high * wide * orbitals
            if stage == FIRST or scattered:
                continue
            row = rows.number[begin + r]
            for block in range(len(outcomes.table)):
                place = c0 + (outcomes.table[block, 4] + row * outcomes.table[block, 5]) * item
                _multiply_second(address, w, wide, factors, outcomes, block, place, outcomes.beta)
                tally[worker, 1] += 1
                tally[worker, 2] += 2 * wide * outcomes.table[block, 1] * outcomes.table[block, 3]
        if stage == FIRST:
            continue
        for block in range(len(outcomes.table) if scattered else 0):
            size = outcomes.table[block, 1] * outcomes.table[block, 3]
            for r in range(count):
                w = w0 + r * length * item if stage == BOTH else k0 + (begin + r) * length * item
                _multiply_second(address, w, wide, factors, outcomes, block, y0 + r * size * item, 0.0)
                tally[worker, 1] += 1
                tally[worker, 2] += 2 * wide * size
            _scatter(outcomes, block, rows, begin, count, buffer)
        if outcomes.final:
            _finish_rows(outcomes, rows, begin, count, squares, task)
