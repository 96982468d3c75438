"""Who does which task: the balancers of Ozog et al. (2013, III) and two more, as queues that ranks draw from.

Every balancer gives the same thing, a `Deal`: some queues of tasks and, for each rank, the queue it draws from.

| balancer | queues | a rank |
|---|---|---|
| `counter` | one, with every tuple of tiles, null or not | draws a ticket for each |
| `nonnull` | one, with the tasks that do something | draws a ticket for each |
| `static` | one for each rank: neighbouring tasks of equal weight | works its own off |
| `buckets` | one for each node: longest task first, to the least loaded node | draws from its node's counter |
| `hypergraph` | one for each rank: tasks that share blocks stay together | works its own off |
| `stealing` | those of `static` | works its own off, then takes from the fullest |
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BALANCERS = ("counter", "nonnull", "static", "buckets", "hypergraph", "stealing")
"""Names that ``balancer=`` takes."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of a contraction, one for each tuple of result tiles that is looked at."""

    cost: Floats
    """Seconds that each is expected to take; 0 for a null task, which does nothing."""
    ptr: Ints
    """First block that each task reads; one more at the end."""
    block: Ints
    """Blocks that the tasks read, numbered over all operands."""
    block_bytes: Ints
    """Bytes of each block."""

    def __post_init__(self) -> None:
        if len(self.ptr) != len(self.cost) + 1 or self.ptr[-1] != len(self.block):
            raise InputError(
                f"{len(self.cost)} tasks with {len(self.ptr)} list ends and {len(self.block)} blocks do not fit "
                "together. Expected one list of blocks for each task. Correct the lists."
            )
        if not (self.cost >= 0).all():
            raise InputError("A task has a negative cost. Expected seconds >= 0, 0 for a null task. Correct the costs.")

    @property
    def nonnull(self) -> Ints:
        """The tasks that do something."""
        return np.flatnonzero(self.cost > 0)


@dataclass(frozen=True, slots=True)
class Deal:
    """Tasks in queues, and who draws from which."""

    balancer: str
    """Who dealt them."""
    ptr: Ints
    """First task of each queue; one more at the end."""
    task: Ints
    """Tasks in the order in which they are drawn."""
    queue: Ints
    """The queue of each rank."""

    @property
    def tickets(self) -> int:
        """Draws from queues that several ranks share; each rank's last one finds the queue empty."""
        shared = np.bincount(self.queue, minlength=len(self.ptr) - 1) > 1
        drawn = np.diff(self.ptr)[shared].sum()
        return int(drawn) + int(shared[self.queue].sum())

    @property
    def is_static(self) -> bool:
        """Whether it is settled before the run who does what."""
        return self.balancer in ("static", "hypergraph")

    def rank_of_task(self, count: int) -> Ints:
        """The rank of each task of a static deal; -1 for null tasks.

        Parameters
        ----------
        count : int
            Number of tasks.
        """
        if not self.is_static:
            raise InputError(
                f"The {self.balancer} balancer settles who does a task while it runs. Expected a static one. Use "
                "balancer='static' or 'hypergraph'."
            )
        found = np.full(count, -1, np.int64)
        rank_of_queue = np.empty(len(self.ptr) - 1, np.int64)
        rank_of_queue[self.queue] = np.arange(len(self.queue))
        found[self.task] = np.repeat(rank_of_queue, np.diff(self.ptr))
        return found


def deal(balancer: str, tasks: Tasks, ranks: int, ranks_per_node: int = 1) -> Deal:
    """Put tasks into queues.

    Parameters
    ----------
    balancer : str
        One of `BALANCERS`.
    tasks : Tasks
        The tasks.
    ranks : int
        How many ranks there are.
    ranks_per_node : int
        How many of them share a node; the last node may have fewer.

    Examples
    --------
    >>> import numpy as np
    >>> cost = np.array([3.0, 0.0, 1.0, 2.0])
    >>> none = Tasks(cost, np.zeros(5, int), np.zeros(0, int), np.zeros(0, int))
    >>> deal("nonnull", none, ranks=2).task.tolist()
    [0, 2, 3]
    >>> deal("static", none, ranks=2).rank_of_task(4).tolist()
    [0, -1, 1, 1]
    """
    if balancer not in BALANCERS:
        raise InputError(f"balancer={balancer!r} is unknown. Expected one of {', '.join(BALANCERS)}. Correct the name.")
    if ranks < 1 or ranks_per_node < 1:
        raise InputError(
            f"{ranks} ranks, {ranks_per_node} on a node, cannot share tasks. Expected at least one. Correct it."
        )
    return _DEALERS[balancer](tasks, ranks, ranks_per_node)


def _one_queue(balancer: str, order: Ints, ranks: int) -> Deal:
    return Deal(balancer, np.array([0, len(order)]), order, np.zeros(ranks, np.int64))


def _counter(tasks: Tasks, ranks: int, ranks_per_node: int) -> Deal:
    return _one_queue("counter", np.arange(len(tasks.cost)), ranks)


def _nonnull(tasks: Tasks, ranks: int, ranks_per_node: int) -> Deal:
    return _one_queue("nonnull", tasks.nonnull, ranks)


def _static(tasks: Tasks, ranks: int, ranks_per_node: int) -> Deal:
    own = tasks.nonnull
    return Deal("static", cut_evenly(tasks.cost[own], ranks), own, np.arange(ranks))


def _stealing(tasks: Tasks, ranks: int, ranks_per_node: int) -> Deal:
    return replace(_static(tasks, ranks, ranks_per_node), balancer="stealing")


def _buckets(tasks: Tasks, ranks: int, ranks_per_node: int) -> Deal:
    node = np.arange(ranks) // ranks_per_node
    strength = np.bincount(node).astype(np.float64)
    own = tasks.nonnull
    order, ptr = longest_first(tasks.cost[own], strength)
    return Deal("buckets", ptr, own[order], node)


def _hypergraph(tasks: Tasks, ranks: int, ranks_per_node: int) -> Deal:
    from tilewise.plans.partition import partition_tasks

    own = tasks.nonnull
    part = partition_tasks(tasks, own, ranks)
    order = np.argsort(part, kind="stable")
    ptr = np.searchsorted(part[order], np.arange(ranks + 1))
    return Deal("hypergraph", ptr.astype(np.int64), own[order], np.arange(ranks))


_DEALERS: Final[Mapping[str, Callable[[Tasks, int, int], Deal]]] = {
    "counter": _counter,
    "nonnull": _nonnull,
    "static": _static,
    "buckets": _buckets,
    "hypergraph": _hypergraph,
    "stealing": _stealing,
}


def cut_evenly(weight: Floats, count: int) -> Ints:
    """Cut a sequence into runs of nearly equal weight: first of each, one more at the end.

    The largest run is within one weight of the mean.
    """
    total = np.concatenate([[0.0], np.cumsum(weight)])
    aims = np.linspace(0.0, total[-1], count + 1)[1:-1]
    after = np.searchsorted(total, aims)
    before = np.maximum(after - 1, 0)
    cuts = np.where(aims - total[before] < total[np.minimum(after, len(weight))] - aims, before, after)
    ends = np.concatenate([[0], cuts, [len(weight)]])
    return np.maximum.accumulate(ends).astype(np.int64)


def longest_first(weight: Floats, strength: Sequence[float] | Floats) -> tuple[Ints, Ints]:
    """Longest processing time first: each weight, largest first, to who would be done first.

    Parameters
    ----------
    weight : array of float
        What is dealt out.
    strength : array of float
        How fast each receiver is.

    Returns
    -------
    tuple
        The weights' numbers, receiver by receiver, each in the order in which it got them; where each receiver's
        begin, one more at the end.
    """
    heap = [(0.0, receiver) for receiver in range(len(strength))]
    receiver_of = np.empty(len(weight), np.int64)
    order = np.argsort(-weight, kind="stable")
    for number in order.tolist():
        load, receiver = heap[0]
        receiver_of[number] = receiver
        heapq.heapreplace(heap, (load + weight[number] / strength[receiver], receiver))
    by_receiver = order[np.argsort(receiver_of[order], kind="stable")]
    ptr = np.searchsorted(receiver_of[by_receiver], np.arange(len(strength) + 1))
    return by_receiver, ptr.astype(np.int64)


def deal_mirrored(weight: Floats, count: int) -> Ints:
    """Who gets each weight: sorted, largest first, and dealt forward, then backward (Herault et al. 2020, 3.2.1)."""
    found = np.empty(len(weight), np.int64)
    found[np.argsort(-weight, kind="stable")] = mirrored(np.arange(len(weight)), count)
    return found


def mirrored(turn: Ints, count: int) -> Ints:
    """Who is served at each turn: forward, then backward."""
    place = turn % (2 * count)
    return np.minimum(place, 2 * count - 1 - place)


def over_mean(loads: Floats) -> float:
    """The largest over the mean; 1 if all are zero."""
    mean = float(loads.mean()) if len(loads) else 0.0
    return float(loads.max()) / mean if mean > 0 else 1.0
