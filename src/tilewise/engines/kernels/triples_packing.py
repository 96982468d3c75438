"""Packing the operands of the triples correction: blocks copied to where the register tile and the energy read them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewise.engines.kernels.atomics import take
from tilewise.engines.kernels.compile import compiled, inlined
from tilewise.engines.kernels.microkernel import LANES_8
from tilewise.engines.kernels.triples import WIDTH, place_pairs


class Source(NamedTuple):
    """Blocks of a tensor to be packed."""

    data: Any
    """Elements."""
    blocks: Any
    """Of each block: the first orbital of each mode, the number of orbitals of each mode, the first element."""
    roles: Any
    """The modes of what a loop takes in this order."""


@inlined
def _look_up(source: Any, block: int, first: Any, extent: Any, stride: Any) -> int:
    """First orbitals, extents and strides of a block in the order of their roles; returns its first element."""
    for role in range(4):
        mode = source.roles[role]
        first[role], extent[role] = source.blocks[block, mode], source.blocks[block, 4 + mode]
        step = 1
        for later in range(mode + 1, 4):
            step *= source.blocks[block, 4 + later]
        stride[role] = step
    return source.blocks[block, 8]


@inlined
def _row(occ: Any, pair: int, i: int) -> tuple[int, int]:
    """First element of row i among those of a pair of virtuals of some irrep, and the distance to the next."""
    h = occ.irrep[i]
    number, narrow, wider = i - occ.begin[h], occ.slivers[h, 1], occ.slivers[h, 2]
    width, before = narrow + 1, 0
    if number >= width * wider:
        width, before = narrow, width * wider
    lane = (number - before) % width
    return occ.row_at[pair, h] + (number - lane) * occ.depth[h ^ pair] + lane, width


@inlined
def _column(occ: Any, virtual: int, i: int, j: int) -> tuple[int, int]:
    """First element of the column of a pair among those of a virtual of some irrep, and the distance to the next."""
    hi, hj = occ.irrep[i], occ.irrep[j]
    number = place_pairs(occ, 0, hi, i, hj) + j - occ.begin[hj]
    lane = number % WIDTH
    width = WIDTH if occ.pairs[hi ^ hj] - (number - lane) > LANES_8 else LANES_8
    return occ.col_at[virtual, hi ^ hj] + (number - lane) * occ.depth[hi ^ hj ^ virtual] + lane, width


@compiled
def pack_rows(
    worker: int,
    queues: Any,
    stop: Any,
    occ: Any,
    source: Any,
    irrep: Any,
    number: Any,
    depth: Any,
    factor: float,
    place: Any,
    out: Any,
    modes: Any,
) -> None:
    """Pack the blocks (a, b, i, D) of rows that this worker takes.

    Parameters
    ----------
    irrep, number, depth : arrays of int
        Irrep of each virtual, number of each occupied orbital when sorted, number of each D in its irrep.
    factor : float
        What elements are multiplied with.
    place : array (virtuals, virtuals)
        Where each ab goes in `out`; negative for those that are not wanted.
    modes : array (3, 4)
        Room for extents and strides.
    """
    first, extent, stride = modes[0], modes[1], modes[2]
    while stop[0] == 0:
        block = take(queues, worker)
        if block < 0:
            break
        begin = _look_up(source, block, first, extent, stride)
        for a in range(extent[0]):
            for b in range(extent[1]):
                start = place[first[0] + a, first[1] + b]
                if start < 0:
                    continue
                pair = irrep[first[0] + a] ^ irrep[first[1] + b]
                for i in range(extent[2]):
                    at, width = _row(occ, pair, number[first[2] + i])
                    element = np.uint64(begin + a * stride[0] + b * stride[1] + i * stride[2])
                    to, by = np.uint64(start + at), np.uint64(stride[3])
                    for d in range(np.uint64(extent[3])):
                        out[to + np.uint64(depth[first[3] + d] * width)] = factor * source.data[element + d * by]


@compiled
def pack_columns(
    worker: int,
    queues: Any,
    stop: Any,
    occ: Any,
    source: Any,
    irrep: Any,
    number: Any,
    depth: Any,
    place: Any,
    cols: Any,
    turned: Any,
    modes: Any,
) -> None:
    """Pack the blocks (c, k, j, D) of columns that this worker takes, in both orders of k and j; see `pack_rows`."""
    first, extent, stride = modes[0], modes[1], modes[2]
    while stop[0] == 0:
        block = take(queues, worker)
        if block < 0:
            break
        begin = _look_up(source, block, first, extent, stride)
        for c in range(extent[0]):
            start = place[first[0] + c]
            if start < 0:
                continue
            for k in range(extent[1]):
                for j in range(extent[2]):
                    left, right = number[first[1] + k], number[first[2] + j]
                    one, by_one = _column(occ, irrep[first[0] + c], left, right)
                    two, by_two = _column(occ, irrep[first[0] + c], right, left)
                    element = np.uint64(begin + c * stride[0] + k * stride[1] + j * stride[2])
                    by = np.uint64(stride[3])
                    for d in range(np.uint64(extent[3])):
                        value, deep = source.data[element + d * by], depth[first[3] + d]
                        cols[np.uint64(start + one + deep * by_one)] = value
                        turned[np.uint64(start + two + deep * by_two)] = value


@compiled
def pack_pairs(
    worker: int,
    queues: Any,
    stop: Any,
    occ: Any,
    source: Any,
    number: Any,
    place: Any,
    out: Any,
    modes: Any,
) -> None:
    """Pack the blocks (a, b, i, j) of pairs that this worker takes; see `pack_rows`."""
    first, extent, stride = modes[0], modes[1], modes[2]
    while stop[0] == 0:
        block = take(queues, worker)
        if block < 0:
            break
        begin = _look_up(source, block, first, extent, stride)
        for a in range(extent[0]):
            for b in range(extent[1]):
                start = place[first[0] + a, first[1] + b]
                if start < 0:
                    continue
                for i in range(extent[2]):
                    left = number[first[2] + i]
                    element = begin + a * stride[0] + b * stride[1] + i * stride[2]
                    for j in range(extent[3]):
                        right = number[first[3] + j]
                        at = place_pairs(occ, 0, occ.irrep[left], left, occ.irrep[right])
                        out[start + at + right - occ.begin[occ.irrep[right]]] = source.data[element + j * stride[3]]
