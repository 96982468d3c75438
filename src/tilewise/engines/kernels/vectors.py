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
    typingctx: Any, factor: Any, target: Any, target_stride: Any, source: Any, source_stride: Any
) -> Any:
    """Store `factor` times the transpose of a square of one register's width; strides are in bytes.

    Row i of the square lies at ``source + i * source_stride``; its column i goes to
    ``target + i * target_stride``.
    """
    return _transposition(factor, add=False)


@intrinsic
def add_transposed_vectors(
    typingctx: Any, factor: Any, target: Any, target_stride: Any, source: Any, source_stride: Any
) -> Any:
    """Add `factor` times the transpose of a square of one register's width; see `transpose_vectors`."""
    return _transposition(factor, add=True)


def _transposition(factor: Any, add: bool) -> Any:
    """Signature and code of a transposition that stores or adds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(factor, types.Complex):  # never reached, but compiled: callers ask whether elements are real
            return context.get_dummy_value()
        scale, target, target_stride, source, source_stride = args
        element, size = _element(factor), factor.bitwidth // 8
        spread = ir.Constant(ir.VectorType(element, lanes(size)), ir.Undefined)
        for i in range(lanes(size)):
            spread = builder.insert_element(spread, scale, ir.Constant(ir.IntType(32), i))
        rows = _load_rows(builder, element, size, source, source_stride)
        for i, value in enumerate(_transposed(builder, rows)):
            at, new = _row(builder, element, size, target, target_stride, i), builder.fmul(value, spread)
            if add:
                old = builder.load(at)
                old.align = size
                new = builder.fadd(old, new)
            builder.store(new, at).align = size
        return context.get_dummy_value()

    return types.void(factor, *[types.int64] * 4), codegen


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
