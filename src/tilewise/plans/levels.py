"""What a run moves into and out of each memory that it fills: this computer's, from files and generators, and devices'.

Measured figures stand beside them in `tilewise.trace.Level`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewise.costs import movement_bound_bytes
from tilewise.plans.projection import multiplications, needed_bytes, stored_uses
from tilewise.plans.work import Sum
from tilewise.trace import DEVICES, MEMORY

if TYPE_CHECKING:
    from tilewise.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Crossing:
    """What crosses into one kind of memory and out of it."""

    name: str
    """Which memory."""
    capacity_bytes: int
    """What each such memory may hold."""
    count: int
    """How many there are."""
    peak_bytes: int
    """The most that one holds."""
    in_bytes: tuple[int, ...] | None
    """Bytes of each operand that come, counted each time; None if that depends on the run."""
    needed_bytes: tuple[int, ...]
    """Bytes of each operand that are needed, counted once."""
    out_bytes: int
    """Bytes of the result that leave."""
    bound_bytes: int
    """Bytes that cross at the least, in any order of the same products."""
    stages: int
    """Phases, or holds and chunks, that the run is cut into."""

    @property
    def moved_bytes(self) -> int | None:
        """Bytes that cross both ways."""
        return None if self.in_bytes is None else sum(self.in_bytes, start=self.out_bytes)


def plan_crossings(plan: Plan) -> tuple[Crossing, ...]:
    """The memories that a plan fills, this computer's first."""
    found = []
    if plan.phases is not None and (len(plan.phases.sequence) > 1 or any(plan.phases.fetched_bytes)):
        found.append(_into_memory(plan))
    if plan.placement is not None:
        found.append(_into_devices(plan))
    return tuple(found)


def _into_memory(plan: Plan) -> Crossing:
    """Operands that are in memory do not cross; if all do, and the result too, the capacity counts."""
    phases = plan.phases
    assert phases is not None
    once = [0 if source.resident else size for source, size in zip(phases.sources, _needed_once(plan), strict=True)]
    out = plan.result_bytes if phases.spills else 0
    bound = sum(once) + out
    if phases.spills and not any(source.resident for source in phases.sources) and not isinstance(plan.work, Sum):
        capacity = max(phases.budget, 1)
        bound = movement_bound_bytes(bound, multiplications(plan), plan.dtype.itemsize, capacity, stored_uses(plan))
    return Crossing(
        name=MEMORY,
        capacity_bytes=phases.budget,
        count=1,
        peak_bytes=phases.peak_bytes,
        in_bytes=phases.fetched_bytes,
        needed_bytes=tuple(once),
        out_bytes=out,
        bound_bytes=bound,
        stages=len(phases.sequence),
    )


def _into_devices(plan: Plan) -> Crossing:
    placement = plan.placement
    assert placement is not None
    devices = placement.devices
    # Parts of a product go to the devices one after the other, each cut by itself.
    in_parts = plan.phases is not None and len(plan.phases.sequence) > 1
    return Crossing(
        name=DEVICES,
        capacity_bytes=devices.capacity,
        count=devices.count,
        peak_bytes=placement.peak_bytes,
        in_bytes=None if in_parts else placement.in_bytes,
        needed_bytes=tuple(_needed_once(plan)),
        out_bytes=placement.out_bytes,
        bound_bytes=placement.bound_bytes,
        stages=0 if in_parts else placement.stages,
    )


def _needed_once(plan: Plan) -> list[int]:
    """Bytes of the stored blocks of each operand that are needed; one tensor that is both is needed once."""
    needed = needed_bytes(plan)
    return [needed.pop(id(operand.pattern), 0) for operand in plan.operands]
