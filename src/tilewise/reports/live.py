"""How far an iteration has come, on a terminal while it runs; plain lines elsewhere."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tilewise.plans.explain import plural_text, seconds_text

__all__ = ["Progress", "cycles_left"]

RECENT = 5
"""Cycles from which the rate of convergence is taken."""

SHOWN = 12
"""Cycles that are shown at a time."""


@dataclass(frozen=True, slots=True)
class _Cycle:
    """A cycle that is done."""

    number: int
    """From 1."""
    energy: float
    """Correlation energy, in hartree."""
    change: float
    """Of the energy, in hartree."""
    norm: float
    """Of the step of the amplitudes."""
    seconds: float
    """What it took."""


class Progress(AbstractContextManager["Progress"]):
    r"""Stages and cycles of a calculation, shown while it runs.

    On a terminal stages are lines and cycles a table that grows, with the time that is left; elsewhere both are lines
    of text as they come.

    Parameters
    ----------
    limits : (float, float)
        Change of the energy in hartree, and norm of the step, below which the iteration ends.
    console : rich.console.Console, optional
        Where to show it; the standard error by default.

    Examples
    --------
    >>> import io
    >>> from rich.console import Console
    >>> from tilewise.reports.live import Progress
    >>> file = io.StringIO()
    >>> with Progress((1e-7, 1e-5), Console(file=file)) as progress:
    ...     progress.tell("Hartree-Fock: 3 atoms")
    >>> file.getvalue()
    'Hartree-Fock: 3 atoms\n'
    """

    def __init__(self, limits: tuple[float, float] = (1e-7, 1e-5), console: Console | None = None) -> None:
        self.console = Console(stderr=True) if console is None else console
        self.limits = limits
        self.cycles: list[_Cycle] = []
        self._stage = ""
        self._begin = time.perf_counter()
        self._live = Live(console=self.console, get_renderable=self.render, redirect_stdout=False)

    def __enter__(self) -> Progress:
        self._begin = time.perf_counter()
        if self.console.is_interactive:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stage = ""
        if self.console.is_interactive:
            self._live.stop()

    def tell(self, line: str) -> None:
        """A line of a stage or of a cycle."""
        is_stage = not line.startswith("cycle = ")
        if is_stage:
            self._begin = time.perf_counter()
        if not self.console.is_interactive:
            self.console.file.write(f"{line}\n")
            self.console.file.flush()
        elif is_stage:  # the table has the others
            if self.cycles:
                self.console.print(self._table(len(self.cycles)))
                self.cycles = []
            self._stage = line
            self.console.print(Text(line))

    def note(self, facts: Mapping[str, Any]) -> None:
        """A cycle is done: the callback of methods that iterate."""
        now = time.perf_counter()
        energy, change, norm = (float(facts[name]) for name in ("e_corr", "de", "norm"))
        self.cycles.append(_Cycle(int(facts["cycle"]), energy, change, norm, now - self._begin))
        self._begin = now

    def render(self) -> RenderableType:
        """What is on the terminal now."""
        parts: list[RenderableType] = []
        if self.cycles:
            parts.append(self._table(SHOWN))
        if self._stage:
            parts.append(Spinner("dots", Text(self._status())))
        return Group(*parts)

    def _table(self, count: int) -> Table:
        """The last cycles."""
        table = Table(box=None, pad_edge=False)
        for title in ("cycle", "E_corr, hartree", "dE", "norm", "time"):
            table.add_column(title, justify="right")
        for each in self.cycles[-count:]:
            figures = f"{each.energy:.10f}", f"{each.change: .3e}", f"{each.norm:.3e}", seconds_text(each.seconds)
            table.add_row(str(each.number), *figures)
        return table

    def _status(self) -> str:
        passed = time.perf_counter() - self._begin
        if not self.cycles:
            return f"{re.split(': | = ', self._stage)[0]}, {seconds_text(passed)}"
        each = self.cycles[-1].seconds
        text = f"cycle {self.cycles[-1].number + 1}, {seconds_text(each)} per cycle"
        left = cycles_left([(cycle.change, cycle.norm) for cycle in self.cycles], self.limits)
        if left is None:
            return text
        return f"{text}, about {plural_text(left, 'cycle')} or {seconds_text(max(left * each - passed, 0))} left"


def cycles_left(history: Sequence[tuple[float, float]], limits: tuple[float, float]) -> int | None:
    """How many more cycles an iteration takes if it goes on as it did; None if that cannot be told.

    Parameters
    ----------
    history : sequence of (float, float)
        Change of the energy and norm of the step in each cycle.
    limits : (float, float)
        Below these it ends.

    Examples
    --------
    >>> from tilewise.reports.live import cycles_left
    >>> cycles_left([(2e-2, 1e-1), (2e-3, 1e-2), (2e-4, 1e-3)], (1e-7, 1e-5))
    4
    >>> cycles_left([(1e-2, 1e-1), (2e-2, 2e-1)], (1e-7, 1e-5)) is None
    True
    """
    recent = history[-RECENT:]
    if len(recent) < 2 or not all(norm > 0 for _, norm in recent):
        return None
    rate = (recent[-1][1] / recent[0][1]) ** (1 / (len(recent) - 1))
    if rate >= 1:
        return None
    excess = max(abs(value) / limit for value, limit in zip(recent[-1], limits, strict=True) if limit > 0)
    return max(math.ceil(math.log(excess) / -math.log(rate)), 1) if excess > 0 else None
