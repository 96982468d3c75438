"""What the samples of one problem say: rates, ratios, planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from measurement import OURS, Record
from timing import Spread, spread


@dataclass(frozen=True, slots=True)
class Rate:
    """A contender and its rate."""

    label: str
    """The contender."""
    gflops: Spread
    """Rate in GF/s."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one problem; every ratio is one of medians."""

    problem: str
    """Name of the problem."""
    flops: int
    """Operations of the block products."""
    products: int
    """Number of block products."""
    execute: Spread
    """Our rate without planning, GF/s."""
    einsum: Spread
    """Our rate with planning, GF/s."""
    plan_seconds: Spread
    """Planning alone, seconds."""
    run_seconds: float
    """Median of our run without planning, seconds."""
    peak: Rate | None
    """The faster of the dense contenders."""
    packaged_dbcsr: Rate | None
    """Debian's DBCSR in its best setting."""
    others: tuple[Rate, ...]
    """All other block-sparse peers, fastest first."""

    @property
    def plan_share(self) -> float:
        """Planning over running."""
        return self.plan_seconds.median / self.run_seconds

    @property
    def plan_ns_per_product(self) -> float:
        """Planning per block product, nanoseconds."""
        return 1e9 * self.plan_seconds.median / self.products

    @property
    def peak_ratio(self) -> float | None:
        """Our rate without planning over the dense peak."""
        return ratio(self.execute, self.peak)

    @property
    def dbcsr_ratio(self) -> float | None:
        """Our rate without planning over Debian's DBCSR."""
        return ratio(self.execute, self.packaged_dbcsr)

    @property
    def other(self) -> Rate | None:
        """The fastest block-sparse peer that is not Debian's DBCSR."""
        return self.others[0] if self.others else None

    @property
    def peers(self) -> tuple[Rate, ...]:
        """All block-sparse peers."""
        return (*((self.packaged_dbcsr,) if self.packaged_dbcsr else ()), *self.others)

    @property
    def worst_peer_ratio(self) -> float | None:
        """Our rate without planning over the fastest block-sparse peer."""
        return min((quotient(self.execute, peer) for peer in self.peers), default=None)


def quotient(ours: Spread, theirs: Rate) -> float:
    """Quotient of the medians."""
    return ours.median / theirs.gflops.median


def ratio(ours: Spread, theirs: Rate | None) -> float | None:
    """Quotient of the medians, where there is another."""
    return quotient(ours, theirs) if theirs else None


def figures(record: Record) -> Figures:
    """Rates and ratios from a problem's samples."""
    seconds = {label: spread(samples) for label, samples in record.seconds.items()}
    execute = seconds.pop(f"{OURS}.execute")
    einsum = seconds.pop(f"{OURS}.einsum")
    plan = seconds.pop(f"{OURS}.plan")
    work = record.flops * 1e-9
    dense = {label: seconds.pop(label).per(flops * 1e-9) for label, flops in record.dense_flops.items()}
    peers = {label: times.per(work) for label, times in seconds.items()}
    packaged = {label: peers.pop(label) for label in record.packaged}
    return Figures(
        problem=record.problem,
        flops=record.flops,
        products=record.products,
        execute=execute.per(work),
        einsum=einsum.per(work),
        plan_seconds=plan,
        run_seconds=execute.median,
        peak=next(iter(_fastest_first(dense)), None),
        packaged_dbcsr=next(iter(_fastest_first(packaged)), None),
        others=_fastest_first(peers),
    )


def _fastest_first(rates: Mapping[str, Spread]) -> tuple[Rate, ...]:
    ordered = sorted(rates.items(), key=lambda item: -item[1].median)
    return tuple(Rate(label, gflops) for label, gflops in ordered)
