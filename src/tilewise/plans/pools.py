"""What a deal of tasks comes to: time, tickets and moved bytes, from a model of the counter that tickets come from.

A counter is a place in the memory of one rank.  A ticket takes a message there and back, and the counter serves one
caller after the other, so the time for a ticket grows with the number of callers as soon as they come faster than it
serves them: what the flood test shows (Ozog et al. 2013, Fig. 2).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.plans.balance import Deal, Tasks, over_mean
from tilewise.plans.compile import compiled
from tilewise.plans.propagation import nonnegative

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TicketCost:
    """What a ticket costs; by default about what a one-sided fetch-and-add takes between two nodes."""

    latency: float = 2e-6
    """Seconds for the message to the counter and back."""
    service: float = 4e-7
    """Seconds in which the counter serves nobody else."""

    def __post_init__(self) -> None:
        if nonnegative(self.latency) is None or nonnegative(self.service) is None:
            raise InputError(
                f"A ticket cannot take {self.latency!r} and {self.service!r} seconds. Expected numbers that are not "
                "negative. Correct them."
            )

    def per_call(self, callers: int) -> float:
        """Seconds for each call when so many do nothing but call."""
        return max(self.latency + self.service, callers * self.service)


NODE_TICKETS = TicketCost(latency=0.0, service=5e-8)
"""A counter in memory that its callers share."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a deal comes to, measured or modelled."""

    balancer: str
    """Who dealt the tasks."""
    seconds: float
    """From the beginning to the end of the last rank."""
    busy: Floats
    """Seconds that each rank worked on tasks."""
    waiting: Floats
    """Seconds that each rank spent on tickets."""
    tickets: int
    """Tickets drawn, those that found the queue empty included."""
    rank_of_task: Ints
    """Who did each task; -1 for null tasks."""

    @property
    def imbalance(self) -> float:
        """The busiest rank's time over the mean."""
        return over_mean(self.busy)

    @property
    def ticket_share(self) -> float:
        """The share of all ranks' time that went into tickets."""
        total = self.seconds * len(self.busy)
        return float(self.waiting.sum()) / total if total > 0 else 0.0


def replay(dealt: Deal, seconds: Floats, tickets: TicketCost) -> Outcome:
    """Run the queues on the clock of a model.

    Parameters
    ----------
    dealt : Deal
        Tasks in queues.
    seconds : array of float
        What each task really takes, which the balancer need not have known.
    tickets : TicketCost
        Of a counter that ranks on other nodes draw from.
    """
    run = _Replay(len(dealt.queue), len(seconds))
    if dealt.balancer == "stealing":
        run.steal(dealt, seconds, tickets)
        return run.outcome(dealt.balancer)
    cost = NODE_TICKETS if dealt.balancer == "buckets" else tickets
    members: list[list[int]] = [[] for _ in range(len(dealt.ptr) - 1)]
    for rank, queue in enumerate(dealt.queue.tolist()):
        members[queue].append(rank)
    for queue, ranks in enumerate(members):
        own = dealt.task[dealt.ptr[queue] : dealt.ptr[queue + 1]]
        if len(ranks) == 1:
            run.work_off(ranks[0], own, seconds)
        else:
            run.draw(ranks, own, seconds, cost)
    return run.outcome(dealt.balancer)


class _Replay:
    """The clocks of all ranks."""

    def __init__(self, ranks: int, tasks: int) -> None:
        self.clock, self.busy, self.waiting = [0.0] * ranks, [0.0] * ranks, [0.0] * ranks
        self.rank_of_task = np.full(tasks, -1, np.int64)
        self.tickets = 0

    def work_off(self, rank: int, own: Ints, seconds: Floats) -> None:
        """One rank does its own tasks."""
        total = float(seconds[own].sum())
        self.busy[rank] += total
        self.clock[rank] += total
        self.rank_of_task[own] = rank

    def draw(self, ranks: list[int], own: Ints, seconds: Floats, cost: TicketCost) -> None:
        """Ranks draw tickets from one counter until it is empty, and once more to see that it is."""
        took, busy, waiting, end = draw_tickets(seconds[own], len(ranks), cost.latency, cost.service)
        for number, rank in enumerate(ranks):
            self.busy[rank], self.waiting[rank], self.clock[rank] = busy[number], waiting[number], end[number]
        self.tickets += len(own) + len(ranks)
        self.rank_of_task[own] = np.array(ranks)[took]

    def steal(self, dealt: Deal, seconds: Floats, cost: TicketCost) -> None:
        """Ranks do their own tasks from the front; who has none left takes one from the back of the fullest queue."""
        queues = [dealt.task[dealt.ptr[q] : dealt.ptr[q + 1]].tolist() for q in dealt.queue.tolist()]
        for queue in queues:
            queue.reverse()
        left = [float(seconds[queue].sum()) for queue in queues]
        heap = [(0.0, rank) for rank in range(len(queues))]
        while heap:
            now, rank = heap[0]
            if queues[rank]:
                task = queues[rank].pop()
                left[rank] -= float(seconds[task])
            else:
                victim = max(range(len(queues)), key=lambda other: left[other] if queues[other] else -1.0)
                self.tickets += 1
                self.waiting[rank] += cost.latency + cost.service
                now += cost.latency + cost.service
                if not queues[victim]:
                    self.clock[rank] = now
                    heapq.heappop(heap)
                    continue
                task = queues[victim].pop(0)
                left[victim] -= float(seconds[task])
            self.busy[rank] += float(seconds[task])
            self.rank_of_task[task] = rank
            heapq.heapreplace(heap, (now + float(seconds[task]), rank))

    def outcome(self, balancer: str) -> Outcome:
        """What came of it."""
        return Outcome(
            balancer,
            max(self.clock, default=0.0),
            np.array(self.busy),
            np.array(self.waiting),
            self.tickets,
            self.rank_of_task,
        )


@compiled
def draw_tickets(seconds, callers, latency, service):  # type: ignore[no-untyped-def]
    """Callers take tasks in order, whoever asks first; the counter serves one after the other.

    A heap holds when each caller asks next, by time and then by number.

    Returns
    -------
    tuple of arrays
        The caller of each task; of each caller the seconds at work, the seconds for tickets, and when it is done.
    """
    when, who = np.zeros(callers), np.arange(callers)
    took = np.empty(len(seconds), np.int64)
    busy, waiting, end = np.zeros(callers), np.zeros(callers), np.zeros(callers)
    free, size = 0.0, callers
    for task in range(len(seconds) + callers):
        asked, caller = when[0], who[0]
        free = max(asked + latency, free) + service
        waiting[caller] += free - asked
        if task < len(seconds):
            took[task] = caller
            busy[caller] += seconds[task]
            time = free + seconds[task]
        else:
            end[caller] = free
            size -= 1
            time, caller = when[size], who[size]
        hole = 0
        while True:
            child = 2 * hole + 1
            if child >= size:
                break
            right = child + 1
            if right < size and (when[right] < when[child] or (when[right] == when[child] and who[right] < who[child])):
                child = right
            if time < when[child] or (time == when[child] and caller < who[child]):
                break
            when[hole], who[hole] = when[child], who[child]
            hole = child
        when[hole], who[hole] = time, caller
    return took, busy, waiting, end


def moved_bytes(tasks: Tasks, rank_of_task: Ints, owner: Ints | None = None) -> int:
    """Bytes that ranks fetch for their tasks, each block once per rank.

    Parameters
    ----------
    tasks : Tasks
        The tasks and what they read.
    rank_of_task : array of int
        Who does each; -1 for nobody.
    owner : array of int, optional
        The rank that has each block and need not fetch it; by default nobody has any.
    """
    count = np.diff(tasks.ptr)
    rank, block = np.repeat(rank_of_task, count), tasks.block
    needed = rank >= 0
    blocks = max(len(tasks.block_bytes), 1)
    pairs = np.unique(rank[needed] * blocks + block[needed])
    rank, block = np.divmod(pairs, blocks)
    if owner is not None:
        block = block[owner[block] != rank]
    return int(tasks.block_bytes[block].sum()) if len(block) else 0
