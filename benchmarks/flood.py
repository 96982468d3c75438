"""Flood test of the counter that ranks draw tickets from, and what its cost means for a large computer.

    mpiexec -n 4 python benchmarks/flood.py [--draws 2000] [--repeats 5] [--tasks 60000] [--plots FOLDER]

First one rank, then two, up to all of them do nothing but draw, while the others sleep (Ozog et al. 2013, Fig. 2). A
latency and a service time are fitted to the seconds for each draw. The model of `balancers.py` then says which share of
all ranks' time goes into tickets (Fig. 5), with the measured cost beside the default one. Where more ranks draw than
there are cores, the turns of the operating system are measured rather than the counter: such rows are marked and left
out of the fit. As long as many callers wait no longer than one, the service time is an upper limit only, and so are the
shares that follow from it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from balancers import RANKS_PER_NODE, task_list
from tables import markdown
from tilewise.engines.mpi.counter import Counter
from tilewise.engines.mpi.world import load_mpi
from tilewise.engines.workers import available_cores
from tilewise.plans.balance import Tasks, deal
from tilewise.plans.pools import Outcome, TicketCost, replay
from tilewise.reports.plots import plot_series, save_plot
from timing import Spread, spread

MODELLED = (1, 4, 16, 64, 256, 1024)
DRAWING = ("counter", "nonnull")
WARM_UP = 100
NAP = 1e-3

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Flood:
    """What some callers at once found."""

    callers: int
    """Ranks that drew."""
    seconds: Spread
    """For each draw of the slowest caller, over the repeats."""
    crowded: bool
    """Whether more ranks drew than there are cores."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a ticket costs, from a flood."""

    cost: TicketCost
    """Latency and service time."""
    flooded: bool
    """Whether many callers waited longer than one, beyond the scatter; if not, the service time is an upper limit."""


def meet(ranks: Any) -> None:
    """Wait for all ranks without taking a core from those that still draw."""
    request = ranks.Ibarrier()
    while not request.Test():
        time.sleep(NAP)


def draw_many(ranks: Any, counter: Counter, callers: int, draws: int) -> float:
    """Seconds for each draw of the slowest of the callers."""
    ranks.Barrier()
    begin = time.perf_counter()
    if ranks.rank < callers:
        for _ in range(draws):
            counter.draw()
    spent = time.perf_counter() - begin if ranks.rank < callers else 0.0
    meet(ranks)
    return float(max(ranks.allgather(spent))) / draws


def measure(ranks: Any, draws: int, repeats: int) -> Iterator[Flood]:
    """The flood with 1, 2, ... and all ranks."""
    cores = available_cores()
    with Counter(ranks) as counter:
        for callers in range(1, ranks.size + 1):
            draw_many(ranks, counter, callers, WARM_UP)
            samples = [draw_many(ranks, counter, callers, draws) for _ in range(repeats)]
            yield Flood(callers, spread(samples), callers > cores)


def fit(floods: Sequence[Flood]) -> Fit:
    """The latency and the service time whose `TicketCost.per_call` is nearest to what was measured.

    That is constant for few callers and proportional to their number for many: each side has a closed fit, and every
    number of callers that may part them is tried.
    """
    used = [each for each in floods if not each.crowded]
    callers = np.array([each.callers for each in used], float)
    seconds = np.array([each.seconds.median for each in used])
    tried = [_fit_from(callers, seconds, first) for first in range(len(used))]
    best = min(tried, key=lambda cost: _misfit(cost, callers, seconds))
    return Fit(best, flooded=used[-1].seconds.low > used[0].seconds.high)


def _fit_from(callers: Floats, seconds: Floats, first: int) -> TicketCost:
    """The cost if the counter is flooded from the first-th measurement on."""
    many = callers[first:]
    service = float(many @ seconds[first:] / (many @ many))
    return TicketCost(max(float(seconds[: max(first, 1)].mean()) - service, 0.0), service)


def _misfit(cost: TicketCost, callers: Floats, seconds: Floats) -> float:
    """Squares of the relative deviations."""
    model = np.array([cost.per_call(int(count)) for count in callers])
    return float(((model / seconds - 1) ** 2).sum())


def flood_rows(floods: Sequence[Flood], cost: TicketCost) -> Iterator[tuple[str, ...]]:
    """One line for each number of callers."""
    for each in floods:
        low, middle, high = (1e6 * value for value in (each.seconds.low, each.seconds.median, each.seconds.high))
        yield (
            f"{each.callers}{' (crowded)' if each.crowded else ''}",
            f"{middle:.2f} ({low:.2f} to {high:.2f})",
            f"{each.seconds.median / floods[0].seconds.median:.2f}",
            f"{1e6 * cost.per_call(each.callers):.2f}",
        )


def modelled(tasks: Tasks, costs: Sequence[TicketCost]) -> dict[tuple[int, str], list[Outcome]]:
    """For each number of ranks and way to draw, what the tasks come to at each cost of a ticket."""
    return {
        (ranks, balancer): [replay(deal(balancer, tasks, ranks, RANKS_PER_NODE), tasks.cost, cost) for cost in costs]
        for ranks in MODELLED
        for balancer in DRAWING
    }


def model_rows(done: Mapping[tuple[int, str], Sequence[Outcome]]) -> Iterator[tuple[str, ...]]:
    """One line for each number of ranks and way to draw, with the share of time for tickets at each cost."""
    for (ranks, balancer), outcomes in done.items():
        shares = [f"{100 * each.ticket_share:.2f} %" for each in outcomes]
        yield (str(ranks), balancer, *shares, f"{outcomes[-1].seconds / outcomes[0].seconds:.3f}")


def draw_plots(floods: Sequence[Flood], done: Mapping[tuple[int, str], Sequence[Outcome]], folder: Path) -> None:
    """The flood (Ozog et al. 2013, Fig. 2), and the share of time for tickets against ranks (Fig. 5)."""
    medians = [(float(each.callers), 1e6 * each.seconds.median) for each in floods]
    axes = plot_series({"one counter": medians}, xlabel="ranks that draw", ylabel="microseconds for each draw")
    save_plot(axes, folder / "flood")
    shares = {
        f"{balancer}, {cost} cost": [
            (float(ranks), 100 * outcomes[number].ticket_share)
            for (ranks, name), outcomes in done.items()
            if name == balancer
        ]
        for balancer in DRAWING
        for number, cost in enumerate(("default", "measured"))
    }
    axes = plot_series(shares, xlabel="ranks", ylabel="% of all ranks' time for tickets", log="x")
    save_plot(axes, folder / "tickets")


def report(floods: Sequence[Flood], found: Fit, tasks: Tasks, done: Mapping[tuple[int, str], Sequence[Outcome]]) -> str:
    """Both tables and the two numbers between them."""
    cost, default = found.cost, TicketCost()
    service = f"{1e6 * cost.service:.2f} us" + ("" if found.flooded else " at most, as the counter was not flooded")
    measured = "measured cost" if found.flooded else "measured cost, at most"
    return "\n".join(
        [
            f"Ranks: {len(floods)}, cores: {available_cores()}.\n",
            markdown(("callers", "us for each draw", "to one caller", "model us"), list(flood_rows(floods, cost))),
            f"\nlatency {1e6 * cost.latency:.2f} us, service {service}.",
            f"By default: {1e6 * default.latency:.2f} and {1e6 * default.service:.2f} us.\n",
            f"{len(tasks.cost)} tasks, {len(tasks.nonnull)} of them not null; share of all ranks' time for tickets:\n",
            markdown(
                ("ranks", "balancer", "default cost", measured, "time measured / default"),
                list(model_rows(done)),
            ),
        ]
    )


def main() -> None:
    """Print the tables on the first rank."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=2000, help="tickets for each caller in each repeat")
    parser.add_argument("--repeats", type=int, default=5, help="how often each flood is measured")
    parser.add_argument("--tasks", type=int, default=60_000, help="tuples of result tiles in the model")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw both tables as well")
    args = parser.parse_args()
    ranks = load_mpi().COMM_WORLD
    floods = list(measure(ranks, args.draws, args.repeats))
    if ranks.rank == 0:
        found, tasks = fit(floods), task_list(args.tasks)
        done = modelled(tasks, (TicketCost(), found.cost))
        print(report(floods, found, tasks, done))
        if args.plots is not None:
            draw_plots(floods, done, args.plots)
    meet(ranks)


if __name__ == "__main__":
    main()
