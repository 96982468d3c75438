"""Balancers side by side: tasks are those of the loops over result tiles, and the figures are those of their deals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import tilewise as tw
from plans.enumeration import all_products, work_of
from strategies import EinsumCase, matrix_cases
from tilewise.machine import Machine
from tilewise.plans import Plan
from tilewise.plans.balance import BALANCERS, Tasks, deal
from tilewise.plans.comparison import compare_deals, list_tasks
from tilewise.plans.pools import TicketCost, moved_bytes


@given(matrix_cases("float64", batches=1))
def test_tasks_are_the_tuples_of_result_tiles_with_what_they_read(case: EinsumCase) -> None:
    plan = tw.plan(case.text, *[tensor.pattern for tensor in case.tensors])
    assert isinstance(plan, Plan)
    tasks = list_tasks(plan, Machine.measured())
    left, right = (operand.pattern for operand in plan.operands)
    expected: dict[tuple[int, ...], set[int]] = {}
    rows = [{tuple(block): row for row, block in enumerate(p.index.tolist())} for p in (left, right)]
    for a, b, c in all_products(work_of(plan).contraction, left, right):
        expected.setdefault(c, set()).update((rows[0][a], left.nnz_blocks + rows[1][b]))
    tuples = list(np.ndindex(*plan.result.ntiles))
    assert len(tasks.cost) == len(tuples)
    for number, tiles in enumerate(tuples):
        read = tasks.block[tasks.ptr[number] : tasks.ptr[number + 1]].tolist()
        assert read == sorted(expected.get(tiles, ()))
        assert (tasks.cost[number] > 0) == bool(read)
    assert tasks.block_bytes.sum() == left.nbytes("float64") + right.nbytes("float64")


def test_figures_are_those_of_the_deals() -> None:
    i = tw.Space([10, 20] * 6)
    p = tw.Pattern.random((i, i), density=0.2)
    found = tw.compare_balancers("ij,jk->ik", p, p, ranks=6, ranks_per_node=2)
    plan = tw.plan("ij,jk->ik", p, p)
    assert isinstance(plan, Plan)
    tasks = list_tasks(plan, Machine.measured())
    assert found.tasks == 144
    assert found.null_tasks == 144 - plan.result.nnz_blocks
    assert [row.outcome.balancer for row in found.rows] == list(BALANCERS)
    assert found.of("counter").outcome.tickets == 144 + 6
    for name in ("nonnull", "buckets"):
        assert found.of(name).outcome.tickets == plan.result.nnz_blocks + 6
    for name in ("static", "hypergraph"):
        rank = deal(name, tasks, 6, 2).rank_of_task(144)
        owner = np.arange(2 * p.nnz_blocks) % 6
        assert found.of(name).moved_bytes == moved_bytes(tasks, rank, owner)
        busy = np.bincount(rank[rank >= 0], tasks.cost[rank >= 0], 6)
        assert found.of(name).outcome.imbalance == pytest.approx(busy.max() / busy.mean())
    assert found.fastest in BALANCERS
    text, html = found.explain(), found._repr_html_()
    for name in BALANCERS:
        assert name in text
        assert name in html
    assert "144 tasks" in text
    assert "6 ranks" in repr(found)


def like_a_generated_code(count: int, seed: int) -> Tasks:
    """Task times over two decades, three quarters of the tasks null, neighbours alike (Ozog et al. 2013, Fig. 3)."""
    rng = np.random.default_rng(seed)
    cost = 1e-4 * 100.0 ** rng.beta(1.0, 2.0, count)
    cost *= rng.random(count) < 0.25
    none = np.zeros(0, np.int64)
    return Tasks(cost, np.zeros(count + 1, np.int64), none, none)


@pytest.mark.parametrize("ranks", [64, 256, 1024])
def test_balancers_are_in_the_order_that_was_found_before(ranks: int) -> None:
    """Dropping null tasks helps; buckets beat a static partition where task times are noisy (Ozog et al. 2013, V)."""
    tasks = like_a_generated_code(100_000, seed=ranks)
    found = compare_deals(
        "model", tasks, ranks=ranks, ranks_per_node=16, tickets=TicketCost(latency=2e-6, service=1e-6), noise=0.5
    )
    seconds = {row.outcome.balancer: row.outcome.seconds for row in found.rows}
    assert found.of("counter").outcome.tickets == 100_000 + ranks
    assert found.of("nonnull").outcome.tickets == len(tasks.nonnull) + ranks
    assert seconds["nonnull"] < seconds["counter"]
    assert seconds["buckets"] < seconds["static"]
    shares = [found.of(name).outcome.ticket_share for name in ("counter", "nonnull", "buckets")]
    assert shares == sorted(shares, reverse=True)


def test_what_cannot_be_compared_is_refused() -> None:
    i = tw.Space([2] * 3)
    p = tw.Pattern.dense((i, i))
    with pytest.raises(tw.InputError, match=r"'ij,jk,kl->il' has 2 steps\. Expected one product"):
        tw.compare_balancers("ij,jk,kl->il", p, p, p, ranks=2)
    with pytest.raises(tw.InputError, match=r"ij->ji has no products to share"):
        tw.compare_balancers("ij->ji", p, ranks=2)
    for ranks in (0, -1, 2.5, True, "2"):
        with pytest.raises(tw.InputError, match=r"is no number of ranks\. Expected an integer >= 1"):
            tw.compare_balancers("ij,jk->ik", p, p, ranks=ranks)  # type: ignore[arg-type]
    with pytest.raises(tw.InputError, match=r"ranks_per_node=0 is no number of ranks"):
        tw.compare_balancers("ij,jk->ik", p, p, ranks=2, ranks_per_node=0)
    for noise in (-1, 100, float("nan"), "much"):
        with pytest.raises(tw.InputError, match=r"is no scatter of task times"):
            tw.compare_balancers("ij,jk->ik", p, p, ranks=2, noise=noise)  # type: ignore[arg-type]
    big = tw.Pattern.random((tw.Space([1] * 20_000),) * 2, density=1e-7)
    with pytest.raises(tw.InputError, match=r"has 400000000 tuples of result tiles"):
        tw.compare_balancers("ij,jk->ik", big, big, ranks=2)


def test_products_of_nothing_are_shared() -> None:
    empty = tw.Pattern.dense((tw.Space([]), tw.Space([])))
    found = tw.compare_balancers("ij,jk->ik", empty, empty, ranks=3)
    assert found.tasks == 0
    assert "0 tasks" in found.explain()
    nothing = tw.Pattern.random((tw.Space([2, 2]),) * 2, density=0.0)
    found = tw.compare_balancers("ij,jk->ik", nothing, nothing, ranks=3)
    assert found.null_tasks == found.tasks == 4
