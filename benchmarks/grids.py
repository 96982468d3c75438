"""Grids of ranks laid over nodes: for dense products by formula, for a long alkane by its pattern.

    python benchmarks/grids.py [--nodes 288] [--ranks-per-node 72] [--deal 10000] [--skip-alkane]

The dense table has the four matrix shapes of Irmler et al. (2023, 3.2), whose edges have the ratio 10. V is what
crosses between nodes, in units of a matrix with two short edges. The paper names no grids, so the one that is mapped is
that which sends least between ranks when nodes are not looked at, without and with an axis for k.

The alkane is the ladder term of `alkane.py`. Nothing is multiplied: all figures are counted on the pattern, except the
seconds of a run, which are an estimate at the rates of the paper's machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

import tilewise as tw
from alkane import Ladder, ladder
from tables import markdown
from tilewise.plans import Plan
from tilewise.plans.balance import over_mean
from tilewise.plans.crossings import Choice, Crossings, Search
from tilewise.plans.grids import (
    Grid,
    RankRates,
    choose_grid,
    factorisations,
    map_nodes,
    row_major_volume,
    shape_text,
)

Result = TypeVar("Result")

SHAPES = {"square": (1, 1, 1), "large K": (1, 1, 10), "large M": (10, 1, 1), "small K": (10, 10, 1)}
"""Rows, columns and k of each product, in short edges."""

RATES = RankRates(flops=5.53e12 / 72, between=12.5e9, inside=320e9 / 72)
"""Irmler et al. (2023, 3.1): peak and memory bandwidth of a node shared by 72 ranks, 100 Gbit/s between nodes."""

SEARCH_LIMIT_SECONDS, DEAL_LIMIT_SECONDS, PART_LIMIT_SECONDS = 2.0, 60.0, 5.0
DEAL_RANKS_PER_NODE = 16
SHOWN = 5
DENSE_HEADER = (
    "product",
    "grid",
    "V row by row",
    "nodes mapped",
    "V",
    "ratio",
    "chosen together",
    "nodes",
    "V",
    "ratio",
)
CHOICE_HEADER = ("grid", "nodes of", "rows", "columns", "between nodes GB", "between ranks GB", "imbalance", "run s")


@dataclass(frozen=True, slots=True)
class Duration:
    """How long a call took."""

    wall_seconds: float
    """By the clock."""
    cpu_seconds: float
    """Of this process."""

    def text(self, limit: float) -> str:
        """Both times, and whether each is under the limit; the clock also counts what other processes take."""
        clock, cpu = ("met" if taken < limit else "NOT MET" for taken in (self.wall_seconds, self.cpu_seconds))
        return (
            f"{self.wall_seconds:.2f} s by the clock ({limit:g} s: {clock}), {self.cpu_seconds:.2f} s of processor "
            f"time ({limit:g} s: {cpu})"
        )


def timed(action: Callable[[], Result]) -> tuple[Result, Duration]:
    """What one call returns and how long it takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = action()
    return result, Duration(time.perf_counter() - wall, time.process_time() - cpu)


def dense_rows(ranks: int, ranks_per_node: int) -> Iterator[tuple[str, ...]]:
    """One line for each product, without and with an axis for k."""
    for name, (m, n, k) in SHAPES.items():
        for axes in (2, 3):
            words = (float(k * n), float(m * k), float(m * n))[:axes]
            shape = min(factorisations(ranks, axes), key=lambda p: Grid(p, p).rank_volume(words))
            default = row_major_volume(shape, words, ranks_per_node)
            mapped, chosen = map_nodes(shape, words, ranks_per_node), choose_grid(words, ranks, ranks_per_node)
            first = name, shape_text(shape), f"{default:.1f}"
            yield (*first, *grid_cells(mapped, words, default)[1:], *grid_cells(chosen, words, default))


def grid_cells(grid: Grid | None, words: tuple[float, ...], default: float) -> tuple[str, ...]:
    """Shape, nodes, V, and V of the default over it."""
    if grid is None:
        return "-", "-", "-", "-"
    volume = grid.volume(words)
    return shape_text(grid.shape), shape_text(grid.inside), f"{volume:.1f}", f"{default / max(volume, 1e-300):.2f}"


def choice_row(choice: Choice) -> tuple[str, ...]:
    """One grid for the alkane."""
    return (
        shape_text(choice.grid.shape),
        shape_text(choice.grid.inside),
        *choice.ways,
        f"{choice.node_bytes * 1e-9:.1f}",
        f"{choice.rank_bytes * 1e-9:.1f}",
        f"{choice.imbalance:.3f}",
        f"{choice.seconds:.3f}",
    )


def by_formula(plan: Plan, crossings: Crossings, ranks: int, ranks_per_node: int) -> Choice:
    """The grid that would be chosen if the operands were dense, among those the search has, weighed on the pattern."""
    left, right = (float(operand.pattern.nbytes(plan.dtype)) for operand in plan.operands)
    rows, columns = (left, right) if crossings.work.swapped else (right, left)
    words = rows, columns, float(plan.result_bytes)
    grids = crossings.grids(ranks, ranks_per_node)
    return crossings.weigh([min(grids, key=lambda grid: (grid.volume(words), grid.rank_volume(words)))], RATES).best


def print_search(problem: Ladder, ranks: int, ranks_per_node: int) -> None:
    """The joint search, and what it is better than."""
    plan = shared_plan(problem, 1, 1)
    crossings = Crossings(plan)
    found, duration = timed(lambda: crossings.search(ranks, ranks_per_node, RATES))
    formula = by_formula(plan, crossings, ranks, ranks_per_node)
    print(f"Alkane ladder, {plan.products} block products, {ranks} ranks, {ranks_per_node} on a node.\n")
    print(markdown(CHOICE_HEADER, [choice_row(choice) for choice in found.choices[:SHOWN]]))
    print(f"\n- {search_text(found)}: {duration.text(SEARCH_LIMIT_SECONDS)}")
    least = crossings.meetings.flops.max() * ranks / plan.flops
    print(f"- imbalance / least that whole pairs of panels in a segment allow: {found.best.imbalance / least:.3f}")
    print(f"- time / time of the fastest, for {dense_text(formula)}: {formula.seconds / found.best.seconds:.2f}")
    same = [choice.node_bytes for choice in found.choices if choice.grid.shape == found.best.grid.shape]
    print(f"- most / least between nodes, for {len(same)} mappings of the fastest shape: {max(same) / min(same):.2f}\n")


def search_text(found: Search) -> str:
    """How far the search went."""
    proven = "fastest one proven" if found.is_proven else "fastest one NOT PROVEN"
    return f"{found.considered} grids with mappings and dealings, {len(found.choices)} counted by rank, {proven}"


def dense_text(choice: Choice) -> str:
    """The grid that the dense formula gives."""
    return f"the dense formula's {shape_text(choice.grid.shape)} with nodes of {shape_text(choice.grid.inside)}"


def shared_plan(problem: Ladder, ranks: int, ranks_per_node: int) -> Plan:
    """The ladder term as a user plans it for many ranks: all families of algorithms, nothing known before."""
    plan = tw.plan("ijcd,cdab->ijab", problem.t, problem.v, ranks=ranks, ranks_per_node=ranks_per_node)
    assert isinstance(plan, Plan)
    return plan


def print_deal(problem: Ladder, ranks: int) -> None:
    """The whole product planned for many ranks, and what one of them is to do."""
    plan, duration = timed(lambda: shared_plan(problem, ranks, DEAL_RANKS_PER_NODE))
    sharing = plan.sharing
    assert sharing is not None
    traffic, flops = sharing.traffic, sharing.traffic.rank_flops
    received = (traffic.inside_bytes + traffic.between_bytes).astype(np.float64)
    print(f"The same planned for {ranks} ranks, {DEAL_RANKS_PER_NODE} on a node: {sharing.algorithm_text}.\n")
    print(f"- the whole plan, with what crosses: {duration.text(DEAL_LIMIT_SECONDS)}")
    print(f"- idle ranks: {np.count_nonzero(flops == 0)}; most flops / mean: {over_mean(flops):.2f}")
    print(f"- received by the mean rank: {received.mean() * 1e-6:.0f} MB; most / mean: {over_mean(received):.2f}")
    busiest = int(np.argmax(flops))
    parts, duration = timed(lambda: sharing.parts(busiest))
    done = sum(part.plan.flops for part in parts if part is not None)
    print(f"- the part of rank {busiest}, {done:.3g} flops: {duration.text(PART_LIMIT_SECONDS)}")


def warm_up() -> None:
    """Compile, or load what was compiled before."""
    dense = tw.Pattern.dense((tw.Space([4, 4]),) * 4)
    shared_plan(Ladder(dense, dense, 64), DEAL_RANKS_PER_NODE, 4)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=288)
    parser.add_argument("--ranks-per-node", type=int, default=72)
    parser.add_argument("--deal", type=int, default=10_000, help="ranks of the deal, a multiple of 16")
    parser.add_argument("--skip-alkane", action="store_true")
    args = parser.parse_args()
    ranks = args.nodes * args.ranks_per_node
    print(f"Dense products on {args.nodes} nodes of {args.ranks_per_node} ranks; ratios are V row by row over V.\n")
    print(markdown(DENSE_HEADER, list(dense_rows(ranks, args.ranks_per_node))))
    if not args.skip_alkane:
        warm_up()
        problem = ladder()
        print()
        print_search(problem, ranks, args.ranks_per_node)
        print_deal(problem, args.deal)


if __name__ == "__main__":
    main()
