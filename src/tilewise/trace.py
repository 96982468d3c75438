"""`Trace`: what happened in a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

MEMORY = "memory of this computer"
"""The level that is filled from files and by generators."""

DEVICES = "devices"
"""The level that is filled from the memory of this computer."""


@dataclass(frozen=True, slots=True)
class Level:
    """What crossed into one memory and out of it, and how much lay there: of this computer, or of a device."""

    name: str
    """Which kind of memory: `MEMORY` or `DEVICES`."""
    number: int
    """Which of them."""
    capacity_bytes: int
    """What it may hold."""
    projected_bytes: int
    """The most that it would hold, as planned."""
    peak_bytes: int
    """The most that it held."""
    in_blocks: tuple[int, ...]
    """Blocks of each operand that came, counted each time."""
    in_bytes: tuple[int, ...]
    """Bytes of each operand that came, counted each time."""
    neighbour_bytes: int
    """Those of them that came from another device."""
    out_blocks: int
    """Result blocks that left."""
    out_bytes: int
    """Bytes of the result that left."""
    transfer_seconds: float
    """Time in which something came or left."""
    compute_seconds: float
    """Time in which something was computed."""
    overlap_seconds: float
    """Time in which both went on."""

    @property
    def waited_seconds(self) -> float:
        """Time in which something came or left and nothing was computed."""
        return self.transfer_seconds - self.overlap_seconds

    @property
    def hidden(self) -> float:
        """The share of the shorter of transfer and compute that went on beside the other."""
        shorter = min(self.transfer_seconds, self.compute_seconds)
        return self.overlap_seconds / shorter if shorter > 0 else 1.0


@dataclass(frozen=True, slots=True)
class RankTrace:
    """What one rank did in a run that several shared."""

    flops: int
    """Floating-point operations done."""
    inside_bytes: int
    """Bytes that it read of other ranks of its node, or that another rank of it brought there."""
    between_bytes: int
    """Bytes that it got from other nodes."""
    messages: int
    """Messages that it got from other nodes."""
    tickets: int
    """Draws from counters that ranks share."""
    peak_bytes: int
    """The most that it held of what the run added."""
    spans: tuple[tuple[str, float, float], ...]
    """What it did when: ``compute``, ``fetch``, ``wait`` or ``add``; begin and end in seconds since the ranks met."""

    def seconds(self, what: str) -> float:
        """Time in one of them."""
        return sum(end - begin for name, begin, end in self.spans if name == what)


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
    phases: int = 1
    """Phases that the run was cut into."""
    ranks: tuple[RankTrace, ...] = ()
    """What each rank did; empty if one did it all."""
    block_seconds: npt.NDArray[np.float64] | None = field(default=None, compare=False)
    """What each result block took, for ``balancer="measured"``; else None."""
    levels: tuple[Level, ...] = ()
    """What crossed into each memory that was filled for the run; empty if everything was there."""

    def of(self, name: str) -> tuple[Level, ...]:
        """The levels of one kind: `MEMORY` or `DEVICES`."""
        return tuple(level for level in self.levels if level.name == name)


def added(levels: Iterable[Level]) -> tuple[Level, ...]:
    """One level for each memory, from those of the parts of a run that came one after the other."""
    found: dict[tuple[str, int], Level] = {}
    for level in levels:
        before = found.get((level.name, level.number))
        found[level.name, level.number] = level if before is None else _sum(before, level)
    return tuple(found.values())


def _sum(first: Level, second: Level) -> Level:
    return replace(
        second,
        projected_bytes=max(first.projected_bytes, second.projected_bytes),
        peak_bytes=max(first.peak_bytes, second.peak_bytes),
        in_blocks=tuple(map(sum, zip(first.in_blocks, second.in_blocks, strict=True))),
        in_bytes=tuple(map(sum, zip(first.in_bytes, second.in_bytes, strict=True))),
        neighbour_bytes=first.neighbour_bytes + second.neighbour_bytes,
        out_blocks=first.out_blocks + second.out_blocks,
        out_bytes=first.out_bytes + second.out_bytes,
        transfer_seconds=first.transfer_seconds + second.transfer_seconds,
        compute_seconds=first.compute_seconds + second.compute_seconds,
        overlap_seconds=first.overlap_seconds + second.overlap_seconds,
    )
