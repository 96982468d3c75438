"""The targets of the block-sparse product, as one table, and whether a run met them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from figures import Figures

Quantity = Callable[[Figures], float | None]
BLOCKS_FROM_64 = r"^uniform_b64|^irregular"
BLOCKS_BELOW_64 = r"^uniform_b(05|13|23|32)|^banded"


@dataclass(frozen=True, slots=True)
class Target:
    """A limit on one quantity over some problems."""

    text: str
    """What is asked, in words."""
    problems: str
    """Regular expression on the names of the problems it is about."""
    quantity: Quantity
    """What is compared; None where it was not measured."""
    at_least: float | None = None
    """The smallest value that meets the target."""
    below: float | None = None
    """The value to stay under."""
    in_mean: bool = False
    """Compare the geometric mean instead of every problem."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what a run says about it."""

    target: Target
    """The target."""
    value: float | None
    """The deciding value: the worst, or the mean; None where nothing was measured."""
    where: str
    """The problem it was measured on, or how many problems the mean is over."""

    @property
    def met(self) -> bool | None:
        """Whether the value is within the limit; None where nothing was measured."""
        if self.value is None:
            return None
        if self.target.at_least is not None:
            return self.value >= self.target.at_least
        return self.target.below is not None and self.value < self.target.below


def _peak(figures: Figures) -> float | None:
    return figures.peak_ratio


def _any_peer(figures: Figures) -> float | None:
    return figures.worst_peer_ratio


def _dbcsr(figures: Figures) -> float | None:
    return figures.dbcsr_ratio


TARGETS: tuple[Target, ...] = (
    Target("blocks in [512, 2048]: 0.95 of the dense peak", r"^irregular_512-2048", _peak, at_least=0.95),
    Target("blocks in [64, 256]: 0.80 of the dense peak", r"^irregular_64-256", _peak, at_least=0.80),
    Target("blocks of 64, density 0.2: 0.6 of the dense peak", r"^uniform_b64_d0\.2$", _peak, at_least=0.6),
    Target("blocks of 23, density 0.2: 0.35 of the dense peak", r"^uniform_b23_d0\.2$", _peak, at_least=0.35),
    Target("banded: 0.65 of the dense peak", r"^banded", _peak, at_least=0.65),
    Target("no block-sparse peer faster by more than 5 %", r"", _any_peer, at_least=0.95),
    Target("1.5 x Debian's DBCSR in the geometric mean", r"", _dbcsr, at_least=1.5, in_mean=True),
    Target("blocks from 64: planning under 2 % of the run", BLOCKS_FROM_64, lambda f: f.plan_share, below=0.02),
    Target(
        "blocks below 64: planning under 100 ns per product",
        BLOCKS_BELOW_64,
        lambda f: f.plan_ns_per_product,
        below=100.0,
    ),
)


def geometric_mean(values: Sequence[float]) -> float | None:
    """Geometric mean; None of nothing."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def verdict(target: Target, all_figures: Iterable[Figures]) -> Verdict:
    """The deciding value of a target in a run."""
    named = [(f.problem, target.quantity(f)) for f in all_figures if re.search(target.problems, f.problem)]
    measured = [(value, name) for name, value in named if value is not None]
    if target.in_mean:
        return Verdict(target, geometric_mean([value for value, _ in measured]), f"{len(measured)} problems")
    if not measured:
        return Verdict(target, None, "")
    value, name = min(measured) if target.at_least is not None else max(measured)
    return Verdict(target, value, name)


def verdicts(all_figures: Sequence[Figures]) -> list[Verdict]:
    """All targets against a run."""
    return [verdict(target, all_figures) for target in TARGETS]
