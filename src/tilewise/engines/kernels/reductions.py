"""Permutations, diagonals, traces and sums of one operand (the papers' SORT4 among them).

Each result block is gathered from its source blocks.  The two modes that matter for speed, the one whose
elements are neighbours in the result and the one whose elements are neighbours in the source, are walked
in squares of one vector register, transposed in registers; the others are outer loops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewise.engines.kernels.atomics import take
from tilewise.engines.kernels.blocks import locate
from tilewise.engines.kernels.compile import compiled
from tilewise.engines.kernels.packing import lanes_of
from tilewise.engines.kernels.squares import sum_squares
from tilewise.engines.kernels.vectors import add_transposed_vectors, transpose_vectors


class Gather(NamedTuple):
    """Which source blocks each result block sums, and along which modes."""

    task_ptr: Any
    """First result block of each task; one more at the end."""
    ptr: Any
    """First source of each result block; one more at the end."""
    source: Any
    """Source blocks, ordered by result block."""
    kept_ptr: Any
    """First entry of `kept` of each result mode; one more at the end."""
    kept: Any
    """The source's modes behind the result's modes."""
    summed_ptr: Any
    """First entry of `summed` of each summed index; one more at the end."""
    summed: Any
    """The source's modes behind the summed indices."""


class Scratch(NamedTuple):
    """One worker's loop bounds."""

    dims: Any
    strides: Any
    kept: Any
    """Size, source stride and result stride of each loop over the result."""
    summed: Any
    """Size and source stride of each loop over summed elements."""
    at: Any
    """Where each loop over the result stands."""


def make_scratch(gather: Gather, ndim: int) -> Scratch:
    """Loop bounds for blocks with that many modes."""
    kept, summed = len(gather.kept_ptr) + 1, len(gather.summed_ptr) - 1
    return Scratch(
        np.empty(ndim, np.int64),
        np.empty(ndim, np.int64),
        np.empty((kept, 3), np.int64),
        np.empty((summed, 2), np.int64),
        np.empty(kept, np.int64),
    )


@compiled
def gather_blocks(
    worker: int,
    queues: Any,
    stop: Any,
    gather: Any,
    source: Any,
    out: Any,
    start: Any,
    alpha: Any,
    fresh: bool,
    real: bool,
    squares: Any,
    scratch: Any,
    tally: Any,
) -> None:
    """Run the tasks this worker takes; result blocks start from what they hold, or from nothing if `fresh`."""
    dims, strides, kept, summed, at = scratch
    while stop[0] == 0:
        task = take(queues, worker)
        if task < 0:
            break
        tally[worker, 0] += 1
        for block in range(gather.task_ptr[task], gather.task_ptr[task + 1]):
            count = 1
            for entry in range(gather.ptr[block], gather.ptr[block + 1]):
                b = gather.source[entry]
                locate(source, b, dims, strides)
                loops, count = _walk(gather, dims, strides, kept)
                _sums(gather, dims, strides, summed)
                tally[worker, 1] += 1
                if len(summed) > 0:
                    elements = count
                    for d in range(len(summed)):
                        elements *= summed[d, 0]
                    tally[worker, 2] += elements
                _add(
                    source.data,
                    source.start[b],
                    kept,
                    loops,
                    summed,
                    out,
                    start[block],
                    alpha * out.dtype.type(source.sign[b]),
                    at,
                    fresh and entry == gather.ptr[block],
                    real,
                )
                if stop[0] != 0:
                    break
            squares[block] = sum_squares(out, start[block], count)


@compiled
def _walk(gather: Any, dims: Any, strides: Any, kept: Any) -> tuple[int, int]:
    """Sizes and strides of the result's modes, neighbours that stay neighbours fused; their number, the elements."""
    modes = len(gather.kept_ptr) - 1
    loops, total = 0, 1
    for d in range(modes - 1, -1, -1):
        size, step = dims[gather.kept[gather.kept_ptr[d]]], 0
        for entry in range(gather.kept_ptr[d], gather.kept_ptr[d + 1]):
            step += strides[gather.kept[entry]]
        if size > 1:
            if loops > 0 and step == kept[loops - 1, 0] * kept[loops - 1, 1]:
                kept[loops - 1, 0] *= size
            else:
                kept[loops, 0], kept[loops, 1], kept[loops, 2] = size, step, total
                loops += 1
        total *= size
    return loops, total


@compiled
def _sums(gather: Any, dims: Any, strides: Any, summed: Any) -> None:
    for d in range(len(gather.summed_ptr) - 1):
        summed[d, 0], summed[d, 1] = dims[gather.summed[gather.summed_ptr[d]]], 0
        for entry in range(gather.summed_ptr[d], gather.summed_ptr[d + 1]):
            summed[d, 1] += strides[gather.summed[entry]]


@compiled
def _add(
    data: Any,
    base: int,
    kept: Any,
    loops: int,
    summed: Any,
    out: Any,
    to: int,
    alpha: Any,
    at: Any,
    fresh: bool,
    real: bool,
) -> None:
    """Add all elements of one source block, one pass over the result block for each summed element."""
    # Loop 0 has neighbours in the result; `other` is the loop with neighbours in the source.
    for d in range(loops, 2):
        kept[d, 0], kept[d, 1], kept[d, 2] = 1, 0, 0
    other = 1
    for d in range(1, max(loops, 2)):
        if kept[d, 1] == 1:
            other = d
    inner_sum = 1
    for d in range(len(summed)):
        inner_sum *= summed[d, 0]
    for s in range(inner_sum):
        offset, rest = base, s
        for d in range(len(summed) - 1, -1, -1):
            offset += rest % summed[d, 0] * summed[d, 1]
            rest //= summed[d, 0]
        at[:] = 0
        while True:
            source, target = offset, to
            for d in range(1, loops):
                if d != other:
                    source += at[d] * kept[d, 1]
                    target += at[d] * kept[d, 2]
            _add_plane(
                data,
                source,
                kept[0, 0],
                kept[0, 1],
                kept[other, 0],
                kept[other, 1],
                kept[other, 2],
                out,
                target,
                alpha,
                fresh and s == 0,
                real,
            )
            d = 1
            while d < loops:
                if d != other:
                    at[d] += 1
                    if at[d] < kept[d, 0]:
                        break
                    at[d] = 0
                d += 1
            if d >= loops:
                break


@compiled
def _add_plane(
    data: Any,
    source: int,
    n: int,
    step: int,
    m: int,
    across: int,
    out_across: int,
    out: Any,
    target: int,
    alpha: Any,
    store: bool,
    real: bool,
) -> None:
    """``out[i * out_across + j] += alpha * data[i * across + j * step]`` for i < m, j < n; or ``=``."""
    if step != 1 and across == 1 and real:
        _add_transposed(data, source, n, step, m, out_across, out, target, alpha, store)
        return
    for i in range(m):
        line, to = np.uint64(source + i * across), np.uint64(target + i * out_across)
        if step == 1:
            _add_line(data, line, np.uint64(1), out, to, np.uint64(n), alpha, store)
        else:
            _add_line(data, line, np.uint64(step), out, to, np.uint64(n), alpha, store)


@compiled
def _add_line(data: Any, line: Any, step: Any, out: Any, to: Any, n: Any, alpha: Any, store: bool) -> None:
    """One line of neighbouring result elements.  Unsigned positions: they need no look at their sign."""
    if store and alpha == 1:
        for j in range(n):
            out[to + j] = data[line + j * step]
    elif store:
        for j in range(n):
            out[to + j] = alpha * data[line + j * step]
    else:
        for j in range(n):
            out[to + j] += alpha * data[line + j * step]


@compiled
def _add_transposed(
    data: Any, source: int, n: int, step: int, m: int, out_across: int, out: Any, target: int, alpha: Any, store: bool
) -> None:
    """A plane whose source runs along i and whose result runs along j: squares are transposed in registers."""
    item = data.itemsize
    lanes = lanes_of(data)
    whole_n, whole_m = n & -lanes, m & -lanes
    origin, goal = np.int64(data.ctypes.data) + source * item, np.int64(out.ctypes.data) + target * item
    for j in range(0, whole_n, lanes):
        for i in range(0, whole_m, lanes):
            here, there = origin + (i + j * step) * item, goal + (i * out_across + j) * item
            if store:
                transpose_vectors(alpha, there, out_across * item, here, step * item)
            else:
                add_transposed_vectors(alpha, there, out_across * item, here, step * item)
    for i in range(m):
        for j in range(whole_n if i < whole_m else 0, n):
            value = alpha * data[source + i + j * step]
            at = target + i * out_across + j
            out[at] = value if store else out[at] + value
