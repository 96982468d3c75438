"""Compiled integer loops of the inspector: which blocks meet, in which order, and what may be dropped.

Nothing here sees an element of a tensor.  The join walks the products row by row (Gustavson), so its time
is linear in their number.  Compiled because it visits every product: below 64 elements an interpreted or
vectorised pass costs more than the product itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit


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
    """Merged: start in row panel, start in column panel, length.  Otherwise: row block, column block, length."""
    products: int
    """Block products kept."""


@njit(nogil=True, cache=True)
def product_norm(a: float, b: float) -> float:
    """Bound on the norm of a product; zero where one factor is zero, also if the other is unknown."""
    if a == 0.0 or b == 0.0:
        return 0.0
    return a * b


@njit(nogil=True, cache=True)
def count_products(rows: Any, cols: Any, length: Any, piece: int) -> tuple[int, int]:
    """Block products, and an upper bound on the terms they become."""
    products, terms = 0, 0
    for entry in range(len(rows.other)):
        k = rows.other[entry]
        meets = cols.ptr[k + 1] - cols.ptr[k]
        products += meets
        terms += meets * ((length[k] + piece - 1) // piece)
    return products, terms


@njit(nogil=True, cache=True)
def join(rows: Any, cols: Any, length: Any, panels: int, drop: float, piece: int, parts: int, merge: bool,
         bound: int) -> Any:
    """Find the result blocks and their terms.

    Parameters
    ----------
    rows, cols : Entries
        The operands' blocks.
    length : int64 array
        Elements of each k tile.
    panels : int
        Number of column panels.
    drop : float
        Products whose norm bound is not above it are left out; negative keeps all.
    piece : int
        Longest merged term, in elements of k.
    parts : int
        Reals per element; merged terms count in reals.
    merge : bool
        Whether neighbouring k blocks become one term.
    bound : int
        Upper bound on the number of terms.
    """
    # Result blocks are as many as terms at the most; pages never touched cost nothing.
    row_of, col_of = np.empty(bound, np.int32), np.empty(bound, np.int32)
    ptr, depth, norms = np.empty(bound + 1, np.int64), np.empty(bound, np.int64), np.empty(bound, np.float64)
    terms = np.empty((bound, 3), np.int32)
    count = np.zeros(panels, np.int64)
    row_end, col_end, size = np.empty(panels, np.int64), np.empty(panels, np.int64), np.empty(panels, np.int64)
    place = np.empty(panels, np.int64)
    touched = np.empty(panels, np.int64)
    blocks, written, products = 0, 0, 0
    ptr[0] = 0
    for row in range(len(rows.ptr) - 1):
        found = 0
        for i in range(rows.ptr[row], rows.ptr[row + 1]):
            k = rows.other[i]
            for j in range(cols.ptr[k], cols.ptr[k + 1]):
                if product_norm(rows.norms[i], cols.norms[j]) <= drop:
                    continue
                col = cols.other[j]
                if count[col] == 0:
                    touched[found] = col
                    found += 1
                    row_end[col] = -1
                count[col] += _new_terms(rows.at[i], cols.at[j], length[k], col, row_end, col_end, size, piece,
                                         merge)
        if found == 0:
            continue
        _ascending(touched, found, count, panels)
        for t in range(found):
            col = touched[t]
            row_of[blocks + t], col_of[blocks + t] = row, col
            depth[blocks + t], norms[blocks + t] = 0, 0.0
            place[col] = blocks + t
            ptr[blocks + t + 1] = ptr[blocks + t] + count[col]
            count[col] = ptr[blocks + t]
            row_end[col] = -1
        for i in range(rows.ptr[row], rows.ptr[row + 1]):
            k = rows.other[i]
            for j in range(cols.ptr[k], cols.ptr[k + 1]):
                norm = product_norm(rows.norms[i], cols.norms[j])
                if norm <= drop:
                    continue
                col = cols.other[j]
                products += 1
                depth[place[col]] += length[k]
                norms[place[col]] += norm
                if merge:
                    _write_merged(terms, count, rows.at[i], cols.at[j], length[k], col, row_end, col_end, size,
                                  piece, parts)
                else:
                    at = count[col]
                    terms[at, 0], terms[at, 1], terms[at, 2] = rows.number[i], cols.number[j], length[k]
                    count[col] += 1
        for t in range(found):
            count[touched[t]] = 0
        blocks += found
        written = ptr[blocks]
    return Joined(row_of[:blocks], col_of[:blocks], ptr[: blocks + 1], depth[:blocks], norms[:blocks],
                  terms[:written], products)


@njit(nogil=True, cache=True)
def _new_terms(row_at: int, col_at: int, length: int, col: int, row_end: Any, col_end: Any, size: Any,
               piece: int, merge: bool) -> int:
    """How many terms this product adds to its result block; the counterpart of `_write_merged`."""
    if not merge:
        return 1
    grows = row_end[col] == row_at and col_end[col] == col_at and size[col] + length <= piece
    row_end[col], col_end[col] = row_at + length, col_at + length
    if grows:
        size[col] += length
        return 0
    added = (length + piece - 1) // piece
    size[col] = length - (added - 1) * piece
    return added


@njit(nogil=True, cache=True)
def _write_merged(terms: Any, count: Any, row_at: int, col_at: int, length: int, col: int, row_end: Any,
                  col_end: Any, size: Any, piece: int, parts: int) -> None:
    grows = row_end[col] == row_at and col_end[col] == col_at and size[col] + length <= piece
    row_end[col], col_end[col] = row_at + length, col_at + length
    if grows:
        size[col] += length
        terms[count[col] - 1, 2] += length * parts
        return
    done = 0
    while done < length:
        part = min(piece, length - done)
        at = count[col]
        terms[at, 0], terms[at, 1] = (row_at + done) * parts, (col_at + done) * parts
        terms[at, 2] = part * parts
        count[col] += 1
        size[col] = part
        done += part


@njit(nogil=True, cache=True)
def _ascending(touched: Any, found: int, count: Any, panels: int) -> None:
    """Sort the touched columns; where most are touched a scan is cheaper than a sort."""
    if found * 8 > panels:
        at = 0
        for col in range(panels):
            if count[col] > 0:
                touched[at] = col
                at += 1
    else:
        touched[:found] = np.sort(touched[:found])


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def stable_order(key: Any, keys: int) -> Any:
    """The stable permutation that sorts small integers, by counting."""
    start = np.zeros(keys + 1, np.int64)
    for value in key:
        start[value + 1] += 1
    for i in range(keys):
        start[i + 1] += start[i]
    order = np.empty(len(key), np.int64)
    for i in range(len(key)):
        order[start[key[i]]] = i
        start[key[i]] += 1
    return order


@njit(nogil=True, cache=True)
def cut_tasks(group: Any, flops: Any, target: float) -> Any:
    """First cell of each task: a task keeps to one group and ends once it holds `target` flops."""
    start = np.empty(len(group) + 1, np.int64)
    tasks, load = 0, 0.0
    for i in range(len(group)):
        if i == 0 or group[i] != group[i - 1] or load >= target:
            start[tasks] = i
            tasks += 1
            load = 0.0
        load += flops[i]
    start[tasks] = len(group)
    return start[: tasks + 1].copy()
