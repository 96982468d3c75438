"""Compiled integer loops that put blocks and cells in order: linear counting sorts, no element of a tensor.

A contraction of a few hundred blocks runs in milliseconds; one compiled pass costs less than the dozen array
operations it stands for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewise.plans.compile import compiled


@compiled
def stable_order(key: Any, keys: int) -> Any:
    """The stable permutation that sorts small integers, by counting."""
    start = _starts(key, keys)
    order = np.empty(len(key), np.int64)
    for i in range(len(key)):
        order[start[key[i]]] = i
        start[key[i]] += 1
    return order


@compiled
def _starts(key: Any, keys: int) -> Any:
    """Where each key begins in sorted order; one more at the end."""
    start = np.zeros(keys + 1, np.int64)
    for value in key:
        start[value + 1] += 1
    for i in range(keys):
        start[i + 1] += start[i]
    return start


@compiled
def shared_keys(left: Any, right: Any, keys: int) -> Any:
    """Which of the keys occur on both sides."""
    found = np.zeros(keys, np.int8)
    for key in left:
        found[key] |= 1
    for key in right:
        found[key] |= 2
    return found == 3


@compiled
def order_side(panel: Any, tile: Any, wanted: Any, lengths: Any, panels: int, norms: Any) -> Any:
    """Blocks whose k tile is wanted, ordered by panel and k tile.

    Returns
    -------
    tuple
        First entry of each panel; block, k tile, position along k and norm of each entry; length of each panel.
    """
    kept = np.flatnonzero(wanted[tile])
    ptr = _starts(panel[kept], panels)
    order = kept[stable_order(panel[kept], panels)]
    if not _ascends(order, panel, tile):
        kept = kept[stable_order(tile[kept], len(lengths))]
        order = kept[stable_order(panel[kept], panels)]
    at, depth = np.empty(len(order), np.int64), np.zeros(panels, np.int64)
    for i in range(len(order)):
        block = order[i]
        at[i] = depth[panel[block]]
        depth[panel[block]] += lengths[tile[block]]
    return ptr, order, tile[order], at, norms[order], depth


@compiled
def _ascends(order: Any, panel: Any, tile: Any) -> bool:
    for i in range(1, len(order)):
        if panel[order[i]] == panel[order[i - 1]] and tile[order[i]] < tile[order[i - 1]]:
            return False
    return True


@compiled
def order_by_inner(ptr: Any, inner: Any, tiles: int) -> Any:
    """First entry of each k tile, the entries ordered by k tile, and the panel of each."""
    order = stable_order(inner, tiles)
    panel = np.empty(len(inner), np.int64)
    for p in range(len(ptr) - 1):
        panel[ptr[p] : ptr[p + 1]] = p
    return _starts(inner, tiles), order, panel[order]


@compiled
def mean_edges(rows: Any, cols: Any, row_size: Any, col_size: Any, batch: Any, lengths: Any) -> Any:
    """Products of two operands, and the mean rows, columns, k and batch elements of one; zeros without a product."""
    products, m, n, k, elements = 0, 0.0, 0.0, 0.0, 0.0
    width = np.zeros(len(lengths))
    for tile in range(len(lengths)):
        for j in range(cols.ptr[tile], cols.ptr[tile + 1]):
            width[tile] += col_size[cols.other[j]]
    for row in range(len(rows.ptr) - 1):
        for i in range(rows.ptr[row], rows.ptr[row + 1]):
            tile = rows.other[i]
            meets = cols.ptr[tile + 1] - cols.ptr[tile]
            products += meets
            m += row_size[row] * meets
            elements += batch[row] * meets
            k += lengths[tile] * meets
            n += width[tile]
    if products == 0:
        return 0, 0.0, 0.0, 0.0, 0.0
    return products, m / products, n / products, k / products, elements / products


@compiled
def cut_strips(size: Any, batch: Any, limit: int) -> Any:
    """Panels cut into strips of nearly equal size, none larger than `limit`.

    Returns
    -------
    tuple
        Panel, first element, elements and batch elements of each strip; first strip of each panel, and one more.
    """
    first = np.zeros(len(size) + 1, np.int64)
    for p in range(len(size)):
        first[p + 1] = first[p] + (size[p] + limit - 1) // limit
    strips = first[-1]
    panel, begin = np.empty(strips, np.int64), np.empty(strips, np.int64)
    length, batches = np.empty(strips, np.int64), np.empty(strips, np.int64)
    for p in range(len(size)):
        count, at = first[p + 1] - first[p], 0
        for i in range(count):
            s = first[p] + i
            panel[s], begin[s], batches[s] = p, at, batch[p]
            length[s] = size[p] // count + (1 if i < size[p] % count else 0)
            at += length[s]
    return panel, begin, length, batches, first


@compiled
def group_columns(col_bytes: Any, group_bytes: int) -> Any:
    """Neighbouring column strips share a group until it holds `group_bytes`; group of each, first strip of each."""
    group, ptr = np.empty(len(col_bytes), np.int64), np.zeros(len(col_bytes) + 1, np.int64)
    groups, before, label = 0, 0, -1
    for strip in range(len(col_bytes)):
        if before // max(group_bytes, 1) != label:
            label = before // max(group_bytes, 1)
            ptr[groups] = strip
            groups += 1
        group[strip] = groups - 1
        before += col_bytes[strip]
    ptr[groups] = len(col_bytes)
    return group, ptr[: groups + 1].copy()


@compiled
def order_cells(
    block_row: Any,
    block_col: Any,
    depth: Any,
    row_first: Any,
    row_size: Any,
    row_batch: Any,
    col_first: Any,
    col_size: Any,
    group_of_col: Any,
    groups: int,
    flop_factor: int,
) -> Any:
    """Result blocks cut into the cells of their strips, ordered by column group, row and column.

    Returns
    -------
    tuple
        Block, row strip, column strip and floating-point operations of each cell.
    """
    start = np.zeros(groups + 1, np.int64)
    for b in range(len(block_row)):
        across = row_first[block_row[b] + 1] - row_first[block_row[b]]
        for col in range(col_first[block_col[b]], col_first[block_col[b] + 1]):
            start[group_of_col[col] + 1] += across
    for g in range(groups):
        start[g + 1] += start[g]
    block, row, col_of = (
        np.empty(start[groups], np.int64),
        np.empty(start[groups], np.int64),
        np.empty(start[groups], np.int64),
    )
    flops = np.empty(start[groups], np.float64)
    for b in range(len(block_row)):
        for r in range(row_first[block_row[b]], row_first[block_row[b] + 1]):
            for c in range(col_first[block_col[b]], col_first[block_col[b] + 1]):
                at = start[group_of_col[c]]
                start[group_of_col[c]] = at + 1
                block[at], row[at], col_of[at] = b, r, c
                flops[at] = float(flop_factor * row_size[r] * col_size[c] * row_batch[r]) * depth[b]
    return block, row, col_of, flops


@compiled
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
