"""The register tile: a small dense product over a list of k segments, as LLVM vector code.

A call multiplies a *sliver* of the row operand (up to ``MAX_ROWS`` rows, k by k contiguous) with a
sliver of the column operand (up to ``MAX_VECTORS`` vectors wide, k by k contiguous).  All products of
one result tile are summed in registers: the k range is a list of segments (start in the row panel, start
in the column panel, length), so that a block-sparse sum over k costs what a dense one does, whatever
the size of its blocks.  LLVM's generic vectors make one source serve every CPU that Numba compiles for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

SEGMENT_BYTES = 16
"""A segment is four int32: start in the row panel, start in the column panel, length, and a mark not read here."""

INT64 = ir.IntType(64)
INT32 = ir.IntType(32)
BYTE = ir.IntType(8)
PREFETCH_READ = tuple(ir.Constant(INT32, value) for value in (0, 2, 1))
"""Arguments of LLVM's prefetch: for reading, into the second-level cache, data."""


def _register_bytes() -> int:
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 64
    return 32 if features.get("avx2") and features.get("fma") else 16


REGISTER_BYTES = _register_bytes()
"""Bytes of one vector register of this CPU."""

# With 32 registers 8 x 2 accumulators hide the latency of the multiply-add; with 16, 6 x 2 are what fits.
MAX_ROWS = 8 if REGISTER_BYTES == 64 else 6
"""Rows of the largest register tile."""

MAX_VECTORS = 2
"""Vectors per row of the largest register tile."""

WIDEST_HALVES = 2 * MAX_VECTORS + 1 if REGISTER_BYTES == 64 else 2 * MAX_VECTORS
"""Halves of a vector per row of the largest tile of `strided`: with 32 registers there is room for 8 x 2 1/2."""

UNROLL = 4
"""Positions along k that the loop of a register tile takes at a time: less counting per position."""

LANES_4, LANES_8 = REGISTER_BYTES // 4, REGISTER_BYTES // 8
"""Elements of one vector register, for elements of four and of eight bytes."""


def lanes(itemsize: int) -> int:
    """Elements of one vector register."""
    return REGISTER_BYTES // itemsize


def declare_prefetch(module: ir.Module) -> ir.Function:
    """LLVM's prefetch; called with an address and `PREFETCH_READ`."""
    name = "llvm.prefetch.p0"
    if name in module.globals:
        return module.globals[name]
    kind = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), INT32, INT32, INT32])
    return ir.Function(module, kind, name)


def constant(value: int) -> ir.Constant:
    """An integer, as an argument of instructions."""
    return ir.Constant(INT64, value)


class TileBuilder:
    """Emits one register tile of fixed shape as an LLVM function."""

    prefix: ClassVar[str] = "tilewise_tile"
    """What the names of its functions begin with."""
    arguments: ClassVar[int] = 9
    """How many arguments they take, integers all."""
    widths: ClassVar[tuple[int, ...]] = tuple(range(2, 2 * MAX_VECTORS + 1, 2))
    """How wide their tiles are, in halves of a vector; slivers of columns are whole vectors all the same."""

    def __init__(self, module: ir.Module, itemsize: int, rows: int, halves: int) -> None:
        self.rows, self.vectors, self.itemsize = rows, (halves + 1) // 2, itemsize
        self.lanes = lanes(itemsize)
        self.col_bytes = self.vectors * self.lanes * itemsize
        self.element = ir.DoubleType() if itemsize == 8 else ir.FloatType()
        last = self.lanes // 2 if halves % 2 else self.lanes
        self.kinds = [ir.VectorType(self.element, self.lanes)] * (self.vectors - 1) + [
            ir.VectorType(self.element, last)
        ]
        self.fma = {kind.count: self._declare_fma(module, kind) for kind in self.kinds}
        self.prefetch = declare_prefetch(module)
        name = f"{self.prefix}_{itemsize}_{rows}_{halves}"
        kind = ir.FunctionType(ir.VoidType(), [INT64] * self.arguments)
        self.function = ir.Function(module, kind, name)
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        self._emit()

    def _declare_fma(self, module: ir.Module, kind: ir.VectorType) -> ir.Function:
        name = f"llvm.fma.v{kind.count}f{8 * self.itemsize}"
        if name in module.globals:
            return module.globals[name]
        return ir.Function(module, ir.FunctionType(kind, [kind] * 3), name)

    def _emit(self) -> None:
        """For each segment, for each k: multiply-add; then write the tile.  LLVM turns the variables into registers."""
        b = ir.IRBuilder(self.function.append_basic_block("entry"))
        row_base, col_base, segments, count, out, lines, add, ahead, fetch_cols = self.function.args
        places = self._places(b, out, lines)
        row_bytes, col_bytes = self.rows * self.itemsize, self.col_bytes
        columns_next = b.icmp_signed("!=", fetch_cols, constant(0))
        fetch_bytes = b.select(columns_next, constant(col_bytes), constant(row_bytes))
        sums = self._sums(b)
        row, col, fetch, left = (self._variable(b, constant(0)) for _ in range(4))
        segment = self._variable(b, segments)
        end = b.add(segments, b.mul(count, constant(SEGMENT_BYTES)))

        def step(count: int) -> None:
            """Multiply-add `count` positions of k."""
            for i in range(count):
                ahead_of, row_at, col_at = (
                    b.add(b.load(variable), b.mul(each, constant(i)))
                    for variable, each in ((fetch, fetch_bytes), (row, constant(row_bytes)), (col, constant(col_bytes)))
                )
                b.call(self.prefetch, [b.inttoptr(ahead_of, BYTE.as_pointer()), *PREFETCH_READ])
                rows = [b.add(row_at, constant(r * self.itemsize)) for r in range(self.rows)]
                self._multiply_add(b, rows, col_at, sums)
            bytes_of = ((row, constant(row_bytes)), (col, constant(col_bytes)), (fetch, fetch_bytes))
            for variable, each in (*bytes_of, (left, constant(-1))):
                b.store(b.add(b.load(variable), b.mul(each, constant(count))), variable)

        with self._while(b, lambda: b.icmp_signed("<", b.load(segment), end)):
            row_at, col_at, length = self._segment(b, b.load(segment))
            b.store(b.add(row_base, b.mul(row_at, constant(row_bytes))), row)
            b.store(b.add(col_base, b.mul(col_at, constant(col_bytes))), col)
            b.store(b.add(b.select(columns_next, b.load(col), b.load(row)), ahead), fetch)
            b.store(length, left)
            with self._while(b, lambda: b.icmp_signed(">=", b.load(left), constant(UNROLL))):
                step(UNROLL)
            with self._while(b, lambda: b.icmp_signed(">", b.load(left), constant(0))):
                step(1)
            b.store(b.add(b.load(segment), constant(SEGMENT_BYTES)), segment)
        self._write(b, [b.load(v) for v in sums], places, add)

    def _sums(self, b: ir.IRBuilder) -> list[Any]:
        """The elements of the tile, vector by vector, as zeros."""
        zeros = [ir.Constant(kind, [0.0] * kind.count) for kind in self.kinds]
        return [self._variable(b, zero) for _ in range(self.rows) for zero in zeros]

    @staticmethod
    def _variable(b: ir.IRBuilder, value: Any) -> Any:
        at = b.alloca(value.type)
        b.store(value, at)
        return at

    @contextmanager
    def _while(self, b: ir.IRBuilder, condition: Callable[[], Any]) -> Iterator[None]:
        """A loop around the code of a with statement."""
        test, body, after = (self.function.append_basic_block(n) for n in ("test", "body", "after"))
        b.branch(test)
        b.position_at_end(test)
        b.cbranch(condition(), body, after)
        b.position_at_end(body)
        yield
        b.branch(test)
        b.position_at_end(after)

    def _places(self, b: ir.IRBuilder, out: Any, lines: Any) -> list[Any]:
        """Where the rows of the tile go; they are on their way to the cache while the tile is computed."""
        table = b.inttoptr(lines, INT64.as_pointer())
        item = constant(self.itemsize)
        places = [b.add(out, b.mul(b.load(b.gep(table, [constant(r)])), item)) for r in range(self.rows)]
        end = constant((sum(kind.count for kind in self.kinds) - 1) * self.itemsize)
        for place in places:
            b.call(self.prefetch, [b.inttoptr(b.add(place, end), BYTE.as_pointer()), *PREFETCH_READ])
        return places

    def _write(self, b: ir.IRBuilder, sums: list[Any], places: list[Any], add: Any) -> None:
        """Store the tile, or add it to what is there."""
        storing, adding = (self.function.append_basic_block(n) for n in ("store", "add"))
        b.cbranch(b.icmp_signed("==", add, constant(0)), storing, adding)
        for block, old in ((storing, False), (adding, True)):
            b.position_at_end(block)
            for i, value in enumerate(sums):
                address, number = places[i // self.vectors], i % self.vectors
                self._store(b, b.fadd(self._load(b, address, number), value) if old else value, address, number)
            b.ret_void()

    @staticmethod
    def _segment(b: ir.IRBuilder, address: Any) -> list[Any]:
        at = b.inttoptr(address, INT32.as_pointer())
        return [b.sext(b.load(b.gep(at, [constant(i)])), INT64) for i in range(3)]

    def _multiply_add(self, b: ir.IRBuilder, rows: list[Any], col: Any, sums: list[Any]) -> None:
        """One position of k: an element of each row times the vectors of the columns."""
        columns = [self._load(b, col, v) for v in range(self.vectors)]
        undefined = ir.Constant(self.kinds[0], ir.Undefined)
        for r, row in enumerate(rows):
            scalar = b.load(b.inttoptr(row, self.element.as_pointer()))
            first = b.insert_element(undefined, scalar, ir.Constant(INT32, 0))
            for v, (column, kind) in enumerate(zip(columns, self.kinds, strict=True)):
                everywhere = ir.Constant(ir.VectorType(INT32, kind.count), [0] * kind.count)
                spread = b.shuffle_vector(first, undefined, everywhere)
                total = sums[r * self.vectors + v]
                b.store(b.call(self.fma[kind.count], [spread, column, b.load(total)]), total)

    def _place(self, b: ir.IRBuilder, address: Any, number: int) -> Any:
        """Where a vector of a line is."""
        offset = constant(number * self.lanes * self.itemsize)
        return b.inttoptr(b.add(address, offset), self.kinds[number].as_pointer())

    def _load(self, b: ir.IRBuilder, address: Any, number: int) -> Any:
        value = b.load(self._place(b, address, number))
        value.align = self.itemsize
        return value

    def _store(self, b: ir.IRBuilder, value: Any, address: Any, number: int) -> None:
        done = b.store(value, self._place(b, address, number))
        done.align = self.itemsize


def declare_tiles(builder: type[TileBuilder], module: ir.Module, itemsize: int) -> ir.Function:
    """A function that switches over the register tiles of all shapes; its first argument is the shape."""
    name = f"{builder.prefix}s_{itemsize}"
    if name in module.globals:
        return module.globals[name]
    tiles = [
        builder(module, itemsize, rows, halves).function for rows in range(1, MAX_ROWS + 1) for halves in builder.widths
    ]
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), [INT64] * (1 + builder.arguments)), name)
    fn.linkage = "internal"
    entry, end = fn.append_basic_block("entry"), fn.append_basic_block("end")
    b = ir.IRBuilder(entry)
    switch = b.switch(fn.args[0], end)
    for number, tile in enumerate(tiles):
        block = fn.append_basic_block(f"tile{number}")
        switch.add_case(constant(number), block)
        b.position_at_end(block)
        b.call(tile, fn.args[1:])
        b.branch(end)
    b.position_at_end(end)
    b.ret_void()
    return fn


@intrinsic
def multiply_tile(
    typingctx: Any,
    sample: Any,
    shape: Any,
    rows: Any,
    cols: Any,
    segments: Any,
    count: Any,
    out: Any,
    lines: Any,
    add: Any,
    ahead: Any,
    fetch_cols: Any,
) -> Any:
    """The sum over segments of rows^T cols on addresses; `shape` = (rows - 1) * MAX_VECTORS + vectors - 1.

    `sample` is a value of the element type, float32 or float64; only its type is used.  Row r of the tile is
    stored at `out` plus the r-th int64 at `lines` (in reals), or added to what is there if `add` is not zero.
    `ahead` is the distance in bytes from this sliver of rows to the one that is multiplied next, which is
    fetched meanwhile; from this sliver of columns to the next if `fetch_cols` is not zero.
    """
    signature = types.void(sample, *[types.int64] * 10)
    itemsize = sample.bitwidth // 8

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.call(declare_tiles(TileBuilder, builder.module, itemsize), args[1:])
        return context.get_dummy_value()

    return signature, codegen
