"""Ranks that share a product: each block product is done once, everybody has what it needs, nothing comes twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewise as tw
from tilewise.plans.layout import EVERYBODY, make_layout
from tilewise.plans.parts import part_of_rank
from tilewise.plans.shares import ALGORITHMS
from tilewise.plans.sharing import Request, Sharing, fit_budget, plan_sharing
from tilewise.plans.traffic import NOBODY, Traffic


@st.composite
def shared(draw: st.DrawFn) -> Sharing:
    sizes = st.lists(st.integers(1, 9), min_size=1, max_size=6)
    i, j, k = (tw.Space(draw(sizes)) for _ in range(3))
    left = tw.Pattern.random((i, j), draw(st.floats(0.1, 1.0)), seed=draw(st.integers(0, 9)))
    right = tw.Pattern.random((j, k), draw(st.floats(0.1, 1.0)), seed=draw(st.integers(0, 9)))
    plan = tw.plan("ij,jk->ki", left, right)
    assert isinstance(plan, tw.Plan)
    ranks = draw(st.integers(1, 12))
    request = Request(
        ranks, draw(st.integers(1, 4)), draw(st.sampled_from(ALGORITHMS)), reproducible=draw(st.booleans())
    )
    owners = [draw(st.sampled_from([_round, _all, _made]))(pattern, ranks) for pattern in (left, right)]
    return plan_sharing(plan, request, owners)


def _round(pattern: tw.Pattern, ranks: int) -> np.ndarray:
    return make_layout("cyclic", pattern, ranks).owner


def _all(pattern: tw.Pattern, ranks: int) -> np.ndarray:
    return np.full(pattern.nnz_blocks, EVERYBODY)


def _made(pattern: tw.Pattern, ranks: int) -> np.ndarray:
    return np.full(pattern.nnz_blocks, NOBODY)


def fine(traffic: Traffic) -> Traffic:
    """A stage for every segment."""
    return replace(traffic, stages=np.arange(len(traffic.stages)))


@given(shared())
def test_parts_of_all_ranks_are_the_whole(sharing: Sharing) -> None:
    plan, traffic = sharing.plan, fine(sharing.traffic)
    flops = np.zeros(sharing.shares.ranks)
    for rank in range(sharing.shares.ranks):
        for stage in range(traffic.stage_count):
            part = part_of_rank(plan, sharing.shares, traffic.stages, rank, stage)
            flops[rank] += 0 if part is None else part.plan.flops
    assert flops.tolist() == traffic.rank_flops.tolist()
    assert flops.sum() == plan.flops


@given(shared())
def test_everybody_has_what_its_part_reads(sharing: Sharing) -> None:
    for traffic in (sharing.traffic, fine(sharing.traffic)):
        shares = sharing.shares
        for rank in range(shares.ranks):
            for stage in range(traffic.stage_count):
                part = part_of_rank(sharing.plan, shares, traffic.stages, rank, stage)
                for number, stored in enumerate(() if part is None else part.stored_blocks):
                    owner = traffic.owners[number][stored]
                    near = (owner == EVERYBODY) | ((owner >= 0) & (shares.node(owner) == shares.node(rank)))
                    came = traffic.arrivals[number].at(stage, int(shares.node(rank))).block
                    assert np.isin(stored[~near], came).all()


@given(shared())
def test_nothing_comes_twice_or_to_those_who_have_it(sharing: Sharing) -> None:
    shares = sharing.shares
    for arrivals in sharing.traffic.arrivals:
        key = np.stack([arrivals.stage, arrivals.node, arrivals.block])
        assert len(np.unique(key, axis=1).T) == len(arrivals.block)
        assert (shares.node(arrivals.rank) == arrivals.node).all()
        sent = arrivals.source != NOBODY
        assert (shares.node(arrivals.source[sent]) != arrivals.node[sent]).all()


@given(shared())
def test_one_node_gets_nothing_from_others(sharing: Sharing) -> None:
    alone = plan_sharing(
        sharing.plan, replace(sharing.request, ranks_per_node=sharing.request.ranks), sharing.traffic.owners
    )
    assert not alone.traffic.between_bytes.any()
    assert not alone.traffic.messages.any()


@given(shared())
def test_reproducible_sums_are_not_cut_among_ranks(sharing: Sharing) -> None:
    work = sharing.plan.work
    assert isinstance(work, tw.plans.Product)
    if sharing.request.reproducible and work.choices.pieces == 1:
        assert sharing.shares.groups == 1


def test_stages_keep_to_a_budget() -> None:
    wide, deep = tw.Space([40] * 4), tw.Space([40] * 300)
    left, right = tw.Pattern.dense((wide, deep)), tw.Pattern.dense((deep, wide))
    plan = tw.plan("ij,jk->ik", left, right)
    assert isinstance(plan, tw.Plan)
    sharing = plan_sharing(plan, Request(4, 2, "owner", reproducible=True), [_made(left, 4), _round(right, 4)])
    assert sharing.shares.groups > 1  # few cells: pieces of k are summed from zero

    def peak(found: Sharing) -> int:
        return found.largest_peak(1)

    least = fit_budget(sharing, peak(sharing) * 2 // 3, peak)
    assert peak(least) <= peak(sharing) * 2 // 3
    assert least.traffic.stage_count > sharing.traffic.stage_count
    with pytest.raises(tw.MemoryBudgetError, match=r"needs at least \d+ bytes on one of 4 ranks\. The budget of each"):
        fit_budget(sharing, 1000, peak)


def test_the_fastest_way_that_fits_is_taken() -> None:
    space = tw.Space([30, 50, 20, 40] * 3)
    pattern = tw.Pattern.random((space, space), 0.5)
    plan = tw.plan("ij,jk->ik", pattern, pattern)
    assert isinstance(plan, tw.Plan)
    request, owners = Request(6, 2), [_round(pattern, 6)] * 2
    tried: list[Sharing] = []

    def fit(sharing: Sharing) -> Sharing:
        tried.append(sharing)
        if len(tried) < 3:
            raise tw.MemoryBudgetError("too much", 1, 100 - len(tried))
        return sharing

    found = plan_sharing(plan, request, owners, fit=fit)
    assert found is tried[2]
    assert tried[0].shares is not found.shares
    assert np.array_equal(tried[0].shares.chain, plan_sharing(plan, request, owners).shares.chain)

    def refuse(sharing: Sharing) -> Sharing:
        tried.append(sharing)
        raise tw.MemoryBudgetError("too much", 1, 100 - len(tried))

    with pytest.raises(tw.MemoryBudgetError) as caught:
        plan_sharing(plan, request, owners, fit=refuse)
    assert caught.value.least_bytes == 100 - len(tried)


def test_a_balancer_means_that_ranks_own_result_blocks() -> None:
    pattern = tw.Pattern.random((tw.Space([3, 4, 5] * 4),) * 2, 0.5)
    plan = tw.plan("ij,jk->ik", pattern, pattern, ranks=4, ranks_per_node=1, balancer="hypergraph")
    assert isinstance(plan, tw.Plan)
    assert plan.sharing is not None
    assert plan.sharing.algorithm_text == "owner, hypergraph"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 0}, "is no number of ranks"),
        ({"ranks": 2, "ranks_per_node": 0}, "is no number of ranks"),
        ({"ranks": 10**9}, "are more than can be planned for"),
        ({"ranks": 2, "algorithm": "cannon"}, "algorithm='cannon' is unknown"),
        ({"ranks": 2, "balancer": "luck"}, "balancer='luck' is unknown"),
        ({"ranks": 2, "balancer": "buckets", "algorithm": "summa"}, "balancer='buckets' deals result blocks"),
    ],
)
def test_wrong_requests_are_refused(options: dict[str, object], message: str) -> None:
    pattern = tw.Pattern.dense((tw.Space([3, 4]),) * 2)
    with pytest.raises(tw.InputError, match=message):
        tw.plan("ij,jk->ik", pattern, pattern, **options)  # type: ignore[arg-type]


def test_explain_has_a_table_of_ranks() -> None:
    space = tw.Space([40] * 12)
    pattern = tw.Pattern.random((space, space), 0.5, seed=1)
    plan = tw.plan("ij,jk->ik", pattern, pattern, ranks=12, ranks_per_node=4, algorithm="summa")
    assert isinstance(plan, tw.Plan)
    assert plan.sharing is not None
    text = plan.explain()
    assert "12 ranks on 3 nodes" in text
    assert plan.sharing.algorithm_text in text
    assert str(plan.sharing.traffic.messages.sum()) in text
