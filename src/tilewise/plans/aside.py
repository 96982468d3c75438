"""Planning that Ctrl-C can neither hit half-way nor has to wait for.

A signal that comes while a compiled loop runs is handled when the loop hands over its results: the interpreter would
run the handler between two of them, and if that raises, lose the rest or its life.  Short planning puts signals off
until it is done; long planning has a thread of its own, which signals never reach, and is given up.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Stop = npt.NDArray[np.int64]
"""One number; planning is given up soon after it is no longer zero."""

SIGNALS = tuple(
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if (number := getattr(signal, name, None)) is not None
)
"""What people and batch systems send, and programs have handlers for."""

Made = TypeVar("Made")


class Abandoned(Exception):
    """Planning was given up; nobody is there to see it."""


def run_aside(work: Callable[[Stop], Made], *, short: bool) -> Made:
    """What `work` returns or raises.

    Parameters
    ----------
    work : callable
        Is called with the number that says when to give up.
    short : bool
        Whether it is done in less time than anybody waits for.
    """
    stop = np.zeros(1, np.int64)
    if threading.current_thread() is not threading.main_thread():
        return work(stop)
    if short:
        with signals_put_off():
            return work(stop)
    outcome: Future[Made] = Future()

    def run() -> None:
        try:
            outcome.set_result(work(stop))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=copy_context().run, args=(run,), name="tilewise-plan", daemon=True).start()
    try:
        return outcome.result()
    finally:
        stop[0] = 1


def check_stop(stop: Stop) -> None:
    """Give up if nobody waits any more."""
    if stop[0]:
        raise Abandoned


@contextmanager
def signals_put_off() -> Iterator[None]:
    """In the main thread: handlers written in Python run at the end, in the order of the signals."""
    came: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))

    handlers: dict[int, Any] = {}
    for signum in SIGNALS:
        handler = signal.getsignal(signum)
        if callable(handler) and not isinstance(handler, signal.Handlers):
            handlers[signum] = handler
            signal.signal(signum, note)
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for number, frame in came:
            handlers[number](number, frame)
