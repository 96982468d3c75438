"""Samples, their median and spread, and waiting for a quiet machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of a set of samples."""

    median: float
    """Middle value, in the samples' unit."""
    low: float
    """Smallest sample."""
    high: float
    """Largest sample."""
    count: int
    """How many samples there were."""

    def per(self, amount: float) -> Spread:
        """The spread of `amount` / sample: rates from seconds."""
        return Spread(amount / self.median, amount / self.high, amount / self.low, self.count)


def spread(samples: Sequence[float]) -> Spread:
    """Median and range of at least one sample."""
    return Spread(statistics.median(samples), min(samples), max(samples), len(samples))


def seconds_of(action: Callable[[], object]) -> float:
    """Wall time of one call; what it returned is freed after the clock stopped."""
    start = time.perf_counter()
    result = action()
    seconds = time.perf_counter() - start
    del result
    return seconds


def interleaved(actions: Mapping[str, Callable[[], object]], reps: int) -> dict[str, Spread]:
    """Time each action `reps` times, in turns so that drift of the machine meets all alike.

    One call of each comes before, untimed.
    """
    for action in actions.values():
        action()
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(reps):
        for name, action in actions.items():
            samples[name].append(seconds_of(action))
    return {name: spread(values) for name, values in samples.items()}


def busy_seconds() -> float:
    """Processor seconds that all processes together have used since the machine started."""
    ticks = [int(word) for word in STAT.read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = ticks[3], ticks[4]
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def wait_quiet(limit_seconds: float, cores: float = 0.15, window: float = 0.3) -> float:
    """Wait until others use less than `cores` processors, at most `limit_seconds`; return what they use."""
    if not STAT.exists():
        return 0.0
    end = time.monotonic() + limit_seconds
    while True:
        before, start = busy_seconds(), time.monotonic()
        time.sleep(window)
        load = (busy_seconds() - before) / (time.monotonic() - start)
        if load < cores or time.monotonic() > end:
            return load
