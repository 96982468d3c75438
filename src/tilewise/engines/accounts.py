"""One account of the memory that a run adds: what is held, the most that was, and a budget it keeps to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tilewise.errors import MemoryBudgetError


class Account:
    """Counts the bytes of a run and refuses those above its budget.

    Parameters
    ----------
    budget : int
        Most bytes that may be held at any time.
    option : str
        What a user gives more with.
    """

    def __init__(self, budget: int, option: str = "memory=") -> None:
        self.budget = budget
        self.option = option
        self.held = 0
        self.peak = 0
        self._lock = threading.Lock()

    def take(self, size: int, what: str) -> None:
        """Count bytes that are about to be allocated."""
        with self._lock:
            if self.held + size > self.budget:
                raise MemoryBudgetError(
                    f"{what} needs {size} bytes while {self.held} are held. The budget is {self.budget}. Give more "
                    f"with {self.option}."
                )
            self.held += size
            self.peak = max(self.peak, self.held)

    def give(self, size: int) -> None:
        """Count bytes that were let go."""
        with self._lock:
            self.held -= size

    @contextmanager
    def holding(self, size: int, what: str) -> Iterator[None]:
        """Hold bytes during a ``with`` block."""
        self.take(size, what)
        try:
            yield
        finally:
            self.give(size)
