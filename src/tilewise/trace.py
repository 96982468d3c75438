"""`Trace`: what happened in a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trace:
    """Measured figures of one run of one plan."""

    label: str
    """The step as an einsum string."""
    seconds: float
    """Wall time of the run, packing and permutation included."""
    packing_seconds: float
    """Wall time of packing the row operand, part of `seconds`."""
    flops: int
    """Floating-point operations done."""
    tasks: int
    """Pieces of work handed to workers."""
    calls: int
    """Dense products (or block sums) done."""
    workers: int
    """Workers that shared the work."""
    buffer_bytes: int
    """Bytes of the result and all buffers that were allocated."""
    library: str
    """What multiplied: our register tile, or the BLAS in use."""
