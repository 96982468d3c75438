"""Vector moves on addresses: the copies that packing is made of, one register at a time."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tilewise.engines.kernels.microkernel import BYTE, PREFETCH_READ, declare_prefetch, lanes

LINE_BYTES = 64
"""Bytes that one prefetch brings."""


def _pointer(builder: Any, address: Any, element: Any, width: int) -> Any:
    return builder.inttoptr(address, ir.VectorType(element, width).as_pointer())


def _element(sample: Any) -> Any:
    return ir.DoubleType() if sample.bitwidth == 64 else ir.FloatType()


@intrinsic
def copy_vector(typingctx: Any, sample: Any, target: Any, source: Any) -> Any:
    """Copy one register's worth of elements of `sample`'s type between two addresses."""
    signature = types.void(sample, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element, size = _element(sample), sample.bitwidth // 8
        value = builder.load(_pointer(builder, args[2], element, lanes(size)))
        value.align = size
        builder.store(value, _pointer(builder, args[1], element, lanes(size))).align = size
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def add_vector(typingctx: Any, sample: Any, target: Any, source: Any) -> Any:
    """Add one register's worth of elements at `source` to those at `target`."""
    signature = types.void(sample, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element, size = _element(sample), sample.bitwidth // 8
        at = _pointer(builder, args[1], element, lanes(size))
        old, new = builder.load(at), builder.load(_pointer(builder, args[2], element, lanes(size)))
        old.align = new.align = size
        builder.store(builder.fadd(old, new), at).align = size
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def transpose_vectors(
    typingctx: Any, sample: Any, target: Any, target_stride: Any, source: Any, source_stride: Any
) -> Any:
    """Transpose a square of one register's width; strides are in bytes.

    Row i of the square lies at ``source + i * source_stride``; its column i goes to
    ``target + i * target_stride``.
    """
    signature = types.void(sample, *[types.int64] * 4)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(sample, types.Complex):  # never reached, but compiled: callers ask whether elements are real
            return context.get_dummy_value()
        _, target, target_stride, source, source_stride = args
        element, size = _element(sample), sample.bitwidth // 8
        rows = _load_rows(builder, element, size, source, source_stride)
        for i, value in enumerate(_transposed(builder, rows)):
            builder.store(value, _row(builder, element, size, target, target_stride, i)).align = size
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def add_transposed_vectors(
    typingctx: Any, factor: Any, target: Any, target_stride: Any, source: Any, source_stride: Any
) -> Any:
    """Add `factor` times the transpose of a square of one register's width; see `transpose_vectors`."""
    signature = types.void(factor, *[types.int64] * 4)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(factor, types.Complex):  # never reached, but compiled: callers ask whether elements are real
            return context.get_dummy_value()
        scale, target, target_stride, source, source_stride = args
        element, size = _element(factor), factor.bitwidth // 8
        kind = ir.VectorType(element, lanes(size))
        spread = ir.Constant(kind, ir.Undefined)
        for i in range(lanes(size)):
            spread = builder.insert_element(spread, scale, ir.Constant(ir.IntType(32), i))
        rows = _load_rows(builder, element, size, source, source_stride)
        for i, value in enumerate(_transposed(builder, rows)):
            at = _row(builder, element, size, target, target_stride, i)
            old = builder.load(at)
            old.align = size
            builder.store(builder.fadd(old, builder.fmul(value, spread)), at).align = size
        return context.get_dummy_value()

    return signature, codegen


def _row(builder: Any, element: Any, size: int, address: Any, stride: Any, number: int) -> Any:
    at = builder.add(address, builder.mul(stride, ir.Constant(ir.IntType(64), number)))
    return _pointer(builder, at, element, lanes(size))


def _load_rows(builder: Any, element: Any, size: int, address: Any, stride: Any) -> list[Any]:
    rows = []
    for i in range(lanes(size)):
        value = builder.load(_row(builder, element, size, address, stride, i))
        value.align = size
        rows.append(value)
    return rows


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """log2(width) rounds, each swapping the off-diagonal halves of 2x2 squares of growing size."""
    width, half = len(rows), 1
    while half < width:
        rows = list(rows)
        for i in range(width):
            if i & half:
                continue
            low, high = rows[i], rows[i + half]
            keep = [j if not j & half else width + j - half for j in range(width)]
            swap = [j + half if not j & half else width + j for j in range(width)]
            rows[i] = _shuffle(builder, low, high, keep)
            rows[i + half] = _shuffle(builder, low, high, swap)
        half *= 2
    return rows


def _shuffle(builder: Any, low: Any, high: Any, lanes_of: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes_of)), lanes_of)
    return builder.shuffle_vector(low, high, mask)


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at an address."""
    signature = types.void(types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], BYTE.as_pointer())
        builder.call(declare_prefetch(builder.module), [pointer, *PREFETCH_READ])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def sum_squares(typingctx: Any, sample: Any, address: Any, count: Any) -> Any:
    """The sum of the squares of `count` neighbouring elements, in double precision."""
    signature = types.float64(sample, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = _square_summer(builder.module, _element(sample), sample.bitwidth // 8)
        return builder.call(function, args[1:])

    return signature, codegen


def _square_summer(module: Any, element: Any, size: int) -> Any:
    """A function (address, count) -> double: whole vectors first, then one by one."""
    name = f"tilewise_squares_{size}"
    if name in module.globals:
        return module.globals[name]
    double, int64, width = ir.DoubleType(), ir.IntType(64), lanes(size)
    wide = ir.VectorType(double, width)
    fn = ir.Function(module, ir.FunctionType(double, [int64, int64]), name)
    fn.linkage = "internal"
    entry, body, between, tail, done = (fn.append_basic_block(n) for n in ("entry", "body", "between", "tail", "done"))
    b = ir.IRBuilder(entry)
    address, count = fn.args
    zero, step = ir.Constant(int64, 0), ir.Constant(int64, width)
    nothing = ir.Constant(wide, [0.0] * width)
    b.cbranch(b.icmp_signed(">=", count, step), body, between)

    b.position_at_end(body)
    at, sums = b.phi(int64), b.phi(wide)
    value = b.load(_pointer(b, b.add(address, b.mul(at, ir.Constant(int64, size))), element, width))
    value.align = size
    value = value if size == 8 else b.fpext(value, wide)
    new, following = b.fadd(sums, b.fmul(value, value)), b.add(at, step)
    at.add_incoming(zero, entry)
    at.add_incoming(following, body)
    sums.add_incoming(nothing, entry)
    sums.add_incoming(new, body)
    b.cbranch(b.icmp_signed("<=", b.add(following, step), count), body, between)

    b.position_at_end(between)
    start, total = b.phi(int64), b.phi(wide)
    for phi, first, later in ((start, zero, following), (total, nothing, new)):
        phi.add_incoming(first, entry)
        phi.add_incoming(later, body)
    whole = ir.Constant(double, 0.0)
    for i in range(width):
        whole = b.fadd(whole, b.extract_element(total, ir.Constant(ir.IntType(32), i)))
    b.cbranch(b.icmp_signed("<", start, count), tail, done)

    b.position_at_end(tail)
    i, part = b.phi(int64), b.phi(double)
    single = b.load(b.inttoptr(b.add(address, b.mul(i, ir.Constant(int64, size))), element.as_pointer()))
    single = single if size == 8 else b.fpext(single, double)
    more, nxt = b.fadd(part, b.fmul(single, single)), b.add(i, ir.Constant(int64, 1))
    i.add_incoming(start, between)
    i.add_incoming(nxt, tail)
    part.add_incoming(whole, between)
    part.add_incoming(more, tail)
    b.cbranch(b.icmp_signed("<", nxt, count), tail, done)

    b.position_at_end(done)
    result = b.phi(double)
    result.add_incoming(whole, between)
    result.add_incoming(more, tail)
    b.ret(result)
    return fn
