"""Which panels of a product meet in which part of k, and the compiled passes that count what goes between groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewise.plans.compile import compiled
from tilewise.plans.joins import product_norm


class Blocks(NamedTuple):
    """The blocks of one operand ordered by k tile."""

    ptr: Any
    """First block of each k tile; one more at the end."""
    panel: Any
    """Panel of each block."""
    norms: Any
    """Norm of each block."""
    size: Any
    """Bytes of each block."""
    tile_bytes: Any
    """Bytes of all blocks of each k tile."""


class Meetings(NamedTuple):
    """Triples of row panel, column panel and part of k with at least one product, by row panel and part."""

    row: Any
    """Row panel."""
    col: Any
    """Column panel."""
    part: Any
    """Part of k; see `Crossings.part_of_segment`."""
    flops: Any
    """Floating-point operations."""
    result_bytes: Any
    """Bytes of the result block."""


@compiled
def meet(rows: Any, cols: Any, length: Any, part: Any, panels: int, drop: float, room: Any) -> int:
    """Write row panel, column panel, part and depth of all triples with a product; returns their number."""
    row_of, col_of, part_of, depth_of = room
    place = np.full(panels, -1, np.int64)
    count = 0
    for row in range(len(rows.ptr) - 1):
        first, last = count, -1
        for i in range(rows.ptr[row], rows.ptr[row + 1]):
            k = rows.other[i]
            if part[k] != last:
                first, last = count, part[k]
            for j in range(cols.ptr[k], cols.ptr[k + 1]):
                if drop >= 0 and product_norm(rows.norms[i], cols.norms[j]) <= drop:
                    continue
                col = cols.other[j]
                if place[col] < first:
                    place[col] = count
                    row_of[count], col_of[count], part_of[count], depth_of[count] = row, col, last, 0
                    count += 1
                depth_of[place[col]] += length[k]
    return count


@compiled
def groups_of_tile(needed: Any, k: int, group: Any, best: Any, touched: Any) -> int:
    """Note the groups with a block of a k tile and their largest norm; returns how many they are."""
    found = 0
    for j in range(needed.ptr[k], needed.ptr[k + 1]):
        g = group[needed.panel[j]]
        if best[g] < 0.0:
            touched[found] = g
            found += 1
        best[g] = max(best[g], needed.norms[j])
    return found


@compiled
def count_copies(sent: Any, needed: Any, group: Any, groups: int) -> int:
    """Bytes of one operand's blocks that go to groups of the other's panels, except to the first of each block."""
    last = np.full(groups, -1, np.int64)
    total = 0
    for k in range(len(needed.ptr) - 1):
        found = 0
        for j in range(needed.ptr[k], needed.ptr[k + 1]):
            g = group[needed.panel[j]]
            found += last[g] != k
            last[g] = k
        total += max(found - 1, 0) * sent.tile_bytes[k]
    return total


@compiled
def count_kept_copies(sent: Any, needed: Any, group: Any, groups: int, drop: float) -> int:
    """The same where products whose norm is not above `drop` are left out.

    A group needs a block if it does so for the largest norm it has.
    """
    best, touched = np.full(groups, -1.0), np.empty(groups, np.int64)
    total = 0
    for k in range(len(needed.ptr) - 1):
        found = groups_of_tile(needed, k, group, best, touched)
        for i in range(sent.ptr[k], sent.ptr[k + 1]):
            copies = 0
            for t in range(found):
                copies += product_norm(sent.norms[i], best[touched[t]]) > drop
            total += max(copies - 1, 0) * sent.size[i]
        for t in range(found):
            best[touched[t]] = -1.0
    return total


@compiled
def count_passed(met: Any, group: Any, columns: int) -> int:
    """Bytes of partial results that groups of k receive: those to which an earlier group added before they do."""
    row_of, group_of = np.full(columns, -1, np.int64), np.empty(columns, np.int64)
    total = 0
    for i in range(len(met.row)):
        row, col, own = met.row[i], met.col[i], group[met.part[i]]
        if row_of[col] == row and group_of[col] != own:
            total += met.result_bytes[i]
        row_of[col], group_of[col] = row, own
    return total


@compiled
def sum_flops(met: Any, row_place: Any, col_place: Any, part_place: Any, places: int) -> Any:
    """Flops at each place of a grid."""
    flops = np.zeros(places)
    for i in range(len(met.row)):
        flops[row_place[met.row[i]] + col_place[met.col[i]] + part_place[met.part[i]]] += met.flops[i]
    return flops
