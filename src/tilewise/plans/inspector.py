"""The inspector: from patterns to a `Plan`, without an element of any tensor.

A product C(m,n) += A(m,k) B(k,n) runs on one of four compiled loops, chosen from the patterns alone so
that neither the machine's load nor the number of workers can change the bits of a result:

* ``packed``: panels of both operands are packed into slivers and multiplied by a register tile that sums
  all k segments of a cell.  Any order of modes, any block size.
* ``inplace``: an operand that is much larger than the other is read where it lies, once; only the small one is packed.
* ``gemm``: large blocks whose modes stand in order, if there are many, go to BLAS where they lie.
* ``loops``: products with hardly any rows or columns, and elementwise ones; nothing to gain from packing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.expressions import Contraction
from tilewise.patterns import Pattern, expand
from tilewise.patterns.keys import block_keys
from tilewise.plans.arrange import mean_edges
from tilewise.plans.aside import Stop, check_stop, run_aside
from tilewise.plans.cells import Cells, Strips, make_cells
from tilewise.plans.joins import Entries, Joined, count_products, cut_segments, join, make_room
from tilewise.plans.plan import Kernel, Operand, Plan, Product
from tilewise.plans.screening import choose_drop
from tilewise.plans.sides import Modes, Side, make_sides
from tilewise.plans.work import Choices

Ints = npt.NDArray[np.int64]

CHUNK_DEPTH = 384
"""Reals along k summed in registers before the result is touched.  Part of what fixes the bits of a result."""

SEGMENT_DEPTH = 2 * CHUNK_DEPTH
"""Elements along k that the mean result block sums in one segment, the least that a memory budget can cut off."""

ROW_STRIP = 120
"""Rows of a strip: a chunk of it stays in a second-level cache of half a megabyte."""

COL_STRIP = 512
"""Columns of a strip."""

GROUP_BYTES = 2 * 1024 * 1024
"""Packed columns that each strip of rows meets while it is near: a share of the last-level cache."""

ONE_GROUP = 1 << 62
"""Bytes that no operand has: all columns are packed before, and a strip of rows meets them one after the other."""

GEMM_STRIPS = (1024, 768, 512)
"""Rows and columns of a cell that goes to BLAS: the first choice that gives `GEMM_CELLS`, else the last."""

GEMM_CELLS = 64
"""With fewer cells than this, workers would wait for the last one; packed strips are finer."""

GEMM_EDGE = 384.0
"""Geometric mean of m, n, k from which products in order are left to BLAS."""

INPLACE_RATIO = 4
"""How many times more elements than the other an operand has that is read in place."""

INPLACE_STRIP = 64
"""Rows of a strip that is read in place: it is read once for all columns, and short ones are enough for all workers."""

INPLACE_DEPTH = 256
"""Elements of a k tile, on average, from which it may be: the sums of each are added to the result by themselves."""

INPLACE_COLUMNS = 16
"""Columns of the small operand, on average, from which it may be: a sliver."""

LOOPS_EDGE = 3.0
"""Mean rows or columns per block under which a product is done by plain loops."""

VECTOR_BYTES = 64
"""Packed columns have room up to a multiple of this, the widest vectors there are: a plan is the same on every CPU, and
no run takes more than it says."""

INT32_LIMIT = 2**31 - 1

SHORT_PRODUCTS = 1 << 21
"""With no more products than this, planning takes a fraction of a second."""


def inspect_product(
    contraction: Contraction,
    left: Pattern,
    right: Pattern,
    dtype: npt.DTypeLike,
    *,
    tolerance: float | None = None,
    workers: int = 1,
    on_devices: bool = False,
) -> Plan:
    """Plan one product of two operands.

    With `on_devices` it is left to devices, each product of two blocks by itself, unless it is one for plain loops.
    """

    def work(stop: Stop) -> Plan:
        operands = (Operand(left, expand(left)), Operand(right, expand(right)))
        return _inspect(contraction, operands, np.dtype(dtype), tolerance, workers, None, stop, on_devices)

    return run_aside(work, short=left.nnz_blocks * right.nnz_blocks <= SHORT_PRODUCTS)


def reinspect(plan: Plan, dtype: npt.DTypeLike, *, on_devices: bool = False) -> Plan:
    """Plan the products of a plan, or of the part of one, again for another element type or another place."""
    work = plan.work
    if not isinstance(work, Product):
        raise TypeError("Only a product is planned again.")
    operands = (plan.operands[0], plan.operands[1])
    kept = work.choices.drop, plan.dropped_bound

    def again(stop: Stop) -> Plan:
        return _inspect(work.contraction, operands, np.dtype(dtype), None, plan.workers, None, stop, on_devices, kept)

    return run_aside(again, short=math.prod(len(o.blocks.source) for o in operands) <= SHORT_PRODUCTS)


def inspect_part(plan: Plan, left: Ints, right: Ints) -> Plan:
    """Plan the part of a product that some of its operands' blocks give, with the bits of the whole.

    Parameters
    ----------
    plan : Plan
        The whole product.
    left, right : int64 array
        Blocks of the operands, in ascending order; all or none of each k segment that a panel has.
    """
    if not isinstance(plan.work, Product):
        raise TypeError("Only a product has parts.")
    operands = tuple(
        Operand(whole.pattern, whole.blocks.taken(rows))
        for whole, rows in zip(plan.operands, (left, right), strict=True)
    )
    work = plan.work
    return run_aside(
        lambda stop: _inspect(
            work.contraction, (operands[0], operands[1]), plan.dtype, None, plan.workers, work.choices, stop
        ),
        short=len(left) * len(right) <= SHORT_PRODUCTS,
    )


def _inspect(
    contraction: Contraction,
    operands: tuple[Operand, Operand],
    dtype: np.dtype[Any],
    tolerance: float | None,
    workers: int,
    choices: Choices | None,
    stop: Stop,
    on_devices: bool = False,
    kept: tuple[float, float] | None = None,
) -> Plan:
    """Plan a product, or with `choices` a part of one, unless it is given up.

    `kept` is a threshold that was chosen before, and the bound on the error it causes.
    """
    patterns = operands[0].pattern, operands[1].pattern
    inplace = None
    if choices is None and not on_devices and dtype.kind == "f":
        inplace = _read_in_place(contraction, *patterns)
    if choices is not None:
        swapped = choices.swapped
    else:
        swapped = _rows_from_right(contraction, *patterns) if inplace is None else inplace == 1
    order = (1, 0) if swapped else (0, 1)
    modes = (
        _modes(contraction.left, contraction, contraction.m),
        _modes(contraction.right, contraction, contraction.n),
    )
    rows, cols, tiles, lengths = make_sides(
        (operands[order[0]].blocks, operands[order[1]].blocks),
        (operands[order[0]].pattern.spaces, operands[order[1]].pattern.spaces),
        (modes[order[0]], modes[order[1]]),
        None if choices is None else choices.tiles,
    )
    by_row, by_inner = rows.by_panel(), cols.by_inner(len(lengths))
    parts = 2 if dtype.kind == "c" else 1
    if choices is None:
        kernel, segment = _choose_kernel(contraction, rows, cols, by_row, by_inner, lengths, operands)
        kernel = kernel if inplace is None else "inplace"
        kernel = "device" if on_devices and kernel != "loops" else kernel
        drop, dropped_bound = choose_drop(by_row, by_inner, cols.panels.size, tolerance, stop) if kept is None else kept
    else:
        kernel, segment, drop, dropped_bound = choices.kernel, choices.segment, choices.drop, 0.0
    joined, products = _join(
        by_row, by_inner, lengths, segment, cols.panels.size, drop, kernel, parts, rows, cols, stop
    )
    result, slot = _result(contraction, operands, rows, cols, joined, swapped)
    gemm_strip = _gemm_strip(joined, rows, cols) if choices is None else choices.gemm_strip
    segments = int(segment[-1]) + 1 if len(segment) else 0
    pieces = choices.pieces if choices is not None else 1 if kernel == "device" else None
    row_strips, col_strips, cells = _cut(kernel, gemm_strip, joined, slot, rows, cols, dtype, parts, segments, pieces)
    if choices is None:
        choices = Choices(swapped, kernel, drop, tiles, segment, gemm_strip, cells.planned_pieces)
    flops = _kept_flops(joined, rows, cols, 2 * parts * parts)
    everything = _all_flops(rows, cols, by_inner, lengths, 2 * parts * parts) if drop >= 0 else flops
    partial = cells.pieces * result.nbytes(dtype) if cells.pieces > 1 else 0
    work = Product(
        contraction=contraction,
        choices=choices,
        rows=rows,
        cols=cols,
        result=_modes(
            contraction.result,
            contraction,
            contraction.n if swapped else contraction.m,
            contraction.m if swapped else contraction.n,
        ),
        row_strips=row_strips,
        col_strips=col_strips,
        cells=cells,
        terms=joined.terms,
        products=joined.products,
        screened_products=products - joined.products,
    )
    packed, buffers = buffer_bytes(kernel, work, dtype)
    return Plan(
        label=contraction.label(),
        operands=operands,
        result=result,
        dtype=dtype,
        kernel=kernel,
        work=work,
        flops=flops,
        screened_flops=everything - flops,
        tolerance=tolerance,
        dropped_bound=dropped_bound,
        packed_bytes=packed + partial,
        worker_bytes=buffers,
        workers=workers,
    )


def _modes(
    indices: tuple[str, ...],
    contraction: Contraction,
    free: tuple[str, ...],
    inner: tuple[str, ...] | None = None,
) -> Modes:
    def at(group: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(map(indices.index, group))

    return Modes(at(free), at(contraction.k if inner is None else inner), at(contraction.batch))


def _rows_from_right(contraction: Contraction, left: Pattern, right: Pattern) -> bool:
    """The row operand is packed whole, the column operand strip by strip: rows come from the smaller one.

    Where the sizes are alike, columns are the operand that holds the result's last mode, whose elements are
    neighbours.
    """
    ratio = (left.nnz_elements + 1) / (right.nnz_elements + 1)
    if ratio > 4 or ratio < 0.25:
        return ratio > 1
    return bool(contraction.result) and contraction.result[-1] in contraction.m


def _read_in_place(contraction: Contraction, left: Pattern, right: Pattern) -> int | None:
    """Number of the operand whose blocks are rows that are read where they lie, or None to pack both.

    It is much larger than the other one, in large blocks that are plain matrices. Products that BLAS does well are left
    to it (`_choose_kernel`).
    """
    sizes = left.nnz_elements, right.nnz_elements
    if contraction.batch or max(sizes) <= INPLACE_RATIO * min(sizes):
        return None
    number = int(np.argmax(sizes))
    large, form, rows, cols = (
        (left, contraction.left_form, contraction.m, contraction.n),
        (right, contraction.right_form, contraction.n, contraction.m),
    )[number]
    if form == "permuted" or (large.symmetry is not None and not _is_symmetric_matrix(large)):
        return None
    names, spaces = contraction.left + contraction.right, left.spaces + right.spaces
    mean = {name: space.size / max(space.ntiles, 1) for name, space in zip(names, spaces, strict=True)}
    edges = [math.prod(mean[name] for name in group) for group in (rows, cols, contraction.k)]
    if _is_for_blas(contraction, (left, right), *edges):
        return None
    large_enough = edges[0] >= ROW_STRIP and edges[1] >= INPLACE_COLUMNS and edges[2] >= INPLACE_DEPTH
    return number if large_enough else None


def _is_for_blas(contraction: Contraction, patterns: tuple[Pattern, Pattern], m: float, n: float, k: float) -> bool:
    """Whether blocks of these mean edges are large enough for BLAS, and stand in order."""
    forms = (contraction.left_form, contraction.right_form, contraction.result_form)
    plain = all(pattern.symmetry is None for pattern in patterns) and "permuted" not in forms
    return plain and (m * n * k) ** (1 / 3) >= GEMM_EDGE and min(m, n, k) >= 64


def _is_symmetric_matrix(pattern: Pattern) -> bool:
    """Whether blocks of the other half are transposes, without another sign."""
    assert pattern.symmetry is not None
    return len(pattern.spaces) == 2 and all(sign > 0 for _, sign in pattern.symmetry.groups)


def _choose_kernel(
    contraction: Contraction,
    rows: Side,
    cols: Side,
    by_row: Entries,
    by_inner: Entries,
    lengths: Ints,
    operands: tuple[Operand, Operand],
) -> tuple[Kernel, Ints]:
    """The compiled loop, from mean block edges weighted by how often blocks take part in products; and k segments."""
    products, m, n, k, batch = mean_edges(by_row, by_inner, rows.size, cols.size, rows.batch, lengths)
    most_blocks = min(products, len(rows.size) * len(cols.size))
    segment = cut_segments(by_row, by_inner, lengths, most_blocks, SEGMENT_DEPTH)
    if min(m, n) < LOOPS_EDGE or (batch > 1 and m * n * k < 512):
        return "loops", segment
    most_cells = most_blocks * m * n / GEMM_STRIPS[-1] ** 2
    patterns = operands[0].pattern, operands[1].pattern
    if most_cells >= GEMM_CELLS and _is_for_blas(contraction, patterns, m, n, k):
        return "gemm", segment
    return "packed", segment


def _join(
    by_row: Entries,
    by_inner: Entries,
    lengths: Ints,
    segment: Ints,
    panels: int,
    drop: float,
    kernel: Kernel,
    parts: int,
    rows: Side,
    cols: Side,
    stop: Stop,
) -> tuple[Joined, int]:
    piece = CHUNK_DEPTH // parts if kernel == "packed" else INT32_LIMIT
    products, bound = count_products(by_row, by_inner, lengths, piece)
    deepest = max(int(side.depth.max(initial=0)) for side in (rows, cols)) * parts
    if deepest > INT32_LIMIT:
        raise InputError(
            f"One row or column of blocks sums over {deepest} elements. At most {INT32_LIMIT} are possible. "
            "Use a sparser pattern or split the contracted space."
        )
    joined = join(
        by_row, by_inner, lengths, segment, panels, drop, piece, parts, kernel == "packed", make_room(bound), stop
    )
    check_stop(stop)
    return joined, products


def _result(
    contraction: Contraction,
    operands: tuple[Operand, Operand],
    rows: Side,
    cols: Side,
    joined: Joined,
    swapped: bool,
) -> tuple[Pattern, Ints]:
    """The result's pattern, and the place in it of each joined block."""
    batch = len(contraction.batch)
    row_tiles, col_tiles = (
        rows.panels.tiles(np.arange(rows.panels.size)),
        cols.panels.tiles(np.arange(cols.panels.size)),
    )
    spaces = dict(zip(contraction.left, operands[0].pattern.spaces, strict=True))
    spaces |= dict(zip(contraction.right, operands[1].pattern.spaces, strict=True))
    row_free, col_free = (contraction.n, contraction.m) if swapped else (contraction.m, contraction.n)
    index = np.empty((len(joined.row), len(contraction.result)), np.int64)
    for mode, name in enumerate(contraction.result):
        if name in col_free:
            index[:, mode] = col_tiles[joined.col, batch + col_free.index(name)]
        else:
            index[:, mode] = row_tiles[joined.row, (contraction.batch + row_free).index(name)]
    own = tuple(spaces[name] for name in contraction.result)
    slot = np.arange(len(index))
    norms = joined.norms
    if contraction.result != contraction.batch + row_free + col_free:
        keys = block_keys(index, [s.ntiles for s in own])
        order = np.argsort(keys, kind="stable")
        index, norms = index[order], norms[order]
        slot[order] = np.arange(len(index))
    if not own:
        index = index.reshape(len(joined.row), 0)
    return Pattern.trusted(own, np.ascontiguousarray(index), np.ascontiguousarray(norms)), slot


def _cut(
    kernel: Kernel,
    gemm_strip: int,
    joined: Joined,
    slot: Ints,
    rows: Side,
    cols: Side,
    dtype: np.dtype[Any],
    parts: int,
    segments: int,
    pieces: int | None,
) -> tuple[Strips, Strips, Cells]:
    row_limit = col_limit = INT32_LIMIT
    if kernel in ("packed", "inplace"):
        row_limit, col_limit = ROW_STRIP if kernel == "packed" else INPLACE_STRIP, COL_STRIP
    elif kernel == "gemm":
        row_limit = col_limit = gemm_strip
    row_strips, col_strips = Strips.of(rows, row_limit), Strips.of(cols, col_limit)
    group_bytes = {"packed": GROUP_BYTES, "inplace": ONE_GROUP}.get(kernel, 0)
    col_bytes = packed_columns(col_strips, cols.depth, dtype.itemsize, parts) * (dtype.itemsize // parts)
    cells = make_cells(
        joined, slot, row_strips, col_strips, col_bytes, group_bytes, 2 * parts * parts, segments, pieces
    )
    return row_strips, col_strips, cells


def _gemm_strip(joined: Joined, rows: Side, cols: Side) -> int:
    """Rows and columns of a cell that goes to BLAS."""
    m, n = rows.size[joined.row], cols.size[joined.col]
    enough = [limit for limit in GEMM_STRIPS if int((-(-m // limit) * -(-n // limit)).sum()) >= GEMM_CELLS]
    return enough[0] if enough else GEMM_STRIPS[-1]


def packed_columns(strips: Strips, depth: Ints, itemsize: int, parts: int) -> Ints:
    """Reals that each strip of columns takes when packed: columns padded to whole vectors, k as deep as the panel."""
    lanes = VECTOR_BYTES // (itemsize // parts)
    width = -(-strips.size * parts // lanes) * lanes
    return np.asarray(width * depth[strips.panel] * strips.batch * parts)


def packed_rows(strips: Strips, depth: Ints, parts: int) -> Ints:
    """Reals that each strip of rows takes when packed."""
    return np.asarray(strips.size * depth[strips.panel] * strips.batch * parts)


def buffer_bytes(kernel: Kernel, work: Product, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Bytes packed for the whole run, and bytes of each worker's buffer."""
    cells = work.cells
    if kernel not in ("packed", "inplace") or not len(cells.block):
        return 0, 0
    parts = 2 if dtype.kind == "c" else 1
    real = dtype.itemsize // parts
    columns = packed_columns(work.col_strips, work.cols.depth, dtype.itemsize, parts)
    if kernel == "inplace":
        return int(columns.sum()) * real, 0
    whole = int(packed_rows(work.row_strips, work.rows.depth, parts).sum()) * real
    return whole, int(np.add.reduceat(columns, cells.group_ptr[:-1]).max()) * real


def _kept_flops(joined: Joined, rows: Side, cols: Side, factor: int) -> int:
    """Floating-point operations of the products that are done."""
    sizes = (rows.size * rows.batch)[joined.row] * cols.size[joined.col]
    return factor * int((sizes * joined.depth).sum())


def _all_flops(rows: Side, cols: Side, by_inner: Entries, lengths: Ints, factor: int) -> int:
    """Floating-point operations of all products, screened or not."""
    panel = np.repeat(np.arange(len(rows.size)), np.diff(rows.ptr))
    left = np.bincount(rows.inner, (rows.size * rows.batch)[panel], len(lengths))
    k_tile = np.repeat(np.arange(len(lengths)), np.diff(by_inner.ptr))
    right = np.bincount(k_tile, cols.size[by_inner.other], len(lengths))
    return round(math.fsum(left * right * lengths)) * factor
