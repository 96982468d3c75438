"""Workers: threads that run one compiled loop together and stop when the main thread is interrupted."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.plans.aside import run_aside

Loop = Callable[[int, npt.NDArray[np.int64], npt.NDArray[np.int64]], None]
"""``loop(worker, queues, stop)`` runs tasks from the queues until they are empty or ``stop[0]`` is set."""

SERIAL_FLOPS = 2e5
"""Work that is done before another thread has woken up."""


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """A pool of threads of ours; compiled loops run on them without the interpreter lock."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def run(self, loop: Loop, weights: npt.NDArray[np.float64]) -> None:
        """Run tasks ``0 .. len(weights) - 1``: a contiguous share of the weight to each worker, then stealing."""
        stop = np.zeros(1, np.int64)
        if float(weights.sum()) < SERIAL_FLOPS:
            # Here, and not to be hit by Ctrl-C: the first call loads or compiles the loop, which may not end half-way.
            run_aside(lambda _: loop(0, share(weights, 1), stop), short=True)
            return
        queues = share(weights, self.count)
        futures = [self._threads().submit(loop, worker, queues, stop) for worker in range(self.count)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            # After an interrupt or an error the others stop at their next cell.
            stop[0] = 1
            wait(futures)
        for future in futures:
            future.result()

    def _threads(self) -> ThreadPoolExecutor:
        """The pool; a forked process has none of its parent's threads and needs its own."""
        if self._pool is None or self._process != os.getpid():
            self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="tilewise")
            self._process = os.getpid()
        return self._pool


def share(weights: npt.NDArray[np.float64], count: int) -> npt.NDArray[Any]:
    """One queue word per worker: first task in the low half, one past the last in the high half."""
    total = np.concatenate([[0.0], np.cumsum(weights)])
    cuts = np.searchsorted(total, np.linspace(0.0, total[-1], count + 1)[1:-1])
    ends = np.concatenate([[0], cuts, [len(weights)]]).astype(np.int64)
    ends = np.maximum.accumulate(ends)
    return (ends[1:] << 32) | ends[:-1]
