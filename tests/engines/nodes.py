"""Devices of one node, for tests of what they do by themselves."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.device.libraries import StandIn
from tilewise.engines.device.memory import Device, Neighbours
from tilewise.plans import Plan
from tilewise.plans.devices import Blocked
from tilewise.plans.routing import Cached
from tilewise.trace import DEVICES, Level, Trace

Array = npt.NDArray[Any]

SCHEDULES = ("blocked", "cache")


def device(number: int, capacity: int, neighbours: Neighbours, library: StandIn | None = None) -> Device:
    return Device(number, library or StandIn("numpy", np), capacity, 1, None, neighbours)


def not_asked() -> Array:
    raise AssertionError("a block that a neighbour has was asked for")


def device_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith(("tilewise-device", "tilewise-drive"))}


def check_devices(plan: Plan, trace: Trace, capacity: int) -> None:
    """Memory is kept, and what was done is what was planned."""
    levels = trace.of(DEVICES)
    assert (trace.flops, trace.calls, trace.tasks) == (plan.flops, plan.products, plan.tasks)
    if plan.kernel != "device":
        assert not levels
        return
    assert [level.number for level in levels] == list(range(trace.workers))
    for level in levels:
        assert level.peak_bytes <= level.projected_bytes <= level.capacity_bytes == capacity
        assert 0 <= level.neighbour_bytes <= sum(level.in_bytes)
    assert sum(level.out_blocks for level in levels) == plan.result.nnz_blocks
    assert sum(level.out_bytes for level in levels) == plan.result_bytes
    came = [tuple(map(sum, zip(*each, strict=True))) for each in zip(*map(counts, levels), strict=True)]
    if isinstance(plan.placement, Blocked):
        assert came == [plan.placement.in_blocks, plan.placement.in_bytes]
        assert sum(came[1]) + plan.result_bytes == plan.placement.moved_bytes
    else:
        assert isinstance(plan.placement, Cached)
        found = plan.placement
        assert found.bound_bytes <= sum(came[1]) + plan.result_bytes <= found.moved_bytes


def counts(level: Level) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return level.in_blocks, level.in_bytes
