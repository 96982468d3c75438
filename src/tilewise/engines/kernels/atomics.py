"""Work queues shared by threads without locks: an atomic exchange on plain NumPy arrays.

A queue is one int64: the next task to take from the front in the low half, one past the last task in
the high half.  The owner takes from the front, thieves take from the back, so that what a worker has in
its caches stays its own.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tilewise.engines.kernels.compile import compiled

HALF = 32
"""Bits of each half of a queue word."""

LOW = (1 << HALF) - 1
"""Mask of the low half."""


@intrinsic
def _exchange(typingctx: Any, array: Any, i: Any, expected: Any, new: Any) -> Any:
    """Compare-and-swap ``array[i]``; true where it took place."""
    signature = types.boolean(array, types.int64, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(array)(context, builder, args[0])
        address = cgutils.gep(builder, view.data, args[1])
        done = builder.cmpxchg(address, args[2], args[3], "acq_rel", "monotonic")
        return context.cast(builder, builder.extract_value(done, 1), types.boolean, types.boolean)

    return signature, codegen


@compiled
def take(queues: Any, worker: int) -> int:
    """The worker's next task, else one stolen from the fullest other queue, else -1."""
    while True:
        word = queues[worker]
        front, back = word & LOW, word >> HALF
        if front >= back:
            break
        if _exchange(queues, worker, word, (back << HALF) | (front + 1)):
            return front
    while True:
        victim, most, word = -1, 0, 0
        for other in range(len(queues)):
            seen = queues[other]
            left = (seen >> HALF) - (seen & LOW)
            if left > most:
                victim, most, word = other, left, seen
        if victim < 0:
            return -1
        front, back = word & LOW, word >> HALF
        if _exchange(queues, victim, word, ((back - 1) << HALF) | front):
            return back - 1
