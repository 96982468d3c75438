"""Balancers: every task is dealt once, loads are even, tickets are counted, and the model agrees with small cases."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from tilewise.plans import partition
from tilewise.plans.balance import BALANCERS, Deal, Tasks, cut_evenly, deal, deal_mirrored, longest_first
from tilewise.plans.pools import TicketCost, draw_tickets, moved_bytes, replay

FREE = TicketCost(latency=0.0, service=0.0)


def make_tasks(cost: list[float], reads: list[list[int]] | None = None, block_bytes: list[int] | None = None) -> Tasks:
    reads = [[] for _ in cost] if reads is None else reads
    ptr = np.concatenate([[0], np.cumsum([len(each) for each in reads])]).astype(np.int64)
    block = np.array([b for each in reads for b in each], np.int64)
    sizes = np.array([1] * (int(block.max(initial=-1)) + 1) if block_bytes is None else block_bytes, np.int64)
    return Tasks(np.array(cost, np.float64), ptr, block, sizes)


@st.composite
def task_lists(draw: st.DrawFn) -> Tasks:
    cost = draw(st.lists(st.one_of(st.just(0.0), st.floats(0.01, 100.0)), max_size=40))
    blocks = draw(st.integers(1, 8))
    reads = [draw(st.lists(st.integers(0, blocks - 1), max_size=4, unique=True)) for _ in cost]
    return make_tasks(cost, reads, draw(st.lists(st.integers(1, 1000), min_size=blocks, max_size=blocks)))


@settings(max_examples=200)
@given(task_lists(), st.sampled_from(BALANCERS), st.integers(1, 9), st.integers(1, 4))
def test_every_task_is_dealt_and_done_once(tasks: Tasks, balancer: str, ranks: int, ranks_per_node: int) -> None:
    dealt = deal(balancer, tasks, ranks, ranks_per_node)
    expected = range(len(tasks.cost)) if balancer == "counter" else tasks.nonnull.tolist()
    assert sorted(dealt.task.tolist()) == list(expected)
    assert len(dealt.queue) == ranks
    assert set(dealt.queue.tolist()) == set(range(len(dealt.ptr) - 1))
    done = replay(dealt, tasks.cost, TicketCost(1e-3, 1e-4))
    assert (done.rank_of_task[tasks.nonnull] >= 0).all()
    assert done.busy.sum() == pytest.approx(tasks.cost.sum())
    assert done.seconds >= tasks.cost.max(initial=0.0) - 1e-12
    if balancer != "stealing":
        assert done.tickets == dealt.tickets
    if dealt.is_static:
        assert done.tickets == 0
        assert np.array_equal(done.rank_of_task, dealt.rank_of_task(len(tasks.cost)))


def test_tickets_are_one_for_each_task_and_one_for_each_rank_that_finds_none() -> None:
    tasks = make_tasks([1.0, 0.0, 0.0, 2.0, 0.0, 3.0])
    assert deal("counter", tasks, 4).tickets == 6 + 4
    assert deal("nonnull", tasks, 4).tickets == 3 + 4
    assert deal("buckets", tasks, 4, 2).tickets == 3 + 4
    assert deal("buckets", tasks, 4, 1).tickets == deal("static", tasks, 4).tickets == 0


@given(st.lists(st.floats(0.0, 10.0), max_size=50), st.integers(1, 12))
def test_runs_of_equal_weight_exceed_the_mean_by_one_weight_at_most(weights: list[float], count: int) -> None:
    weight = np.array(weights)
    ptr = cut_evenly(weight, count)
    assert ptr[0] == 0
    assert ptr[-1] == len(weight)
    assert (np.diff(ptr) >= 0).all()
    runs = [weight[a:b].sum() for a, b in itertools.pairwise(ptr)]
    assert max(runs) <= weight.sum() / count + weight.max(initial=0.0) + 1e-9


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=50), st.integers(1, 8))
def test_longest_first_keeps_its_guarantee(weights: list[float], count: int) -> None:
    weight = np.array(weights)
    order, ptr = longest_first(weight, np.ones(count))
    assert sorted(order.tolist()) == list(range(len(weight)))
    loads = [weight[order[a:b]].sum() for a, b in itertools.pairwise(ptr)]
    assert max(loads) <= (weight.sum() + (count - 1) * weight.max()) / count + 1e-9


def test_a_stronger_receiver_gets_more() -> None:
    order, ptr = longest_first(np.ones(30), [2.0, 1.0])
    assert np.diff(ptr).tolist() == [20, 10]
    assert len(order) == 30


def test_mirrored_dealing_goes_forward_and_back() -> None:
    weight = np.arange(10, 0, -1.0)
    assert deal_mirrored(weight, 3).tolist() == [0, 1, 2, 2, 1, 0, 0, 1, 2, 2]


def test_a_counter_serves_one_caller_after_the_other() -> None:
    """Two ranks, three tasks of 1 s, a ticket of 0.1 s each: worked out by hand."""
    done = replay(deal("nonnull", make_tasks([1.0, 1.0, 1.0]), 2), np.ones(3), TicketCost(0.0, 0.1))
    # Rank 0: ticket to 0.1, task to 1.1, ticket to 1.2, task to 2.2, empty ticket to 2.3.
    # Rank 1: ticket to 0.2, task to 1.2, empty ticket to 1.3.
    assert done.seconds == pytest.approx(2.3)
    assert done.busy.tolist() == [2.0, 1.0]
    assert done.waiting == pytest.approx([0.3, 0.3])
    assert done.rank_of_task.tolist() == [0, 1, 0]


@given(st.lists(st.floats(0.0, 3.0), max_size=40), st.integers(1, 9), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_tickets_go_to_whoever_asks_first(times: list[float], callers: int, latency: float, service: float) -> None:
    took, busy, waiting, end = draw_tickets(np.array(times), callers, latency, service)
    asks, free, expected = [(0.0, caller) for caller in range(callers)], 0.0, []
    for seconds in times:
        asked, caller = heapq.heappop(asks)
        free = max(asked + latency, free) + service
        expected.append(caller)
        heapq.heappush(asks, (free + seconds, caller))
    assert took.tolist() == expected
    assert busy == pytest.approx(np.bincount(np.array(expected, int), times, callers))
    assert end == pytest.approx(busy + waiting)


def test_a_flooded_counter_costs_what_its_callers_wait_for() -> None:
    cost = TicketCost(latency=2e-6, service=1e-6)
    assert cost.per_call(1) == pytest.approx(3e-6)
    assert cost.per_call(100) == pytest.approx(1e-4)
    calls, ranks = 10_000, 50
    done = replay(deal("counter", make_tasks([0.0] * calls), ranks), np.zeros(calls), cost)
    assert done.seconds * ranks / (calls + ranks) == pytest.approx(cost.per_call(ranks), rel=0.02)


def test_a_thief_takes_from_the_back_of_the_fullest_queue() -> None:
    done = replay(deal("stealing", make_tasks([4.0, 1.0, 1.0, 1.0, 1.0]), 2), np.array([1.0, 4, 4, 4, 4]), FREE)
    assert done.busy.sum() == 17
    assert done.seconds < 16  # without stealing rank 1 would work off four tasks of 4 s
    assert done.rank_of_task[0] == 0


def test_bytes_count_each_block_once_for_each_rank() -> None:
    tasks = make_tasks([1.0, 1.0, 1.0, 0.0], [[0, 1], [1, 2], [2], [0]], [10, 20, 40])
    ranks = np.array([0, 0, 1, -1])
    assert moved_bytes(tasks, ranks) == 10 + 20 + 40 + 40
    assert moved_bytes(tasks, ranks, owner=np.array([0, 1, 1])) == 20 + 40


@pytest.mark.parametrize("library", [False, True])
def test_tasks_that_share_blocks_stay_together(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if library:
        pytest.importorskip("mtkahypar")
    else:
        monkeypatch.setattr(partition, "find_spec", lambda name: None)
    rng = np.random.default_rng(0)
    family = rng.permutation(np.repeat(np.arange(4), 16))
    reads = [[int(f) * 8 + int(b) for b in rng.choice(8, 5, replace=False)] for f in family]
    tasks = make_tasks([1.0] * 64, reads, [1000] * 32)
    dealt = deal("hypergraph", tasks, 4)
    ranks = dealt.rank_of_task(64)
    assert np.bincount(ranks).max() <= 17
    assert moved_bytes(tasks, ranks) <= 0.5 * moved_bytes(tasks, deal("static", tasks, 4).rank_of_task(64))


def test_what_makes_no_sense_is_refused() -> None:
    tasks = make_tasks([1.0])
    with pytest.raises(tw.InputError, match=r"balancer='dice' is unknown\. Expected one of counter"):
        deal("dice", tasks, 2)
    with pytest.raises(tw.InputError, match="0 ranks, 1 on a node, cannot share tasks"):
        deal("static", tasks, 0)
    with pytest.raises(tw.InputError, match="The counter balancer settles who does a task while it runs"):
        deal("counter", tasks, 2).rank_of_task(1)
    with pytest.raises(tw.InputError, match="A task has a negative cost"):
        make_tasks([-1.0])
    none = np.zeros(0, np.int64)
    with pytest.raises(tw.InputError, match="1 tasks with 1 list ends and 0 blocks do not fit"):
        Tasks(np.ones(1), np.zeros(1, np.int64), none, none)
    assert isinstance(deal("static", tasks, 1), Deal)
