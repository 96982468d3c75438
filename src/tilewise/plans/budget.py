"""Memory budgets: what a user asks for, and what there is."""

from __future__ import annotations

import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from tilewise.errors import InputError
from tilewise.machine import host_memory

VARIABLE = "TILEWISE_MEMORY"
"""Environment variable with the budget of calls that name none."""

SHARE = 0.8
"""Share of the free memory that a call may take by default."""

MOST = 1 << 62
"""More than any computer has."""

UNITS = {"": 1, "B": 1} | {
    f"{prefix}{unit}": base ** (power + 1)
    for power, prefix in enumerate("KMGTP")
    for unit, base in (("B", 10**3), ("iB", 2**10))
}
"""Bytes of each unit: GB = 10^9, GiB = 2^30."""


def parse_memory(memory: Any, option: str = "memory") -> int:
    """Bytes of a budget: an integer, a string with a unit, or None for what the environment or the machine gives."""
    if not is_asked(memory):
        return default_budget()
    if memory is None:
        given = os.environ[VARIABLE]
        return _parse(given, f"{VARIABLE}={given!r}")
    return _parse(memory, f"{option}={memory!r:.40}")


def is_asked(memory: Any) -> bool:
    """Whether a budget was named, in the call or in the environment."""
    return memory is not None or bool(os.environ.get(VARIABLE, "").strip())


def no_budget() -> int | None:
    """What `memory` is in calls that are part of a larger one: not what the environment gives to calls of a user."""
    return MOST if is_asked(None) else None


def budget_of(memory: Any, ranks_per_node: int) -> int:
    """Bytes that a rank may hold; what is free on a node is divided among its ranks."""
    return parse_memory(memory) if is_asked(memory) else parse_memory(None) // ranks_per_node


def _parse(memory: Any, what: str) -> int:
    size = -1
    if isinstance(memory, (int, np.integer)) and not isinstance(memory, bool):
        size = min(int(memory), MOST)
    elif isinstance(memory, str) and (found := re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", memory)):
        unit = {name.lower(): bytes_ for name, bytes_ in UNITS.items()}.get(found[2].lower(), 0)
        size = min(int(Decimal(found[1]) * unit), MOST) if unit else -1
    if size < 0:
        raise InputError(
            f"{what} is no amount of memory. Expected bytes as an integer, or a string such as '4GB' (10^9) or '4GiB' "
            "(2^30). Correct it."
        )
    return size


def default_budget() -> int:
    """Most of the memory that this process could get now."""
    return int(SHARE * free_memory())


def free_memory() -> int:
    """Bytes that the system or the container has left; half of all memory where it does not say."""
    free = _host_free()
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            left = int(Path(limit).read_text()) - int(Path(used).read_text())
        except (OSError, ValueError):
            continue
        free = min(free, max(left, 0))
    return free


def _host_free() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return host_memory() // 2 or 1 << 62
