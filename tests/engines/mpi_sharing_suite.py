"""How ranks share products, under ``mpiexec``: every algorithm, layout and node, counts as planned; see `test_mpi`."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from engines.conformance import WORK
from references import stored_bytes
from tilewise.engines.mpi import MpiEngine
from tilewise.engines.mpi import engine as module
from tilewise.plans.balance import BALANCERS
from tilewise.plans.layout import LAYOUTS

pytestmark = pytest.mark.usefixtures("share_everything")

NODES = [pytest.param(None, id="one-node"), pytest.param(1, id="nodes-of-1"), pytest.param(2, id="nodes-of-2")]


@pytest.fixture(autouse=True)
def share_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks share tensors and products of any size."""
    monkeypatch.setattr(module, "LEAST_FLOPS", 0)
    monkeypatch.setattr(module, "LEAST_BYTES", 0)


@pytest.mark.parametrize("reproducible", [True, False])
@pytest.mark.parametrize("near", NODES)
@pytest.mark.parametrize("algorithm", ["owner", "stationary", "summa", "auto"])
@pytest.mark.parametrize(("text", "spaces", "density", "kernel"), WORK)
def test_every_algorithm_gives_the_product_and_moves_what_was_planned(
    text: str, spaces: Any, density: float, kernel: str, algorithm: str, near: int | None, reproducible: bool
) -> None:
    alone = [tw.random(own, density, seed) for seed, own in enumerate(spaces)]
    expected = tw.einsum(text, *alone)
    with tw.engine("mpi", workers=1, ranks_per_node=near) as engine:
        assert isinstance(engine, MpiEngine)
        shared = [tw.random(own, density, seed) for seed, own in enumerate(spaces)]
        plan = tw.plan(text, *shared, algorithm=algorithm, reproducible=reproducible)
        result = tw.execute(plan, *shared)
        assert np.allclose(result.to_dense(), expected.to_dense(), rtol=1e-12, atol=1e-12)
        if reproducible:
            assert stored_bytes(result) == stored_bytes(expected)
        assert isinstance(plan, tw.Plan)
        if engine.world.size == 1:
            return
        assert plan.sharing is not None
        traffic, trace = plan.sharing.traffic, plan.runs[-1]
        assert [rank.flops for rank in trace.ranks] == traffic.rank_flops.tolist()
        assert [rank.between_bytes for rank in trace.ranks] == traffic.between_bytes.tolist()
        assert [rank.inside_bytes for rank in trace.ranks] == traffic.inside_bytes.tolist()
        assert [rank.messages for rank in trace.ranks] == traffic.messages.tolist()


@pytest.mark.parametrize("near", NODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str, near: int | None) -> None:
    space = tw.Space([3, 9, 5, 7] * 2)
    alone = tw.random((space, space), 0.5, 3, "complex128")
    with tw.engine("mpi", workers=1, ranks_per_node=near, layout=layout):
        tensor = tw.random((space, space), 0.5, 3, "complex128")
        assert stored_bytes(tensor) == stored_bytes(alone)
        result = tw.einsum("ij,jk->ki", tensor, tensor, reproducible=True)
        assert stored_bytes(result) == stored_bytes(tw.einsum("ij,jk->ki", alone, alone, engine="threads"))
        product = tw.einsum("ij,jk->ki", alone, alone, engine="threads")
        total = 2j * tensor.transpose() + result - tensor.conj()
        assert np.allclose(total.to_dense(), (2j * alone.transpose() + product - alone.conj()).to_dense())
        assert tensor.norm() == alone.norm()
        assert tw.dot(tensor, tensor) == pytest.approx(tw.dot(alone, alone))


@pytest.mark.parametrize("near", NODES)
@pytest.mark.parametrize("balancer", BALANCERS)
@pytest.mark.parametrize(("text", "spaces", "density", "kernel"), WORK[:-1])
def test_every_balancer(text: str, spaces: Any, density: float, kernel: str, balancer: str, near: int | None) -> None:
    alone = [tw.random(own, density, seed) for seed, own in enumerate(spaces)]
    expected = tw.einsum(text, *alone)
    with tw.engine("mpi", workers=1, ranks_per_node=near) as engine:
        assert isinstance(engine, MpiEngine)
        shared = [tw.random(own, density, seed) for seed, own in enumerate(spaces)]
        plan = tw.plan(text, *shared, algorithm="owner", balancer=balancer, reproducible=True)
        result = tw.execute(plan, *shared)
        assert stored_bytes(result) == stored_bytes(expected)
        added = tw.execute(plan, *shared, out=expected.copy(), beta=0.5)
        assert np.allclose(added.to_dense(), 1.5 * expected.to_dense())
        if engine.world.size == 1:
            return
        assert isinstance(plan, tw.Plan)
        assert plan.sharing is not None
        trace, traffic = plan.runs[0], plan.sharing.traffic
        assert sum(rank.flops for rank in trace.ranks) == plan.flops
        assert sum(rank.between_bytes for rank in trace.ranks) == traffic.between_bytes.sum()
        if plan.sharing.pool is not None and balancer != "stealing":
            assert sum(rank.tickets for rank in trace.ranks) == plan.sharing.pool.deal.tickets


@pytest.mark.parametrize("near", NODES)
@pytest.mark.parametrize("algorithm", ["owner", "stationary", "summa"])
def test_a_budget_of_each_rank_is_kept(algorithm: str, near: int | None) -> None:
    wide, deep = tw.Space([20] * 9), tw.Space([40] * 400)
    left, right = tw.random((wide, deep)), tw.random((deep, wide), seed=1)
    expected = tw.einsum("ij,jk->ik", left, right)
    with tw.engine("mpi", workers=1, ranks_per_node=near) as engine:
        assert isinstance(engine, MpiEngine)
        shared = tw.random((wide, deep))
        lazy = tw.from_function(right.block, pattern=right.pattern)
        free = tw.plan("ij,jk->ik", shared, lazy, memory="1GB", algorithm=algorithm, reproducible=True)
        assert isinstance(free, tw.Plan)
        tw.execute(free, shared, lazy)
        if engine.world.size == 1:
            return
        most = max(rank.peak_bytes for rank in free.runs[-1].ranks)
        budget = most * 3 // 4
        plan = tw.plan("ij,jk->ik", shared, lazy, memory=budget, algorithm=algorithm, reproducible=True)
        assert isinstance(plan, tw.Plan)
        assert stored_bytes(tw.execute(plan, shared, lazy)) == stored_bytes(expected)
        trace = plan.runs[-1]
        assert 0 < max(rank.peak_bytes for rank in trace.ranks) <= budget
        assert trace.phases > free.runs[-1].phases
        with pytest.raises(tw.MemoryBudgetError, match=r"needs at least \d+ bytes on one of \d ranks"):
            tw.plan("ij,jk->ik", shared, lazy, memory=1000, algorithm=algorithm)


@pytest.mark.parametrize("near", NODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_changes_its_owners(layout: str, near: int | None) -> None:
    space = tw.Space([3, 9, 5, 7] * 2)
    alone = tw.random((space, space), 0.5, 3)
    with tw.engine("mpi", workers=1, ranks_per_node=near) as engine:
        assert isinstance(engine, MpiEngine)
        tensor = tw.random((space, space), 0.5, 3)
        assert stored_bytes(tw.redistribute(tensor, layout)) == stored_bytes(alone)
        lazy = tw.from_function(alone.block, pattern=alone.pattern)
        assert np.array_equal(tw.redistribute(lazy, layout).to_dense(), alone.to_dense())
        # Ranks that end at the same time would remove each other's folders of pytest.
        with tempfile.TemporaryDirectory() as folder:
            path = engine.world.gather(f"{folder}/t.h5")[0]
            tensor.save(path)
            assert stored_bytes(tw.load(path)) == stored_bytes(alone)
            engine.world.gather(None)


def test_an_error_on_one_rank_is_an_error_on_all() -> None:
    space = tw.Space([3, 9, 5, 7])
    with tw.engine("mpi", workers=1):
        tensor = tw.random((space, space))

        def divide(block: np.ndarray, at: tuple[int, ...]) -> np.ndarray:
            return block / 0 if at == (12, 12) else block

        with np.errstate(divide="ignore"), pytest.raises(tw.InputError, match=r"not finite in block \(2, 2\)"):
            tensor.map(divide)
        with pytest.raises(tw.StorageError, match="cannot be written"):
            tensor.save("/nowhere/t.h5")
        assert tensor.norm() > 0
