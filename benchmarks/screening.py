"""Screening by a tolerance on the result, on blocks whose norms decay by e per two tiles.

    python benchmarks/screening.py [--tiles 80] [--tile-size 32] [--threads 2] [--reps 5]

Prints the share of products dropped at a tolerance of 1e-6 of the result's norm, the true error beside the
bound, and the time saved.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np

import tilewise as tw
from problems import Floats
from tables import markdown
from tilewise.tensors import BlockTensor
from timing import interleaved

PRODUCT = "ik,kj->ij"
DECAY_TILES = 2.0
RELATIVE_TOLERANCE = 1e-6
LEAST_DROPPED = 0.25
# Blocks below the cut are not stored at all: the less is stored, the harder it is to drop a quarter.
CUTS = (0.0, 1e-10, 1e-6)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What screening did to one product."""

    cut: float
    """Blocks with smaller norms were left out of the operands."""
    products: int
    """Products without screening."""
    dropped: float
    """Share of them that screening dropped."""
    tol: float
    """Tolerance on the Frobenius error."""
    error_bound: float
    """The bound the result carries."""
    true_error: float
    """Distance from the result without screening."""
    seconds: tuple[float, float]
    """Medians without and with screening, planning excluded."""

    @property
    def rigorous(self) -> bool:
        """True error <= bound <= tolerance, up to rounding of the result."""
        rounding = 1e-14 * self.tol / RELATIVE_TOLERANCE
        return self.true_error <= self.error_bound + rounding and self.error_bound <= self.tol

    @property
    def quarter(self) -> str:
        """Whether a quarter was dropped; the target is about operands that store every block."""
        if self.cut > 0.0:
            return "-"
        return "met" if self.dropped >= LEAST_DROPPED else "NOT MET"


def decaying_matrix(space: tw.Space, cut: float, seed: int) -> BlockTensor:
    """Random blocks whose Frobenius norms are exp(-|i - j| / 2), those above `cut`."""
    rng = np.random.default_rng(seed)
    reach = space.ntiles if cut == 0.0 else min(space.ntiles, math.ceil(-DECAY_TILES * math.log(cut)))
    blocks: dict[tuple[int, ...], Floats] = {}
    for i in range(space.ntiles):
        for j in range(max(0, i - reach), min(space.ntiles, i + reach + 1)):
            block = rng.standard_normal((space.sizes[i], space.sizes[j]))
            blocks[i, j] = block * (math.exp(-abs(i - j) / DECAY_TILES) / np.linalg.norm(block))
    return tw.from_blocks(blocks, (space, space))


def screen(space: tw.Space, cut: float, reps: int) -> Outcome:
    """Multiply with and without a tolerance."""
    a, b = decaying_matrix(space, cut, 1), decaying_matrix(space, cut, 2)
    full = tw.plan(PRODUCT, a, b)
    exact = tw.execute(full, a, b)
    tol = RELATIVE_TOLERANCE * float(exact.norm())
    screened = tw.plan(PRODUCT, a, b, tol=tol)
    result = tw.execute(screened, a, b)
    times = interleaved({"full": lambda: tw.execute(full, a, b), "screened": lambda: tw.execute(screened, a, b)}, reps)
    return Outcome(
        cut=cut,
        products=int(full.products),
        dropped=1 - screened.products / full.products,
        tol=tol,
        error_bound=float(result.error_bound),
        true_error=float((exact - result).norm()),
        seconds=(times["full"].median, times["screened"].median),
    )


def row(outcome: Outcome) -> tuple[str, ...]:
    """One line of the table."""
    full, screened = outcome.seconds
    return (
        f"{outcome.cut:g}",
        f"{outcome.products}",
        f"{100 * outcome.dropped:.1f}",
        f"{outcome.tol:.2e}",
        f"{outcome.error_bound:.2e}",
        f"{outcome.true_error:.2e}",
        f"{1e3 * full:.1f}",
        f"{1e3 * screened:.1f}",
        f"{100 * (1 - screened / full):.0f}",
        "yes" if outcome.rigorous else "NO",
        outcome.quarter,
    )


HEADER = (
    "blocks above",
    "products",
    "dropped %",
    "tolerance",
    "error bound",
    "true error",
    "all ms",
    "screened ms",
    "saved %",
    "error <= bound <= tolerance",
    "a quarter dropped",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tiles", type=int, default=80)
    parser.add_argument("--tile-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    args = parser.parse_args()
    space = tw.Space([args.tile_size] * args.tiles, name="ao")
    with tw.engine("threads", workers=args.threads):
        print(markdown(HEADER, [row(screen(space, cut, args.reps)) for cut in CUTS]))


if __name__ == "__main__":
    main()
