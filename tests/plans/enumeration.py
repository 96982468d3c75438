"""Block products read back from the arrays of a plan, and the same products from the patterns by brute force."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from references import element_mask, tile_mask
from tilewise.expressions import Contraction
from tilewise.patterns import Pattern
from tilewise.plans import Plan, Product
from tilewise.plans.cells import Strips
from tilewise.plans.sides import Side

Block = tuple[int, ...]
Triple = tuple[Block, Block, Block]
"""A block of the left operand, one of the right operand, and the result block their product is added to."""


def work_of(plan: Plan) -> Product:
    assert isinstance(plan.work, Product)
    return plan.work


def all_products(contraction: Contraction, left: Pattern, right: Pattern) -> Counter[Triple]:
    """Every product of two non-zero blocks."""
    masks = tile_mask(left), tile_mask(right)
    counts = dict(zip(contraction.left + contraction.right, left.ntiles + right.ntiles, strict=True))
    found: Counter[Triple] = Counter()
    for tiles in product(*(range(count) for count in counts.values())):
        tile = dict(zip(counts, tiles, strict=True))
        a, b, c = (tuple(tile[i] for i in own) for own in (contraction.left, contraction.right, contraction.result))
        if masks[0][a] and masks[1][b]:
            found[a, b, c] += 1
    return found


def all_flops(contraction: Contraction, left: Pattern, right: Pattern, complex_: bool) -> int:
    """Multiplications and additions of all elements in non-zero blocks."""
    label = contraction.label().split("->")[0] + "->"
    return int(np.einsum(label, element_mask(left), element_mask(right))) * (8 if complex_ else 2)


def planned_products(plan: Plan) -> Counter[Triple]:
    """The products that the cells of a plan do, each counted as often as it is done.

    Every cell of one result block must sum the same products; strips must cut panels without gap or overlap.
    """
    work = work_of(plan)
    check_strips(work.rows, work.row_strips)
    check_strips(work.cols, work.col_strips)
    terms: dict[int, dict[tuple[int, int], list[Any]]] = {}
    for block, row, col, begin, end in cell_rows(work):
        strips = terms.setdefault(block, {})
        strips.setdefault((row, col), []).extend(work.terms[begin:end].tolist())
    found: Counter[Triple] = Counter()
    for block, strips in terms.items():
        rows, cols = {row for row, _ in strips}, {col for _, col in strips}
        (row_panel,) = {int(work.row_strips.panel[row]) for row in rows}
        (col_panel,) = {int(work.col_strips.panel[col]) for col in cols}
        assert len(rows) == np.count_nonzero(work.row_strips.panel == row_panel)
        assert len(cols) == np.count_nonzero(work.col_strips.panel == col_panel)
        assert set(strips) == set(product(rows, cols))
        first, *others = strips.values()
        assert all(other == first for other in others)
        result = tuple(plan.result.index[block].tolist())
        for a, b in term_blocks(plan, work, row_panel, col_panel, first):
            found[(b, a, result) if work.swapped else (a, b, result)] += 1
    return found


def cell_rows(work: Product) -> list[tuple[int, ...]]:
    cells = work.cells
    columns = (cells.block, cells.row, cells.col, cells.begin, cells.end)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def check_strips(side: Side, strips: Strips) -> None:
    for panel in range(len(side.size)):
        own = np.flatnonzero(strips.panel == panel)
        ends = strips.begin[own] + strips.size[own]
        assert strips.begin[own][0] == 0
        np.testing.assert_array_equal(strips.begin[own][1:], ends[:-1])
        assert ends[-1] == side.size[panel]
        assert (strips.batch[own] == side.batch[panel]).all()


def term_blocks(
    plan: Plan, work: Product, row_panel: int, col_panel: int, terms: list[list[int]]
) -> list[tuple[Block, Block]]:
    """The pairs of blocks behind the terms of one result block."""
    left, right = (plan.operands[i].blocks.index for i in ((1, 0) if work.swapped else (0, 1)))
    if plan.kernel != "packed":
        return [(tuple(left[a].tolist()), tuple(right[b].tolist())) for a, b, _, _ in terms]
    parts = 2 if plan.dtype.kind == "c" else 1
    row_k, col_k = k_elements(work.rows, row_panel), k_elements(work.cols, col_panel)
    counts: Counter[tuple[int, int, int]] = Counter()
    lengths: Counter[int] = Counter(tile for tile, _, _ in row_k)
    for row_at, col_at, length, _ in terms:
        assert row_at % parts == col_at % parts == length % parts == 0
        for step in range(length // parts):
            tile, within, a = row_k[row_at // parts + step]
            other, elsewhere, b = col_k[col_at // parts + step]
            assert (tile, within) == (other, elsewhere)
            counts[tile, a, b] += 1
    found = []
    for (tile, a, b), count in counts.items():
        assert count % lengths[tile] == 0
        found += [(tuple(left[a].tolist()), tuple(right[b].tolist()))] * (count // lengths[tile])
    return found


def k_elements(side: Side, panel: int) -> list[tuple[int, int, int]]:
    """K tile, element within it and block of each element along a panel's k range."""
    begin, end = int(side.ptr[panel]), int(side.ptr[panel + 1])
    bounds = [*side.at[begin:end].tolist(), int(side.depth[panel])]
    found: list[tuple[int, int, int]] = []
    for entry in range(begin, end):
        assert bounds[entry - begin] == len(found)
        length = bounds[entry - begin + 1] - bounds[entry - begin]
        found += [(int(side.inner[entry]), e, int(side.block[entry])) for e in range(length)]
    return found


def check_tasks(plan: Plan) -> None:
    """Tasks cut the cells without gap; a task keeps to one group of columns; groups cut the strips."""
    cells = work_of(plan).cells
    ptr = cells.task_ptr
    assert (ptr[0], ptr[-1]) == (0, len(cells.block))
    assert (np.diff(ptr) > 0).all()
    group: npt.NDArray[np.int64] = cells.group_of_col[cells.col]
    for begin, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        assert len(set(group[begin:end].tolist())) == 1
    np.testing.assert_array_equal(
        cells.group_of_col, np.repeat(np.arange(len(cells.group_ptr) - 1), np.diff(cells.group_ptr))
    )
