"""What CCSD of benzene/cc-pVDZ plans to hold for budgets and tiles: the tables of docs/choosing.md.

    python benchmarks/budgets.py [--workers 2]

Plans only: nothing is computed but the mean field and samples of integrals. The least memory is that of the error
that a far too small budget gives.
"""

from __future__ import annotations

import argparse
from typing import Any

import tilewise as tw
from molecules import PROBLEMS, least_bytes
from tables import markdown
from tilewise.chemistry import CCSD
from tilewise.plans.explain import bytes_text

PROBLEM = "benzene/cc-pVDZ"
BUDGETS = ("2GB", "1.1GB", "1GB", "600MB", "400MB", "300MB")
TILES = (8, 16, 32, 64, 100)
PLENTY = "16GB"


def least_memory(mf: Any, tile: int | None = None) -> int:
    """The smallest budget that a plan accepts."""
    return least_bytes(lambda memory: CCSD(mf, memory=memory, tile=tile).plan())


def budget_row(mf: Any, memory: str | int) -> tuple[str, ...]:
    """A budget, the peak within it, and what is on disk then."""
    plan = CCSD(mf, memory=memory).plan()
    away = (["DIIS"] if plan.diis_on_disk else []) + list(plan.elsewhere)
    return (memory if isinstance(memory, str) else bytes_text(memory), bytes_text(plan.peak_bytes), ", ".join(away))


def tile_row(mf: Any, tile: int) -> tuple[str, ...]:
    """A size of tiles, the least budget, and the peak with everything in memory."""
    free = CCSD(mf, memory=PLENTY, tile=tile).plan()
    return (str(tile), bytes_text(least_memory(mf, tile)), bytes_text(free.peak_bytes))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    mf = PROBLEMS[PROBLEM].mean_field()
    with tw.engine("threads", workers=args.workers):
        rows = [budget_row(mf, memory) for memory in (*BUDGETS, least_memory(mf))]
        print(markdown(["memory=", "peak as planned", "on disk"], rows), "\n")
        tiles = [tile_row(mf, tile) for tile in TILES]
        print(markdown(["tile=", "least memory", "peak with everything in memory"], tiles))


if __name__ == "__main__":
    main()
