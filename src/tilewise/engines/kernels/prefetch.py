"""Asking for memory before it is needed, where the processor cannot guess what comes next."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def prefetch(typingctx: Any, array: Any, i: Any) -> Any:
    """Begin to bring ``array[i]`` into the caches; the index need not be within the array."""
    signature = types.void(array, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(array)(context, builder, args[0])
        address = builder.bitcast(cgutils.gep(builder, view.data, args[1]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(function, [address, read, keep, data])
        return context.get_dummy_value()

    return signature, codegen
