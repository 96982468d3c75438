"""Large blocks in order: each product of a cell is one BLAS call on the blocks where they lie.

BLAS is called by address, so that the compiled loop stays cached on disk whichever library is in use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tilewise.engines.kernels.atomics import take
from tilewise.engines.kernels.blocks import look_up
from tilewise.engines.kernels.compile import compiled
from tilewise.engines.kernels.squares import sum_squares

INTEGER = ir.IntType(32)
BYTE = ir.IntType(8)


@intrinsic
def call_gemm(
    typingctx: Any,
    sample: Any,
    address: Any,
    first: Any,
    second: Any,
    m: Any,
    n: Any,
    k: Any,
    re: Any,
    im: Any,
    beta: Any,
    a: Any,
    lda: Any,
    b: Any,
    ldb: Any,
    c: Any,
    ldc: Any,
) -> Any:
    """Fortran's ``?gemm(first, second, m, n, k, re + i im, a, lda, b, ldb, beta, c, ldc)`` by address.

    `first` and `second` are the characters N or T as integers; a, b, c are addresses.
    """
    signature = types.void(sample, *[types.int64] * 6, sample, sample, sample, *[types.int64] * 6)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        real = ir.DoubleType() if sample.bitwidth == 64 else ir.FloatType()
        pair = ir.ArrayType(real, 2)
        pointer = BYTE.as_pointer()

        def cell(value: Any, kind: Any) -> Any:
            slot = cgutils.alloca_once(builder, kind)
            builder.store(builder.trunc(value, kind), slot)
            return builder.bitcast(slot, pointer)

        def scalar(parts: tuple[Any, Any]) -> Any:
            slot = cgutils.alloca_once(builder, pair)
            for i, part in enumerate(parts):
                builder.store(part, cgutils.gep_inbounds(builder, slot, 0, i))
            return builder.bitcast(slot, pointer)

        _, address, first, second, m, n, k, re, im, beta, a, lda, b, ldb, c, ldc = args
        zero = ir.Constant(real, 0.0)
        kind = ir.FunctionType(ir.VoidType(), [pointer] * 13)
        function = builder.inttoptr(address, kind.as_pointer())
        builder.call(
            function,
            [
                cell(first, BYTE),
                cell(second, BYTE),
                cell(m, INTEGER),
                cell(n, INTEGER),
                cell(k, INTEGER),
                scalar((re, im)),
                builder.inttoptr(a, pointer),
                cell(lda, INTEGER),
                builder.inttoptr(b, pointer),
                cell(ldb, INTEGER),
                scalar((beta, zero)),
                builder.inttoptr(c, pointer),
                cell(ldc, INTEGER),
            ],
        )
        return context.get_dummy_value()

    return signature, codegen


@compiled
def _matrix(blocks: Any, b: int, tables: Any) -> tuple[int, bool]:
    """Leading dimension of a block as a matrix (free, inner), and whether it is stored transposed."""
    look_up(blocks, b, tables, 1)
    last_free = -1 if len(blocks.free) == 0 else blocks.free[-1]
    last_inner = -1 if len(blocks.inner) == 0 else blocks.inner[-1]
    transposed = last_free > last_inner
    return (tables.count[0] if transposed else tables.count[1]), transposed


@compiled
def _corner(leading: int, transposed: bool, free: int, inner: int) -> int:
    """Element number of position (free, inner) of a block's matrix."""
    return inner * leading + free if transposed else free * leading + inner


@compiled
def gemm_cells(
    worker: int,
    queues: Any,
    stop: Any,
    address: int,
    cells: Any,
    row_panels: Any,
    rows: Any,
    col_panels: Any,
    cols: Any,
    result: Any,
    re: float,
    im: float,
    fresh: bool,
    parts: int,
    squares: Any,
    row_tables: Any,
    col_tables: Any,
    tables: Any,
    tally: Any,
) -> None:
    """Run the tasks this worker takes, one BLAS call per product; the first overwrites a `fresh` result."""
    item = rows.data.itemsize
    sample = rows.data.dtype.type(0)
    real, imaginary = rows.data.dtype.type(re), rows.data.dtype.type(im)
    a0, b0 = np.int64(rows.data.ctypes.data), np.int64(cols.data.ctypes.data)
    c0 = np.int64(result.data.ctypes.data)
    plain, flipped = 78, 84  # 'N', 'T'
    while stop[0] == 0:
        task = take(queues, worker)
        if task < 0:
            break
        tally[worker, 0] += 1
        for cell in range(cells.task_ptr[task], cells.task_ptr[task + 1]):
            row, col, block = cells.row[cell], cells.col[cell], cells.block[cell]
            m, n = row_panels.strip_size[row], col_panels.strip_size[col]
            i0, j0 = row_panels.strip_begin[row], col_panels.strip_begin[col]
            ldc, turned = _matrix(result, block, tables)
            batches = row_panels.strip_batch[row]
            for term in range(cells.begin[cell], cells.end[cell]):
                if stop[0] != 0:
                    break
                left, right, k, _ = cells.terms[term]
                beta = sample if fresh and term == cells.begin[cell] else sample + 1
                lda, a_turned = _matrix(rows, left, row_tables)
                ldb, b_turned = _matrix(cols, right, col_tables)
                tally[worker, 1] += 1
                tally[worker, 2] += 2 * parts * parts * batches * m * n * k
                for e in range(batches):
                    a = a0 + (rows.start[left] + row_tables.batch[e] + _corner(lda, a_turned, i0, 0)) * item * parts
                    b = b0 + (cols.start[right] + col_tables.batch[e] + _corner(ldb, b_turned, j0, 0)) * item * parts
                    c = c0 + (cells.start[cell] + tables.batch[e] + _corner(ldc, turned, i0, j0)) * item * parts
                    # A row-major matrix is the column-major transpose of itself, so operands trade places.
                    if turned:
                        call_gemm(
                            sample,
                            address,
                            plain if a_turned else flipped,
                            flipped if b_turned else plain,
                            m,
                            n,
                            k,
                            real,
                            imaginary,
                            beta,
                            a,
                            lda,
                            b,
                            ldb,
                            c,
                            ldc,
                        )
                    else:
                        call_gemm(
                            sample,
                            address,
                            plain if b_turned else flipped,
                            flipped if a_turned else plain,
                            n,
                            m,
                            k,
                            real,
                            imaginary,
                            beta,
                            b,
                            ldb,
                            a,
                            lda,
                            c,
                            ldc,
                        )
            squares[cell] = _cell_squares(
                result.data, cells.start[cell], tables, batches, ldc, turned, i0, m, j0, n, parts
            )


@compiled
def _cell_squares(
    data: Any,
    start: int,
    tables: Any,
    batches: int,
    leading: int,
    turned: bool,
    i0: int,
    m: int,
    j0: int,
    n: int,
    parts: int,
) -> float:
    """Sum of the squared elements of a cell."""
    total = 0.0
    lines, length = (n, m) if turned else (m, n)
    for e in range(batches):
        for line in range(lines):
            corner = _corner(leading, turned, i0, j0 + line) if turned else _corner(leading, turned, i0 + line, j0)
            total += sum_squares(data, (start + tables.batch[e] + corner) * parts, length * parts)
    return total
