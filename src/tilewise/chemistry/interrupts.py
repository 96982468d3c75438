"""Signals with which a batch system announces the end of a job: noted when they come, obeyed at the next safe place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tilewise.engines.base import current_engine
from tilewise.errors import Interrupted
from tilewise.tensors import Engine

__all__ = ["Interrupts", "catching_signals", "stopping_at_signals"]

SIGNALS = ("SIGTERM", "SIGUSR1")
"""The signals that are caught; some platforms lack the second."""


class Interrupts:
    """What came in; made by `catching_signals`.

    Parameters
    ----------
    engine : Engine, optional
        Whose ranks stop together; the engine in use by default.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = current_engine() if engine is None else engine
        self.received: str | None = None
        """Name of the last signal that nobody has been told of, None if there was none."""

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """Remember a signal; a handler of Python's `signal`."""
        self.received = signal.Signals(number).name

    def check(self) -> None:
        """Raise `Interrupted` if a signal has come to any rank; every rank calls it at the same place."""
        self.engine.agree(self._check)

    def _check(self) -> None:
        if self.received is not None:
            name, self.received = self.received, None
            raise Interrupted(
                f"The signal {name} came. The run was to go on until its end. Start it again to go on.", name
            )


@contextmanager
def catching_signals(engine: Engine | None = None) -> Iterator[Interrupts]:
    """Note SIGTERM and SIGUSR1 inside a ``with`` block instead of ending the process.

    One that came after the last `Interrupts.check` is handed to whoever had them before, at the end of the block.
    Python hands signals to the main thread only: in another one nothing is caught, and nothing is changed.

    Examples
    --------
    >>> import os, signal
    >>> from tilewise.chemistry.interrupts import catching_signals
    >>> with catching_signals() as interrupts:
    ...     os.kill(os.getpid(), signal.SIGTERM)
    ...     interrupts.check()
    Traceback (most recent call last):
        ...
    tilewise.errors.Interrupted: The signal SIGTERM came. The run was to go on until its end. Start it again to go on.
    """
    interrupts = Interrupts(engine)
    with _handling(interrupts.note):
        yield interrupts
    if interrupts.received is not None:
        signal.raise_signal(signal.Signals[interrupts.received])


@contextmanager
def stopping_at_signals(checkpoint: Path | None, is_done: Callable[[], bool] = bool) -> Iterator[None]:
    """Inside a ``with`` block, SIGTERM and SIGUSR1 raise `Interrupted` at once, if there is a checkpoint to go on from.

    The solver catches them itself while it iterates; this is for the stages before and after, which have nothing to
    finish. Once a result is there, which `is_done` says, they are ignored: it is told and written in no time. A
    `KeyboardInterrupt` is told how to go on, too.
    """
    remedy = (
        f"Run the same command again: it goes on from the cycles that {checkpoint} has, or begins anew if there are "
        "none."
    )

    def stop(number: int, frame: FrameType | None) -> None:
        if is_done():
            return
        name = signal.Signals(number).name
        raise Interrupted(f"{name} came before the run had ended. {remedy}", name)

    if checkpoint is None:
        yield
        return
    try:
        with _handling(stop):
            yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted. {remedy}") from None


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside a ``with`` block of the main thread, SIGTERM and SIGUSR1 go to a function."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        caught = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
        before = {number: signal.signal(number, handler) for number in caught}
    try:
        yield
    finally:
        for number, earlier in before.items():
            # None stands for a handler that Python did not install, and cannot bring back.
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)
