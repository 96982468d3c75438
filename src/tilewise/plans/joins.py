"""Compiled integer loops of the inspector: which blocks meet, in which order, and what may be dropped.

Nothing here sees an element of a tensor.  The join walks the products row by row (Gustavson), so its time
is linear in their number.  Compiled because it visits every product: below 64 elements an interpreted or
vectorised pass costs more than the product itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewise.plans.compile import compiled

# What the join knows of each column panel while it walks one row: a cache line each.
COUNT, FIRST, NEXT, ROW_END, COL_END, SIZE, DEPTH = range(7)
MARK = COUNT  # once terms were counted: the mark of the last one
FIELDS = 8


class Entries(NamedTuple):
    """The blocks of one operand, ordered for the join."""

    ptr: Any
    """Row operand: first entry of each panel.  Column operand: first entry of each k tile."""
    other: Any
    """Row operand: k tile of each entry.  Column operand: panel of each entry."""
    at: Any
    """Position of each entry along its panel's k range."""
    number: Any
    """Block number of each entry."""
    norms: Any
    """Norm of each entry."""


class Joined(NamedTuple):
    """Result blocks, ordered by row panel and column panel, and their terms."""

    row: Any
    """Row panel of each result block."""
    col: Any
    """Column panel of each result block."""
    ptr: Any
    """First term of each result block; one more at the end."""
    depth: Any
    """Elements of k summed into each result block."""
    norms: Any
    """Bound on the norm of each result block."""
    terms: Any
    """Merged: start in row panel, start in column panel, length, mark.  Otherwise: row block, column block, length,
    mark.  Neighbouring terms of a result block with the same mark are summed in registers; half the mark, rounded
    down, is the k segment."""
    products: int
    """Block products kept."""


@compiled
def product_norm(a: float, b: float) -> float:
    """Bound on the norm of a product; zero where one factor is zero, also if the other is unknown."""
    if a == 0.0 or b == 0.0:
        return 0.0
    return a * b


@compiled
def count_products(rows: Any, cols: Any, length: Any, piece: int) -> tuple[int, int]:
    """Block products, and an upper bound on the terms they become."""
    products, terms = 0, 0
    for entry in range(len(rows.other)):
        k = rows.other[entry]
        meets = cols.ptr[k + 1] - cols.ptr[k]
        products += meets
        terms += meets * ((length[k] + piece - 1) // piece)
    return products, terms


def make_room(bound: int) -> Joined:
    """Uninitialised arrays for so many terms.

    Result blocks are as many as terms at the most; pages never touched cost nothing.  Arrays that NumPy makes lie in
    huge pages where the system has them, those made in compiled code do not.
    """
    row, col = np.empty(bound, np.int32), np.empty(bound, np.int32)
    ptr, depth, norms = np.empty(bound + 1, np.int64), np.empty(bound, np.int64), np.empty(bound, np.float64)
    return Joined(row, col, ptr, depth, norms, np.empty((bound, 4), np.int32), 0)


@compiled
def cut_segments(rows: Any, cols: Any, length: Any, blocks: int, depth: int) -> Any:
    """Segment of each k tile: a segment ends once the mean result block has summed `depth` elements in it.

    Parameters
    ----------
    rows, cols : Entries
        The operands' blocks.
    length : int64 array
        Elements of each k tile.
    blocks : int
        Result blocks there are at the most.
    depth : int
        Mean depth of a segment.
    """
    meets = np.zeros(len(length), np.int64)
    for entry in range(len(rows.other)):
        k = rows.other[entry]
        meets[k] += cols.ptr[k + 1] - cols.ptr[k]
    segment = np.zeros(len(length), np.int64)
    number, filled = 0, 0.0
    for k in range(len(length)):
        if filled >= depth:
            number, filled = number + 1, 0.0
        segment[k] = number
        filled += length[k] * meets[k] / max(blocks, 1)
    return segment


@compiled
def join(
    rows: Any,
    cols: Any,
    length: Any,
    segment: Any,
    panels: int,
    drop: float,
    piece: int,
    parts: int,
    merge: bool,
    room: Any,
    stop: Any,
) -> Any:
    """Find the result blocks and their terms.

    Which terms share a mark depends on the products of their result block alone, k tile by k tile from the start of
    a segment, and not on what else the panels hold: a plan for whole segments of some panels has the same marks.

    Parameters
    ----------
    rows, cols : Entries
        The operands' blocks.
    length : int64 array
        Elements of each k tile.
    segment : int64 array
        Segment of each k tile; ascends.
    panels : int
        Number of column panels.
    drop : float
        Products whose norm bound is not above it are left out; negative keeps all.
    piece : int
        Most elements of k that share a mark.
    parts : int
        Reals per element; merged terms count in reals.
    merge : bool
        Whether neighbouring k blocks become one term.
    room : Joined
        Where the result goes, large enough for all terms; see `make_room`.
    stop : int64 array
        The loop ends at its next row, with less than the whole, once this is not zero.
    """
    row_of, col_of, ptr, depth, norms, terms, _ = room
    state = np.zeros((panels, FIELDS), np.int64)
    norm = np.empty(panels, np.float64)
    touched = np.empty(panels, np.int64)
    blocks, written, products = 0, 0, 0
    ptr[0] = 0
    for row in range(len(rows.ptr) - 1):
        if stop[0] != 0:
            break
        found = _count_row(rows, cols, length, row, drop, piece, state, touched)
        if found == 0:
            continue
        _ascending(touched, found, state, panels)
        place = written
        for t in range(found):
            col = touched[t]
            count = state[col, COUNT]
            state[col, FIRST] = state[col, NEXT] = place
            state[col, MARK], state[col, ROW_END], state[col, DEPTH], norm[col] = -1, -1, 0, 0.0
            place += count
        for i in range(rows.ptr[row], rows.ptr[row + 1]):
            k = rows.other[i]
            for j in range(cols.ptr[k], cols.ptr[k + 1]):
                size = product_norm(rows.norms[i], cols.norms[j])
                if size <= drop:
                    continue
                col = cols.other[j]
                products += 1
                state[col, DEPTH] += length[k]
                norm[col] += size
                if merge:
                    _write_merged(terms, state, col, rows.at[i], cols.at[j], length[k], segment[k], piece, parts)
                else:
                    at = state[col, NEXT]
                    terms[at, 0], terms[at, 1] = rows.number[i], cols.number[j]
                    terms[at, 2], terms[at, 3] = length[k], 2 * segment[k]
                    state[col, NEXT] = at + 1
        # Merging left gaps: close them.
        for t in range(found):
            col = touched[t]
            row_of[blocks], col_of[blocks] = row, col
            depth[blocks], norms[blocks] = state[col, DEPTH], norm[col]
            for at in range(state[col, FIRST], state[col, NEXT]):
                terms[written, 0], terms[written, 1] = terms[at, 0], terms[at, 1]
                terms[written, 2], terms[written, 3] = terms[at, 2], terms[at, 3]
                written += 1
            blocks += 1
            ptr[blocks] = written
            state[col, COUNT] = 0
    return Joined(
        row_of[:blocks],
        col_of[:blocks],
        ptr[: blocks + 1],
        depth[:blocks],
        norms[:blocks],
        terms[:written],
        products,
    )


@compiled
def _count_row(rows: Any, cols: Any, length: Any, row: int, drop: float, piece: int, state: Any, touched: Any) -> int:
    """Note the columns that a row meets, with an upper bound on the terms of each; returns their number."""
    found = 0
    for i in range(rows.ptr[row], rows.ptr[row + 1]):
        k = rows.other[i]
        pieces = 1 if length[k] <= piece else (length[k] + piece - 1) // piece
        for j in range(cols.ptr[k], cols.ptr[k + 1]):
            if drop >= 0 and product_norm(rows.norms[i], cols.norms[j]) <= drop:
                continue
            col = cols.other[j]
            if state[col, COUNT] == 0:
                touched[found] = col
                found += 1
            state[col, COUNT] += pieces
    return found


@compiled
def _write_merged(
    terms: Any, state: Any, col: int, row_at: int, col_at: int, length: int, segment: int, piece: int, parts: int
) -> None:
    """Lengthen the last term of a result block if this product continues it, else begin another."""
    at, mark = state[col, NEXT], state[col, MARK]
    known = mark >> 1 == segment
    joins = known and state[col, SIZE] + length <= piece
    follows = state[col, ROW_END] == row_at and state[col, COL_END] == col_at
    state[col, ROW_END], state[col, COL_END] = row_at + length, col_at + length
    if joins:
        state[col, SIZE] += length
        if follows:
            terms[at - 1, 2] += length * parts
            return
    elif known:
        mark ^= 1
    else:
        mark = 2 * segment
    done = 0
    while done < length:
        part = min(piece, length - done)
        if done > 0:
            mark ^= 1
        terms[at, 0], terms[at, 1] = (row_at + done) * parts, (col_at + done) * parts
        terms[at, 2], terms[at, 3] = part * parts, mark
        at += 1
        if not joins:
            state[col, SIZE] = part
        done += part
    state[col, NEXT], state[col, MARK] = at, mark


@compiled
def _ascending(touched: Any, found: int, state: Any, panels: int) -> None:
    """Sort the touched columns; where most are touched a scan is cheaper than a sort."""
    if found * 8 > panels:
        at = 0
        for col in range(panels):
            if state[col, COUNT] > 0:
                touched[at] = col
                at += 1
    else:
        touched[:found] = np.sort(touched[:found])


@compiled
def dropped_error(rows: Any, cols: Any, panels: int, drop: float) -> float:
    """Bound on the Frobenius error if all products with a norm bound not above `drop` are left out.

    Within one result block the norms add; result blocks are orthogonal, so their squares do.
    """
    lost = np.zeros(panels)
    total = 0.0
    for row in range(len(rows.ptr) - 1):
        for i in range(rows.ptr[row], rows.ptr[row + 1]):
            k = rows.other[i]
            for j in range(cols.ptr[k], cols.ptr[k + 1]):
                norm = product_norm(rows.norms[i], cols.norms[j])
                if norm <= drop:
                    lost[cols.other[j]] += norm
        for i in range(rows.ptr[row], rows.ptr[row + 1]):
            k = rows.other[i]
            for j in range(cols.ptr[k], cols.ptr[k + 1]):
                col = cols.other[j]
                total += lost[col] * lost[col]
                lost[col] = 0.0
    # Summation of n positive numbers is exact to n roundings; the bound must not be below the truth.
    return np.sqrt(total) * (1.0 + 1e-12)
