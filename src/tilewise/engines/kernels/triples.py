"""The triples correction of closed-shell coupled cluster: products in caches, then the energy, one (a, b, c) at a time.

With D for all orbitals of a sum, virtual ones d and occupied ones l,

    rows[ab][i, D] = (ia|bd) and -t[i, a, l, b]      columns[c][kj, D] = t[k, c, j, d] and (lj|kc)
    W[i, j, k] = sum over the six orders of (ia, jb, kc):  sum_D rows[ab][i, D] columns[c][kj, D]

The six products of one (a, b, c) make three *sums* of two products each: one by i with the pairs (j, k), one by j with
(i, k), one by k with (i, j).  Within a sum nothing is permuted, since columns are held in both orders of their pairs.
Both operands are packed once, as the register tile reads them.

Orbitals are sorted by irrep.  A sum by orbitals i of the irrep h has pairs of the irrep h ^ a ^ b ^ c only, and D runs
over the irrep h ^ a ^ b only: nothing that vanishes by symmetry is held or multiplied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewise.engines.kernels.atomics import take
from tilewise.engines.kernels.compile import compiled, compiled_fast, inlined
from tilewise.engines.kernels.microkernel import LANES_8, MAX_VECTORS, SEGMENT_BYTES, multiply_tile
from tilewise.engines.kernels.vectors import transpose_vectors

WIDTH = LANES_8 * MAX_VECTORS
"""Columns of a whole sliver."""

ITEM = 8
"""Bytes of an element."""

ORDERS = 6
"""Orders of three orbitals."""


class Occupied(NamedTuple):
    """The occupied orbitals, sorted by irrep, and where what belongs to an irrep lies."""

    begin: Any
    """First orbital of each irrep; one more at the end."""
    irrep: Any
    """Irrep of each orbital."""
    energy: Any
    """Energy of each orbital, in hartree, and that of a vector's worth of orbitals that are not there."""
    depth: Any
    """Orbitals of each irrep that a product sums over, virtual and occupied."""
    pairs: Any
    """Pairs of occupied orbitals of each irrep."""
    pair_at: Any
    """(irrep of the pair, irrep of its first orbital): number of the first such pair."""
    row_at: Any
    """(irrep of ab, irrep of i): first element of the rows i among those of ab."""
    col_at: Any
    """(irrep of c, irrep of the pair): first element of the columns of these pairs among those of c."""
    slivers: Any
    """Of each irrep: slivers of rows, their least width, how many of them are one wider."""
    segments: Any
    """The range that a product sums over, of each irrep, as the register tile takes it."""
    lines: Any
    """Where the rows of a register tile begin in a sum: multiples of `pitch`."""
    pitch: int
    """Elements from row to row of a sum."""
    wide: int
    """Orbitals of the largest irrep, rounded up to whole vectors."""


class Virtual(NamedTuple):
    """The virtual orbitals."""

    irrep: Any
    """Irrep of each."""
    energy: Any
    """Energy of each, in hartree."""
    singles: Any
    """Amplitudes of each, one after the other, by occupied orbital."""
    fock: Any
    """Elements of the Fock matrix likewise."""
    pitch: int
    """Elements from virtual to virtual of these."""
    has_fock: bool
    """Whether any element of the Fock matrix is not zero."""


class Operands(NamedTuple):
    """What is held of the operands; a place is that of a first element."""

    rows: Any
    """Packed rows."""
    row_at: Any
    """(a, b): place of the rows of ab."""
    cols: Any
    """Packed columns, pairs in the order (k, j)."""
    turned: Any
    """Packed columns, pairs in the order (j, k)."""
    col_at: Any
    """(c): place of the columns of c, in both."""
    repulsion: Any
    """(ia|jb) by pairs (i, j)."""
    doubles: Any
    """t[i, a, j, b] by pairs (i, j); nothing if the Fock matrix needs none."""
    pair_at: Any
    """(a, b): place of the pairs of ab, in both."""


class Room(NamedTuple):
    """Buffers of one worker."""

    sums: Any
    """The three sums, and a few rows more that are read and not used."""
    orders: Any
    """W in the orders in which the energy needs it."""
    steps: Any
    """Products to do: irrep of the rows' pair; addresses of rows, columns and sum; whether it is added to the sum."""
    at: Any
    """Where each sum begins in `sums`, and one that is to be symmetrised; -1 if there is none."""


# Products


@inlined
def _multiply(occ: Any, x: int, total: int, row: int, col: int, out: int, add: int) -> int:
    """One product: rows of a pair of the irrep `x` by columns of a virtual, of a triple of the irrep `total`.

    `row`, `col` and `out` are addresses.  Returns the flops.
    """
    lines, pitch_bytes = np.int64(occ.lines.ctypes.data), occ.pitch * ITEM
    flops = 0
    for h in range(len(occ.pairs)):
        slivers, narrow, wider = occ.slivers[h, 0], occ.slivers[h, 1], occ.slivers[h, 2]
        if slivers == 0:
            continue
        columns, depth = occ.pairs[h ^ total], occ.depth[h ^ x]
        flops += 2 * (occ.begin[h + 1] - occ.begin[h]) * columns * depth
        segment = np.int64(occ.segments.ctypes.data) + (h ^ x) * SEGMENT_BYTES
        first_row = row + occ.row_at[x, h] * ITEM
        col_at = col + occ.col_at[total ^ x, h ^ total] * ITEM
        place = out + occ.begin[h] * pitch_bytes
        first = 0
        while first < columns:
            vectors = 2 if columns - first > LANES_8 else 1
            col_bytes = vectors * LANES_8 * depth * ITEM
            row_at, to = first_row, place + first * ITEM
            for s in range(slivers):
                rows = narrow + 1 if s < wider else narrow
                row_bytes = rows * depth * ITEM
                last = s + 1 == slivers
                multiply_tile(
                    0.0,
                    (rows - 1) * MAX_VECTORS + vectors - 1,
                    row_at,
                    col_at,
                    segment,
                    1,
                    to,
                    lines,
                    add,
                    col_bytes if last else row_bytes,
                    1 if last else 0,
                )
                row_at += row_bytes
                to += rows * pitch_bytes
            first += WIDTH
            col_at += col_bytes
    return flops


@inlined
def _step(steps: Any, count: int, x: int, row: int, col: int, out: int, add: int) -> int:
    steps[count, 0], steps[count, 1], steps[count, 2], steps[count, 3], steps[count, 4] = x, row, col, out, add
    return count + 1


@compiled
def _list_products(occ: Any, vir: Any, held: Any, room: Any, a: int, b: int, c: int) -> int:
    """Note the products of one (a, b, c) with a >= b >= c, and where its sums lie; how many products there are.

    Where two virtuals are the same, half of the products are others with two occupied orbitals exchanged: one sum is
    then taken for two, and the third one is symmetrised.
    """
    size, steps = len(occ.irrep) * occ.pitch, room.steps
    ab, ac, bc = vir.irrep[a] ^ vir.irrep[b], vir.irrep[a] ^ vir.irrep[c], vir.irrep[b] ^ vir.irrep[c]
    rows, one = np.int64(held.rows.ctypes.data), np.int64(room.sums.ctypes.data)
    cols, turned = np.int64(held.cols.ctypes.data), np.int64(held.turned.ctypes.data)
    two, three = one + size * ITEM, one + 2 * size * ITEM
    of_a, of_b, of_c = held.col_at[a] * ITEM, held.col_at[b] * ITEM, held.col_at[c] * ITEM
    room.at[0], room.at[1], room.at[2], room.at[3] = 0, size, 2 * size, -1
    n = _step(steps, 0, ab, rows + held.row_at[a, b] * ITEM, turned + of_c, one, 0)
    if b == c:
        room.at[2], room.at[3] = size, 0
    else:
        n = _step(steps, n, ac, rows + held.row_at[a, c] * ITEM, cols + of_b, one, 1)
        n = _step(steps, n, bc, rows + held.row_at[c, b] * ITEM, cols + of_a, three, 0)
    if a == b:
        room.at[1], room.at[3] = 0, 2 * size
        return n
    if b != c:
        n = _step(steps, n, ac, rows + held.row_at[c, a] * ITEM, turned + of_b, three, 1)
    n = _step(steps, n, ab, rows + held.row_at[b, a] * ITEM, turned + of_c, two, 0)
    return _step(steps, n, bc, rows + held.row_at[b, c] * ITEM, cols + of_a, two, 1)


@compiled
def _symmetrise(occ: Any, total: int, sums: Any, start: int) -> None:
    """Add to each pair (p, q) of a sum the pair (q, p)."""
    for x in range(len(occ.irrep)):
        pair = occ.irrep[x] ^ total
        line = start + x * occ.pitch
        for h in range(len(occ.pairs)):
            other = h ^ pair
            if other > h:
                continue
            high, wide = occ.begin[h + 1] - occ.begin[h], occ.begin[other + 1] - occ.begin[other]
            one, two = line + occ.pair_at[pair, h], line + occ.pair_at[pair, other]
            for i in range(high):
                for j in range(i + 1 if other == h else wide):
                    both = sums[one + i * wide + j] + sums[two + j * high + i]
                    sums[one + i * wide + j] = both
                    sums[two + j * high + i] = both


# Energy


@inlined
def _transpose(source: int, pitch: int, target: int, wide: int) -> None:
    """Transpose a square of one vector's width; source and target are addresses, pitch and wide elements per row."""
    transpose_vectors(1.0, target, wide * ITEM, source, pitch * ITEM)


@inlined
def _order_all(occ: Any, room: Any) -> None:
    """W[i, j, k], W[i, k, j] and W[k, i, j] as rows (i, j) of neighbouring k, without irreps.

    Squares at the edges reach beyond the orbitals: what they leave in a row is overwritten by the next one, or not
    used.  Of the last two, rows go as far as the lesser of i and j.
    """
    n, wide, pitch = len(occ.irrep), occ.wide, occ.pitch
    sums, orders, at = room.sums, room.orders, room.at
    size = len(orders) // 3
    one, two = np.uint64(at[0]), np.uint64(at[1])
    source, whole = np.int64(sums.ctypes.data) + at[2] * ITEM, np.int64(orders.ctypes.data)
    for first in range(0, n * n, LANES_8):
        for k in range(0, n, LANES_8):
            _transpose(source + (k * pitch + first) * ITEM, pitch, whole + (first * wide + k) * ITEM, wide)
    for i in range(n):
        for j in range(n):
            line = np.uint64((i * n + j) * wide)
            left, right = one + np.uint64(i * pitch + j * n), two + np.uint64(j * pitch + i * n)
            for k in range(np.uint64(wide)):
                orders[line + k] += sums[left + k] + sums[right + k]
    for i in range(n):
        for j in range(0, n, LANES_8):
            for k in range(0, min(i, j + LANES_8 - 1) + 1, LANES_8):
                target = whole + ((i * n + j) * wide + k) * ITEM
                _transpose(whole + ((i * n + k) * wide + j) * ITEM, wide, target + size * ITEM, wide)
                _transpose(whole + ((k * n + i) * wide + j) * ITEM, n * wide, target + 2 * size * ITEM, wide)


@inlined
def place_pairs(occ: Any, x: int, hy: int, y: int, hz: int) -> int:
    """Where the pairs (y, z) of all orbitals z of the irrep hz begin in row x of a sum."""
    return x * occ.pitch + occ.pair_at[hy ^ hz, hy] + (y - occ.begin[hy]) * (occ.begin[hz + 1] - occ.begin[hz])


@inlined
def _order_some(occ: Any, room: Any, i: int, j: int, hk: int, count: int) -> None:
    """W in all orders of i, j and the first orbitals k of an irrep, each as a row of neighbouring k."""
    hi, hj, k0, pitch, wide = occ.irrep[i], occ.irrep[j], occ.begin[hk], occ.pitch, occ.wide
    by_i, by_j = occ.begin[hi + 1] - occ.begin[hi], occ.begin[hj + 1] - occ.begin[hj]
    s, w = room.sums, room.orders
    one, two, three = room.at[0], room.at[1], room.at[2]
    ij, ji = place_pairs(occ, i, hj, j, hk), place_pairs(occ, j, hi, i, hk)
    ikj, jki = place_pairs(occ, i, hk, k0, hj) + j - occ.begin[hj], place_pairs(occ, j, hk, k0, hi) + i - occ.begin[hi]
    kij, kji = place_pairs(occ, k0, hi, i, hj) + j - occ.begin[hj], place_pairs(occ, k0, hj, j, hi) + i - occ.begin[hi]
    for k in range(count):
        kp, ki, kj = k * pitch, k * by_i, k * by_j
        w[k] = s[one + ij + k] + s[two + ji + k] + s[three + kij + kp]
        w[wide + k] = s[one + ji + k] + s[two + ij + k] + s[three + kji + kp]
        w[2 * wide + k] = s[one + ikj + kj] + s[two + kij + kp] + s[three + ji + k]
        w[3 * wide + k] = s[one + jki + ki] + s[two + kji + kp] + s[three + ij + k]
        w[4 * wide + k] = s[one + kij + kp] + s[two + ikj + kj] + s[three + jki + ki]
        w[5 * wide + k] = s[one + kji + kp] + s[two + jki + ki] + s[three + ikj + kj]


@inlined
def _scalars(pairs: Any, single: Any, at: Any, i: int, j: int, ij: int, ji: int) -> Any:
    """What `_outer` needs of i and j alone: pairs (i, j) and (j, i), singles of i and of j."""
    ab, _, ac, _, bc, _, a, b, c = at
    return (
        (pairs[ab + ij], pairs[ac + ij], pairs[bc + ij]),
        (pairs[ab + ji], pairs[ac + ji], pairs[bc + ji]),
        (single[a + i], single[b + i], single[c + i]),
        (single[a + j], single[b + j], single[c + j]),
    )


@inlined
def _outer(pairs: Any, single: Any, at: Any, scalars: Any, k: int, ik: int, jk: int) -> Any:
    """Pair (i, a, j, b) by single (k, c) and its two partners, in the orders ijk, jik, ikj, jki, kij, kji.

    A pair that is not of the irrep of its virtuals is read from somewhere else: its single is zero.
    """
    ab, ba, ac, ca, bc, cb, a, b, c = at
    (ab_ij, ac_ij, bc_ij), (ab_ji, ac_ji, bc_ji), (a_i, b_i, c_i), (a_j, b_j, c_j) = scalars
    return (
        ab_ij * single[c + k] + pairs[ac + ik] * b_j + pairs[bc + jk] * a_i,
        ab_ji * single[c + k] + pairs[ac + jk] * b_i + pairs[bc + ik] * a_j,
        pairs[ab + ik] * c_j + ac_ij * single[b + k] + pairs[cb + jk] * a_i,
        pairs[ab + jk] * c_i + ac_ji * single[b + k] + pairs[cb + ik] * a_j,
        pairs[ba + ik] * c_j + pairs[ca + jk] * b_i + bc_ij * single[a + k],
        pairs[ba + jk] * c_i + pairs[ca + ik] * b_j + bc_ji * single[a + k],
    )


@inlined
def _begins(vir: Any, held: Any, a: int, b: int, c: int) -> Any:
    """Where the pairs ab, ba, ac, ca, bc, cb and the singles a, b, c begin."""
    at, pitch = held.pair_at, vir.pitch
    return (
        np.uint64(at[a, b]),
        np.uint64(at[b, a]),
        np.uint64(at[a, c]),
        np.uint64(at[c, a]),
        np.uint64(at[b, c]),
        np.uint64(at[c, b]),
        np.uint64(a * pitch),
        np.uint64(b * pitch),
        np.uint64(c * pitch),
    )


@compiled_fast
def _energy(occ: Any, vir: Any, held: Any, room: Any, a: int, b: int, c: int) -> float:
    """The energy of one (a, b, c), but for factors.

    Over the six orders of i >= j >= k, three of them even and three odd, sum W (R (W + V)) / (e_i + ... - e_c), with
    R x = 4 x + x[jki] + x[kij] - 2 x[kji] - 2 x[ikj] - 2 x[jik] = 3 x + (sum of its parity) - 2 (sum of the other).
    """
    total = vir.irrep[a] ^ vir.irrep[b] ^ vir.irrep[c]
    level = vir.energy[a] + vir.energy[b] + vir.energy[c]
    n, wide, whole, w = len(occ.irrep), occ.wide, len(occ.pairs) == 1, room.orders
    by = np.uint64(len(w) // 3 if whole else 2 * wide)
    pairs, single, levels, has_fock = held.repulsion, vir.singles, occ.energy, vir.has_fock
    begins = _begins(vir, held, a, b, c)
    energy = 0.0
    if whole:
        _order_all(occ, room)
    for i in range(n):
        hi = occ.irrep[i]
        for j in range(i + 1):
            hj = occ.irrep[j]
            hk = hi ^ hj ^ total
            if hk > hj:
                continue
            k0 = occ.begin[hk]
            last = j - k0 if hk == hj else -1
            count = last + 1 if hk == hj else occ.begin[hk + 1] - k0
            p0, p1 = np.uint64(0), np.uint64(wide)
            if whole:
                p0, p1 = np.uint64((i * n + j) * wide), np.uint64((j * n + i) * wide)
            else:
                _order_some(occ, room, i, j, hk, count)
            ij = np.uint64(place_pairs(occ, 0, hi, i, hj) + j - occ.begin[hj])
            ji = np.uint64(place_pairs(occ, 0, hj, j, hi) + i - occ.begin[hi])
            ik, jk = np.uint64(place_pairs(occ, 0, hi, i, hk)), np.uint64(place_pairs(occ, 0, hj, j, hk))
            gap, share = levels[i] + levels[j] - level, 0.5 if i == j else 1.0
            uk = np.uint64(k0)
            scalars = _scalars(pairs, single, begins, np.uint64(i), np.uint64(j), ij, ji)
            others = scalars
            if has_fock:
                others = _scalars(held.doubles, vir.fock, begins, np.uint64(i), np.uint64(j), ij, ji)
            for begin in range(0, count, LANES_8):
                for lane in range(LANES_8):
                    at = np.uint64(begin + lane)
                    e0, o0 = w[p0 + at], w[p1 + at]
                    o1, e1 = w[p0 + by + at], w[p1 + by + at]
                    e2, o2 = w[p0 + by + by + at], w[p1 + by + by + at]
                    x0, y0, y1, x1, x2, y2 = _outer(pairs, single, begins, scalars, uk + at, ik + at, jk + at)
                    if has_fock:
                        f0, g0, g1, f1, f2, g2 = _outer(
                            held.doubles, vir.fock, begins, others, uk + at, ik + at, jk + at
                        )
                        x0, x1, x2, y0, y1, y2 = x0 + f0, x1 + f1, x2 + f2, y0 + g0, y1 + g1, y2 + g2
                    even, odd = e0 + e1 + e2, o0 + o1 + o2
                    same, other = even + x0 + x1 + x2, odd + y0 + y1 + y2
                    product = e0 * (e0 + x0) + e1 * (e1 + x1) + e2 * (e2 + x2)
                    product += o0 * (o0 + y0) + o1 * (o1 + y1) + o2 * (o2 + y2)
                    form = 3 * product + even * (same - 2 * other) + odd * (other - 2 * same)
                    weight = 0.0 if begin + lane >= count else 0.5 * share if begin + lane == last else share
                    energy += weight * form / (gap + levels[uk + at])
    return energy


@compiled
def contract_triples(
    worker: int,
    queues: Any,
    stop: Any,
    occ: Any,
    vir: Any,
    held: Any,
    room: Any,
    chunks: Any,
    tasks: Any,
    energies: Any,
    tally: Any,
) -> None:
    """Compute the energies of the tasks that this worker takes.

    Parameters
    ----------
    chunks : array of int
        First virtual orbital of each chunk; one more at the end.
    tasks : array (tasks, 3)
        The chunks of a, b and c, in descending order.
    energies : array of float
        Filled in: the energy of each task by itself, so that it does not depend on who does it.
    tally : array (workers, 3)
        Filled in: tasks, products, flops.
    """
    while stop[0] == 0:
        task = take(queues, worker)
        if task < 0:
            break
        tally[worker, 0] += 1
        at_a, at_b, at_c = tasks[task, 0], tasks[task, 1], tasks[task, 2]
        energy = 0.0
        for a in range(chunks[at_a], chunks[at_a + 1]):
            for b in range(chunks[at_b], min(chunks[at_b + 1], a + 1)):
                for c in range(chunks[at_c], min(chunks[at_c + 1], b + 1)):
                    if a == c:  # the energy of three equal virtuals is zero
                        continue
                    if stop[0] != 0:
                        return
                    count = _list_products(occ, vir, held, room, a, b, c)
                    total, steps = vir.irrep[a] ^ vir.irrep[b] ^ vir.irrep[c], room.steps
                    for s in range(count):
                        tally[worker, 2] += _multiply(
                            occ, steps[s, 0], total, steps[s, 1], steps[s, 2], steps[s, 3], steps[s, 4]
                        )
                    tally[worker, 1] += count
                    if room.at[3] >= 0:
                        _symmetrise(occ, total, room.sums, room.at[3])
                    part = _energy(occ, vir, held, room, a, b, c)
                    energy += 0.5 * part if a == b or b == c else part
        energies[task] = energy
