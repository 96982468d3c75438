"""What a run moves into and out of each memory that it fills: this computer's, from files and generators, and devices'.

Measured figures stand beside them in `tilewise.trace.Level`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewise.costs import movement_bound_bytes
from tilewise.errors import MemoryBudgetError
from tilewise.plans.projection import multiplications, needed_bytes, stored_uses
from tilewise.plans.work import Sum
from tilewise.trace import DEVICES, MEMORY, Level

if TYPE_CHECKING:
    from tilewise.plans.devices import Blocked
    from tilewise.plans.plan import Plan
    from tilewise.plans.routing import Cached


MOST_PARTS = 32
"""Phases that are cut for devices just to say what would cross; where there are more, a run shows it."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """What crosses into one kind of memory and out of it."""

    name: str
    """Which memory."""
    capacity_bytes: int
    """What each such memory may hold."""
    count: int
    """How many there are."""
    peak_bytes: int | None
    """The most that one holds; None if that is not known before a run."""
    in_bytes: tuple[int, ...] | None
    """Bytes of each operand that come, counted each time; None if that depends on the run."""
    needed_bytes: tuple[int, ...]
    """Bytes of each operand that are needed, counted once."""
    out_bytes: int | None
    """Bytes of the result that leave; None if that depends on the run."""
    bound_bytes: int
    """Bytes that cross at the least, in any order of the same products."""
    stages: int
    """Phases, or holds and chunks, that the run is cut into."""

    @property
    def moved_bytes(self) -> int | None:
        """Bytes that cross both ways."""
        return None if self.in_bytes is None or self.out_bytes is None else sum(self.in_bytes, start=self.out_bytes)


def plan_crossings(plan: Plan) -> list[tuple[Crossing, tuple[Level, ...]]]:
    """The memories that a plan fills, each with what its latest run measured; those that only the run filled last."""
    planned = []
    if plan.phases is not None and (len(plan.phases.sequence) > 1 or any(plan.phases.fetched_bytes)):
        planned.append(_into_memory(plan))
    if plan.placement is not None:
        planned.append(_into_devices(plan))
    trace = plan.runs[-1] if plan.runs else None
    measured = {name: trace.of(name) for name in (MEMORY, DEVICES)} if trace is not None else {}
    found = []
    for crossing in planned:
        levels = measured.get(crossing.name, ())
        fits = len(levels) == crossing.count and levels[0].capacity_bytes == crossing.capacity_bytes
        found.append((crossing, measured.pop(crossing.name) if fits else ()))
    found += [(_not_planned(plan, levels), levels) for levels in measured.values() if levels]
    return found


def _not_planned(plan: Plan, levels: Sequence[Level]) -> Crossing:
    """What a run filled although the plan was made for other memories."""
    return Crossing(
        name=levels[0].name,
        capacity_bytes=levels[0].capacity_bytes,
        count=len(levels),
        peak_bytes=None,
        in_bytes=None,
        needed_bytes=tuple(_needed_once(plan)),
        out_bytes=None,
        bound_bytes=0,
        stages=0,
    )


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
    devices, parts = placement.devices, _placed_parts(plan, placement)
    ins = [part.in_bytes for part in parts]
    return Crossing(
        name=DEVICES,
        capacity_bytes=devices.capacity,
        count=devices.count,
        peak_bytes=max(part.peak_bytes for part in parts) if parts else None,
        in_bytes=tuple(map(sum, zip(*ins, strict=True))) if parts and None not in ins else None,
        needed_bytes=tuple(_needed_once(plan)),
        out_bytes=sum(part.out_bytes for part in parts) if parts else None,
        bound_bytes=placement.bound_bytes,
        stages=sum(part.stages for part in parts),
    )


def _placed_parts(plan: Plan, placement: Blocked | Cached) -> Sequence[Blocked | Cached]:
    """How a product goes to the devices: phase by phase, each cut by itself; empty if a run has to show that."""
    # Here, since plans explain themselves and these modules make plans.
    from tilewise.plans.devices import Blocked, plan_blocked
    from tilewise.plans.inspector import inspect_part

    if plan.phases is None or len(plan.phases.sequence) < 2:
        return [placement]
    if not isinstance(placement, Blocked) or len(plan.phases.sequence) > MOST_PARTS:
        return []
    try:
        return [plan_blocked(inspect_part(plan, *phase.blocks), placement.devices) for phase in plan.phases.sequence]
    except MemoryBudgetError:
        return []


def _needed_once(plan: Plan) -> list[int]:
    """Bytes of the stored blocks of each operand that are needed; one tensor that is both is needed once."""
    needed = needed_bytes(plan)
    return [needed.pop(id(operand.pattern), 0) for operand in plan.operands]
