"""Planning time: over a decade of block products, and on patterns like those of a long alkane.

    python benchmarks/planning.py [--reps 3] [--skip-alkane]

Patterns only: nothing is multiplied.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

import tilewise as tw
from alkane import ladder
from tables import markdown
from timing import Spread, interleaved

DECADE = (200_000, 400_000, 800_000, 1_400_000, 2_000_000)
DENSITY = 0.2
TILE = 23
ALKANE_LIMIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Point:
    """Planning time of one size."""

    products: int
    """Block products planned."""
    seconds: Spread
    """Planning time."""

    @property
    def ns_per_product(self) -> float:
        """Median time per product in nanoseconds."""
        return 1e9 * self.seconds.median / self.products


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds = fixed + per_product x products, by least squares on relative errors."""

    fixed_seconds: float
    """Time without any product."""
    seconds_per_product: float
    """Slope."""
    worst_deviation: float
    """Largest relative distance of a point from the line."""


def random_pair(products: int) -> tuple[tw.Pattern, tw.Pattern]:
    """Two random square patterns that meet in about `products` pairs of blocks."""
    tiles = round((products / DENSITY**2) ** (1 / 3))
    row, inner, col = (tw.Space(np.full(tiles, TILE), name=name) for name in "ikj")
    return (
        tw.Pattern.random((row, inner), density=DENSITY, seed=1),
        tw.Pattern.random((inner, col), density=DENSITY, seed=2),
    )


def meeting(a: tw.Pattern, b: tw.Pattern) -> int:
    """Pairs of blocks with the same inner tile."""
    tiles = a.spaces[1].ntiles
    left = np.bincount(a.index[:, 1], minlength=tiles)
    return int((left * np.bincount(b.index[:, 0], minlength=tiles)).sum())


def decade(reps: int) -> list[Point]:
    """Planning time of all sizes, taken in turns."""
    pairs = {f"{products}": random_pair(products) for products in DECADE}
    actions = {name: lambda a=a, b=b: tw.plan("ik,kj->ij", a, b) for name, (a, b) in pairs.items()}
    times = interleaved(actions, reps)
    return [Point(meeting(*pairs[name]), times[name]) for name in pairs]


def linear_fit(points: list[Point]) -> Fit:
    """Weigh points by the inverse of their time, so that small sizes count as much as large ones."""
    products = np.array([point.products for point in points], dtype=np.float64)
    seconds = np.array([point.seconds.median for point in points])
    slope, fixed = np.polyfit(products, seconds, 1, w=1 / seconds)
    deviation = np.abs((fixed + slope * products) / seconds - 1)
    return Fit(float(fixed), float(slope), float(deviation.max()))


def print_decade(points: list[Point]) -> None:
    """Table of the sizes and the line through them."""
    rows = [
        (
            f"{point.products}",
            f"{1e3 * point.seconds.median:.1f}",
            f"{1e3 * point.seconds.low:.1f} to {1e3 * point.seconds.high:.1f}",
            f"{point.ns_per_product:.1f}",
        )
        for point in points
    ]
    print(markdown(("products", "planning ms", "range", "ns per product"), rows))
    fit = linear_fit(points)
    line = f"{1e3 * fit.fixed_seconds:.1f} ms + {1e9 * fit.seconds_per_product:.1f} ns per product"
    print(f"\nLinear fit: {line}; no point is farther than {100 * fit.worst_deviation:.0f} % from the line.\n")


def print_alkane(reps: int) -> None:
    """Planning time of the ladder term of a long alkane, against its target."""
    problem = ladder()
    times = interleaved({"plan": lambda: tw.plan("ijcd,cdab->ijab", problem.t, problem.v)}, reps)["plan"]
    met = "met" if times.median < ALKANE_LIMIT_SECONDS else "NOT MET"
    share = problem.v.nnz_blocks / np.prod(problem.v.ntiles)
    print(
        f"Alkane ladder: T {problem.t.nnz_blocks} blocks, V {problem.v.nnz_blocks} blocks "
        f"({100 * share:.1f} %), {problem.products} products: planned in {times.median:.2f} s "
        f"({times.low:.2f} to {times.high:.2f}); target under {ALKANE_LIMIT_SECONDS:g} s: {met}"
    )


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--skip-alkane", action="store_true")
    args = parser.parse_args()
    print_decade(decade(args.reps))
    if not args.skip_alkane:
        print_alkane(args.reps)


if __name__ == "__main__":
    main()
