"""Queues of a device: operations in order, each after the events it depends on.

An event is the future of an operation.  Nothing waits for a queue as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tilewise.engines.spans import Span


class Queue:
    """One thread that does operations in the order in which they were handed in.

    Parameters
    ----------
    name : str
        Name of the thread.
    context : callable
        Makes the context in which an operation runs, see `Library.queue`.

    Attributes
    ----------
    spans : list of Span
        When it was busy.
    """

    def __init__(self, name: str, context: Callable[[], Any]) -> None:
        self.spans: list[Span] = []
        self._context = context
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, work: Callable[[], Any], after: Iterable[Future[Any]] = ()) -> Future[Any]:
        """Hand in an operation that begins once the events in `after` are past; returns its own event."""
        return self._pool.submit(self._run, work, tuple(after))

    def _run(self, work: Callable[[], Any], after: tuple[Future[Any], ...]) -> Any:
        for event in after:
            event.result()
        begin = time.perf_counter()
        with self._context():
            made = work()
        self.spans.append((begin, time.perf_counter()))
        return made

    def cancel(self) -> None:
        """Forget what has not begun, and take nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Cancel, and wait for the operation that has begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)
