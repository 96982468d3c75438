"""Six balancers on a task list like that of generated coupled-cluster code, on the clock of a model.

    python benchmarks/balancers.py [--tasks 60000] [--noise 0.5] [--latency 2e-6] [--service 4e-7]

Task times spread over two decades and three quarters of the tasks are null, as Ozog et al. (2013) found for triples.
Tickets come from a counter that serves one caller after the other (`flood.py` measures what that costs); what tasks
really take scatters around what the balancers expect. Nothing is run: the table says how a balancer would fare.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from tables import markdown
from tilewise.plans.balance import Tasks
from tilewise.plans.comparison import Comparison, compare_deals
from tilewise.plans.pools import TicketCost

RANKS = (64, 256, 1024)
RANKS_PER_NODE = 16
NULL = 0.75
SHORTEST, DECADES = 1e-4, 2
BLOCKS, READS = 4000, 8
BLOCK_BYTES = 1 << 19
SEED = 2013
HEADER = ("ranks", "balancer", "tickets", "for tickets", "imbalance", "moved GB", "time / nonnull")
EXPECTED = (
    "Ozog et al. (2013): dropping null tasks made benzene CCSD 25 to 33 % faster, and up to 50 % at scale; buckets "
    "were up to 16 % faster than a counter over the tasks that are left."
)


def task_list(count: int) -> Tasks:
    """Tasks whose neighbours read some of the same blocks."""
    rng = np.random.default_rng(SEED)
    cost = SHORTEST * 10.0 ** (DECADES * rng.beta(1.0, 2.0, count))
    cost *= rng.random(count) >= NULL
    first = np.arange(count) * BLOCKS // count
    near = np.sort((first[:, None] + rng.integers(0, BLOCKS // 20, (count, READS))) % BLOCKS, axis=1)
    fresh = np.concatenate([np.ones((count, 1), bool), np.diff(near, axis=1) > 0], axis=1) & (cost > 0)[:, None]
    ptr = np.concatenate([[0], np.cumsum(fresh.sum(axis=1))])
    return Tasks(cost, ptr.astype(np.int64), near[fresh], np.full(BLOCKS, BLOCK_BYTES))


def rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    """One line for each balancer."""
    reference = found.of("nonnull").outcome.seconds
    for row in found.rows:
        done = row.outcome
        yield (
            str(found.ranks),
            done.balancer,
            str(done.tickets),
            f"{100 * done.ticket_share:.1f} %",
            f"{done.imbalance:.3f}",
            f"{row.moved_bytes * 1e-9:.1f}",
            f"{done.seconds / reference:.3f}",
        )


def verdicts(found: Comparison) -> Iterator[str]:
    """What was found before, and whether the model agrees."""
    seconds = {row.outcome.balancer: row.outcome.seconds for row in found.rows}
    for text, holds in (
        ("dropping null tasks helps", seconds["nonnull"] < seconds["counter"]),
        ("buckets beat a static partition", seconds["buckets"] < seconds["static"]),
        ("buckets beat a counter over non-null tasks", seconds["buckets"] < seconds["nonnull"]),
    ):
        yield f"- {found.ranks} ranks: {text}: {'yes' if holds else 'NO'}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=60_000, help="tuples of result tiles")
    parser.add_argument("--noise", type=float, default=0.5, help="scatter of the logarithm of task times")
    default = TicketCost()
    parser.add_argument("--latency", type=float, default=default.latency, help="seconds for a ticket to come and go")
    parser.add_argument("--service", type=float, default=default.service, help="seconds in which nobody else is served")
    args = parser.parse_args()
    tasks, cost = task_list(args.tasks), TicketCost(args.latency, args.service)
    found = [
        compare_deals("model", tasks, ranks=n, ranks_per_node=RANKS_PER_NODE, tickets=cost, noise=args.noise)
        for n in RANKS
    ]
    print(f"{args.tasks} tasks, {len(tasks.nonnull)} of them not null, {RANKS_PER_NODE} ranks on a node.\n")
    print(markdown(HEADER, [row for each in found for row in rows(each)]))
    print("\n".join(["", *(line for each in found for line in verdicts(each)), "", EXPECTED]))


if __name__ == "__main__":
    main()
