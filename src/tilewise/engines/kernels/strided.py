"""The register tile for rows that are read where they lie: any distance between rows or between elements of k.

The row operand enters a register tile one element at a time, spread over a vector, so it needs no packing as long as
neighbouring elements of a line are used one after the other.  A large operand that meets few columns, such as the
integrals of a particle-particle ladder, is used where it is: packing it would cost as much as a large part of the
products.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tilewise.engines.kernels.microkernel import (
    BYTE,
    PREFETCH_READ,
    UNROLL,
    WIDEST_HALVES,
    TileBuilder,
    constant,
    declare_tiles,
)

ALONG_UNROLL = 8
"""Positions along k taken at a time where they are neighbours: a cache line of doubles."""


class StridedTileBuilder(TileBuilder):
    """Emits one register tile of fixed shape that reads rows by strides; see `multiply_strided` for its arguments."""

    prefix = "tilewise_strided"
    arguments = 9
    widths = tuple(range(1, WIDEST_HALVES + 1))

    def _emit(self) -> None:
        """A loop for neighbours along k, and one for neighbours across rows; then write the tile."""
        b = ir.IRBuilder(self.function.append_basic_block("entry"))
        row_base, row_step, k_step, col_base, length, out, lines, add, ahead = self.function.args
        places = self._places(b, out, lines)
        sums = self._sums(b)
        row, col, left = (self._variable(b, value) for value in (row_base, col_base, length))
        along, across, done = (self.function.append_basic_block(name) for name in ("along", "across", "done"))
        near = constant(self.itemsize)

        def loop(unroll: int, row_step: Any, k_step: Any, fetch_step: Any) -> None:
            def step(count: int, fetches: int) -> None:
                at, col_at = b.load(row), b.load(col)
                for i in range(fetches):
                    self._fetch(b, b.add(b.add(at, ahead), b.mul(fetch_step, constant(i))))
                for i in range(count):
                    here = b.add(at, b.mul(k_step, constant(i)))
                    rows = [b.add(here, b.mul(row_step, constant(r))) for r in range(self.rows)]
                    self._multiply_add(b, rows, b.add(col_at, constant(i * self.col_bytes)), sums)
                b.store(b.add(at, b.mul(k_step, constant(count))), row)
                b.store(b.add(col_at, constant(count * self.col_bytes)), col)
                b.store(b.sub(b.load(left), constant(count)), left)

            with self._while(b, lambda: b.icmp_signed(">=", b.load(left), constant(unroll))):
                step(unroll, min(unroll, self.rows) if unroll == ALONG_UNROLL else unroll)
            with self._while(b, lambda: b.icmp_signed(">", b.load(left), constant(0))):
                step(1, 0)
            b.branch(done)

        b.cbranch(b.icmp_signed("==", k_step, near), along, across)
        b.position_at_end(along)
        loop(ALONG_UNROLL, row_step, near, row_step)
        b.position_at_end(across)
        loop(UNROLL, near, k_step, k_step)
        b.position_at_end(done)
        self._write(b, [b.load(v) for v in sums], places, add)

    def _fetch(self, b: ir.IRBuilder, address: Any) -> None:
        b.call(self.prefetch, [b.inttoptr(address, BYTE.as_pointer()), *PREFETCH_READ])


@intrinsic
def multiply_strided(
    typingctx: Any,
    sample: Any,
    shape: Any,
    rows: Any,
    row_step: Any,
    k_step: Any,
    cols: Any,
    length: Any,
    out: Any,
    lines: Any,
    add: Any,
    ahead: Any,
) -> Any:
    """The product of rows where they lie and a packed sliver of columns, on addresses; steps are in bytes.

    `shape` = (rows - 1) * WIDEST_HALVES + halves of a vector - 1: where half a vector is left, no more is multiplied.
    `k_step` is the size of an element, or `row_step` is.  `ahead` is the distance to the rows that are multiplied
    next, which are fetched meanwhile.  For the other arguments see `microkernel.multiply_tile`.
    """
    signature = types.void(sample, *[types.int64] * 10)
    itemsize = sample.bitwidth // 8

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.call(declare_tiles(StridedTileBuilder, builder.module, itemsize), args[1:])
        return context.get_dummy_value()

    return signature, codegen
