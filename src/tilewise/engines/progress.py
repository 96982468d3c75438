"""How far a run has come, told every few seconds."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tilewise.errors import InputError

INTERVAL = 5.0
"""Seconds between two reports."""

PATIENCE = 1.0
"""Seconds that a run that has ended waits for its last report."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come; as text, a line for a log."""

    label: str
    """The step that is run, as an einsum string."""
    done: int
    """Floating-point operations done."""
    total: int
    """Floating-point operations in all."""
    seconds: float
    """Seconds since the run began."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the end, at the pace so far; infinite while nothing is done."""
        return self.seconds * (self.total - self.done) / self.done if self.done else float("inf")

    def __str__(self) -> str:
        line = f"{self.label}: {100 * self.done / self.total:.0f} %, {self.seconds:.0f} s"
        if self.done in (0, self.total):
            return line
        return f"{line}, about {self.seconds_left:.0f} s left"


Tell = Callable[[Progress], object]
"""What is called with each report."""


def check_progress(tell: Any) -> Tell | None:
    """What ``progress=`` of an engine was given."""
    if tell is not None and not callable(tell):
        raise InputError(f"progress={tell!r} cannot be called. Expected a function, or None. Pass progress=print.")
    return tell


class Watch:
    """Tells how far a run has come, from a thread of its own, until the end of a ``with`` block.

    A run shorter than the interval is not told of; the end of a longer one is.

    Parameters
    ----------
    tell : callable or None
        Called with a `Progress`; None for silence.
    label : str
        The step that is run.
    total : int
        Its floating-point operations.
    """

    def __init__(self, tell: Tell | None, label: str, total: int) -> None:
        self._tell = tell if total > 0 else None
        self._label, self._total = label, total
        self._state: tuple[int, Callable[[], int]] = (0, int)
        self._failed = False
        self._begin = time.perf_counter()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        # Python forgets a dead thread in a finalizer, where a Ctrl-C is lost: a silent run makes none.
        if self._tell is not None:
            self._thread = threading.Thread(target=self._run, name="tilewise-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failed = kind is not None
        self._end.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)

    @contextmanager
    def following(self, count: Callable[[], int]) -> Iterator[None]:
        """Ask for the operations of one part of the run while it goes on."""
        finished, _ = self._state
        self._state = finished, count
        yield
        self._state = finished + count(), int

    def _run(self) -> None:
        """Tell until the end; whoever cannot be told is not told again, and the run goes on."""
        told = False
        try:
            while not self._end.wait(INTERVAL):
                self._report()
                told = True
            if told and not self._failed:
                self._report()
        except BaseException as error:
            warnings.warn(
                f"progress= raised {error!r} and is not called again. Expected a function that takes a Progress. "
                "Correct it.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _report(self) -> None:
        finished, count = self._state
        done = min(finished + count(), self._total)
        assert self._tell is not None
        self._tell(Progress(self._label, done, self._total, time.perf_counter() - self._begin))
