"""How ranks share products, under ``mpiexec``: every algorithm, layout and node, counts as planned; see `test_mpi`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from engines.conformance import WORK
from engines.ranks import NODES, QUICK, WORKERS
from references import stored_bytes
from tilewise.engines.mpi import MpiEngine
from tilewise.plans.balance import BALANCERS
from tilewise.plans.layout import LAYOUTS
from tilewise.plans.sharing import refined

pytestmark = pytest.mark.usefixtures("share_everything")

PROBLEMS = WORK[::2] if QUICK else WORK


@pytest.mark.parametrize("reproducible", [True, False])
@pytest.mark.parametrize("near", NODES)
@pytest.mark.parametrize("algorithm", ["owner", "stationary", "summa", "auto"])
@pytest.mark.parametrize(("text", "spaces", "density", "kernel"), PROBLEMS)
def test_every_algorithm_gives_the_product_and_moves_what_was_planned(
    text: str, spaces: Any, density: float, kernel: str, algorithm: str, near: int | None, reproducible: bool
) -> None:
    alone = [tw.random(own, density, seed) for seed, own in enumerate(spaces)]
    expected = tw.einsum(text, *alone)
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=near) as engine:
        assert isinstance(engine, MpiEngine)
        shared = [tw.random(own, density, seed) for seed, own in enumerate(spaces)]
        plan = tw.plan(text, *shared, algorithm=algorithm, reproducible=reproducible)
        result = tw.execute(plan, *shared)
        assert np.allclose(result.to_dense(), expected.to_dense(), rtol=1e-12, atol=1e-12)
        if reproducible:
            assert stored_bytes(result) == stored_bytes(expected)
        assert isinstance(plan, tw.Plan)
        if engine.ranks > 1:
            check_counts(plan)


@pytest.mark.parametrize("near", NODES)
@pytest.mark.parametrize("number", range(20))
def test_twenty_problems_move_what_was_planned(number: int, near: int | None) -> None:
    rng = np.random.default_rng(number)
    text = ("ij,jk->ik", "ijc,cka->kija", "ijcd,cdab->ijab", "bij,bjk->bik", "ij,kj->ki")[number % 5]
    space = {name: tw.Space(rng.integers(1, 12, rng.integers(2, 5))) for name in "abcdijk"}
    spaces = [tuple(space[name] for name in names) for names in text.split("->")[0].split(",")]
    dtype = ("float64", "complex128", "float32")[number % 3]
    density = float(rng.uniform(0.2, 1.0))
    algorithm = ("auto", "stationary", "summa", "owner")[number % 4]
    with tw.engine("threads", workers=1):
        expected = tw.einsum(text, *(tw.random(own, density, seed, dtype) for seed, own in enumerate(spaces)))
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=near, layout=("cyclic", "weight")[number % 2]) as engine:
        shared = [tw.random(own, density, seed, dtype) for seed, own in enumerate(spaces)]
        plan = tw.plan(text, *shared, algorithm=algorithm)
        result = tw.execute(plan, *shared)
        tolerance = 1e-4 if dtype == "float32" else 1e-10
        assert np.allclose(result.to_dense(), expected.to_dense(), rtol=tolerance, atol=tolerance)
        assert isinstance(plan, tw.Plan)
        if engine.ranks > 1:
            check_counts(plan)


def check_counts(plan: tw.Plan) -> None:
    """A run did and moved what was planned, rank by rank."""
    assert plan.sharing is not None
    traffic, ranks = plan.sharing.traffic, plan.runs[-1].ranks
    assert [rank.flops for rank in ranks] == traffic.rank_flops.tolist()
    assert [rank.between_bytes for rank in ranks] == traffic.between_bytes.tolist()
    assert [rank.inside_bytes for rank in ranks] == traffic.inside_bytes.tolist()
    assert [rank.messages for rank in ranks] == traffic.messages.tolist()


@pytest.mark.parametrize("near", NODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str, near: int | None) -> None:
    space = tw.Space([3, 9, 5, 7] * 2)
    alone = tw.random((space, space), 0.5, 3, "complex128")
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=near, layout=layout):
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
@pytest.mark.parametrize(("text", "spaces", "density", "kernel"), [each for each in PROBLEMS if each is not WORK[-1]])
def test_every_balancer(text: str, spaces: Any, density: float, kernel: str, balancer: str, near: int | None) -> None:
    alone = [tw.random(own, density, seed) for seed, own in enumerate(spaces)]
    expected = tw.einsum(text, *alone)
    more = tw.random(expected.spaces, seed=7)  # which may have blocks that the result lacks
    total = tw.einsum(text, *alone, out=more.copy(), beta=0.5)
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=near) as engine:
        assert isinstance(engine, MpiEngine)
        shared = [tw.random(own, density, seed) for seed, own in enumerate(spaces)]
        plan = tw.plan(text, *shared, algorithm="owner", balancer=balancer, reproducible=True)
        result = tw.execute(plan, *shared)
        assert stored_bytes(result) == stored_bytes(expected)
        for out in (more.copy(), tw.redistribute(more, "weight")):  # kept by every rank, and spread
            added = tw.execute(plan, *shared, out=out, beta=0.5)
            assert stored_bytes(added) == stored_bytes(total)
        if engine.world.size == 1:
            return
        assert isinstance(plan, tw.Plan)
        assert plan.sharing is not None
        trace, traffic = plan.runs[0], plan.sharing.traffic
        assert sum(rank.flops for rank in trace.ranks) == plan.flops
        assert sum(rank.between_bytes for rank in trace.ranks) == traffic.between_bytes.sum()
        assert sum(rank.tickets for rank in trace.ranks) == plan.sharing.tickets
        assert all(rank.inside_bytes >= 0 for rank in trace.ranks)
        if plan.sharing.pool is None:
            assert [rank.inside_bytes for rank in trace.ranks] == traffic.inside_bytes.tolist()


@pytest.mark.parametrize("near", NODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_changes_its_owners(layout: str, near: int | None) -> None:
    space = tw.Space([3, 9, 5, 7] * 2)
    alone = tw.random((space, space), 0.5, 3)
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=near) as engine:
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
    with tw.engine("mpi", workers=WORKERS):
        tensor = tw.random((space, space))

        def divide(block: np.ndarray, at: tuple[int, ...]) -> np.ndarray:
            return block / 0 if at == (12, 12) else block

        with np.errstate(divide="ignore"), pytest.raises(tw.InputError, match=r"not finite in block \(2, 2\)"):
            tensor.map(divide)
        with pytest.raises(tw.StorageError, match="cannot be written"):
            tensor.save("/nowhere/t.h5")
        assert tensor.norm() > 0


def test_ranks_that_mean_different_things_are_told_so() -> None:
    space = tw.Space([3, 9, 5, 7])
    with tw.engine("mpi", workers=WORKERS) as engine:
        own = tw.Pattern.random((space, space), 0.4, seed=engine.rank)
        lazy = tw.from_function(lambda block: np.ones([space.sizes[tile] for tile in block]), pattern=own)
        same = tw.random((space, space))
        if engine.ranks > 1:
            with pytest.raises(tw.TilewiseError, match=r"Ranks do not agree on ij,jk->ik: their operands or options"):
                tw.einsum("ij,jk->ik", lazy, same)
        assert tw.einsum("ij,jk->ik", same, same).norm() > 0


def test_measured_times_deal_the_next_run() -> None:
    space = tw.Space([20, 30, 40] * 4)
    alone = tw.random((space, space), 0.5, 3)
    expected = tw.einsum("ij,jk->ik", alone, alone)
    with tw.engine("mpi", workers=WORKERS) as engine:
        tensor = tw.random((space, space), 0.5, 3)
        plan = tw.plan("ij,jk->ik", tensor, tensor, algorithm="owner", balancer="measured", reproducible=True)
        assert isinstance(plan, tw.Plan)
        for _ in range(3):
            assert stored_bytes(tw.execute(plan, tensor, tensor)) == stored_bytes(expected)
        if engine.ranks == 1:
            return
        for trace in plan.runs:
            assert sum(rank.flops for rank in trace.ranks) == plan.flops
            assert trace.block_seconds is not None
            assert trace.block_seconds.min() > 0
        before = plan.runs[0].block_seconds
        assert before is not None
        owner = refined(replace(plan, runs=plan.runs[:1]), engine.ranks)
        assert owner is not None
        shares = np.bincount(owner, before, engine.ranks)
        assert shares.max() <= shares.mean() + before.max()


def test_balancers_are_compared_with_what_they_come_to() -> None:
    space = tw.Space([20, 30, 40] * 4)
    with tw.engine("mpi", workers=WORKERS) as engine:
        tensor = tw.random((space, space), 0.5, 3)
        if engine.ranks == 1:
            with pytest.raises(tw.InputError, match="measures balancers on several ranks, and there is one"):
                tw.compare_balancers("ij,jk->ik", tensor, tensor, run=True)
            return
        found = tw.compare_balancers("ij,jk->ik", tensor, tensor, run=True)
        assert found.ranks == engine.ranks
        for row in found.rows:
            assert row.measured is not None
            assert row.measured.imbalance >= 1
            if row.outcome.balancer in ("counter", "nonnull", "static"):
                assert row.measured.tickets == row.outcome.tickets
        assert "Measured" in found.explain()


@pytest.mark.parametrize("near", NODES)
def test_all_blocks_of_a_sum_may_be_on_one_node(near: int | None) -> None:
    space = tw.Space([9, 9])
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=near):
        left, right = (
            tw.from_blocks({(0, column): np.full((9, 9), column + 1.0)}, (space, space)) for column in range(2)
        )
        total = left + right
        assert total.to_dense().sum() == 3 * 81
        out = total.copy()
        tw.einsum("ij,jk->ik", left, left, out=out, beta=2.0)
        assert out.to_dense().sum() == 6 * 81 + 9 * 81


def test_a_plan_for_other_ranks_is_made_again() -> None:
    space = tw.Space([3, 9, 5, 7])
    right = tw.random((space, space), seed=1, density=0.5)
    with tw.engine("mpi", workers=WORKERS):
        lazy = tw.from_function(right.block, pattern=right.pattern)
        plan = tw.plan("ij,jk->ik", lazy, lazy, ranks=64, ranks_per_node=8)
        result = tw.execute(plan, lazy, lazy)
    dense = right.to_dense()
    assert np.allclose(result.to_dense(), dense @ dense)


def test_tensors_of_nodes_of_another_size() -> None:
    space = tw.Space([3, 9, 5, 7])
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=1):
        one = tw.random((space, space), seed=1, density=0.5)
        dense = one.to_dense()
    with tw.engine("mpi", workers=WORKERS) as engine:
        assert np.allclose(tw.einsum("ij,jk->ik", one, one).to_dense(), dense @ dense)
        assert np.array_equal(tw.redistribute(one, "column").to_dense(), dense)
        assert np.array_equal(tw.redistribute(one, "replicated").to_dense(), dense)
        if engine.ranks > 1:
            with pytest.raises(tw.InputError, match="was made with another ranks_per_node="):
                tw.einsum("ij,jk->ik", one, one, out=one.copy())


def test_a_function_may_contract_without_other_ranks() -> None:
    space = tw.Space([30] * 5)
    matrix = np.random.default_rng(3).random((30, 30))

    def make(block: tuple[int, ...]) -> np.ndarray:
        if sum(block) % 2:
            return matrix
        inner = tw.from_dense(matrix, (tw.Space([30]), tw.Space([30])))
        return tw.einsum("ij,jk->ik", inner, inner).to_dense()

    with tw.engine("mpi", workers=WORKERS):
        lazy = tw.from_function(make, (space, space))
        other = tw.random((space, space))
        expected = lazy.to_dense() @ other.to_dense()
        assert np.allclose(tw.einsum("ij,jk->ik", lazy, other).to_dense(), expected)
        mapped = other.map(lambda block, offsets: make((offsets[0] // 30, 0)))
        assert np.array_equal(mapped.block((0, 1)), matrix @ matrix)


def test_replicated_is_on_every_rank() -> None:
    space = tw.Space([3, 9, 5, 7])
    with tw.engine("mpi", workers=WORKERS):
        lazy = tw.from_function(lambda block: np.ones([space.sizes[tile] for tile in block]), (space, space))
        for tensor in (lazy, tw.random((space, space))):
            assert tw.redistribute(tensor, "replicated").arena.owner is None


def test_other_elements_are_shared_as_asked() -> None:
    space = tw.Space([3, 9, 5, 7] * 2)
    pattern = tw.Pattern.random((space, space), 0.5, seed=3)
    with tw.engine("threads", workers=1):
        alone = tw.random((space, space), 0.5, 3, "complex64")
        expected = tw.einsum("ij,jk->ik", alone, alone)
    with tw.engine("mpi", workers=WORKERS) as engine:
        shared = tw.random((space, space), 0.5, 3, "complex64")
        plan = tw.plan("ij,jk->ik", pattern, pattern, algorithm="summa", reproducible=True)
        assert stored_bytes(tw.execute(plan, shared, shared)) == stored_bytes(expected)
        assert isinstance(plan, tw.Plan)
        if engine.ranks > 1:
            assert len(plan.runs[-1].ranks) == engine.ranks


def test_what_is_made_is_saved_once() -> None:
    space = tw.Space([3, 9, 5, 7])
    calls: list[tuple[int, ...]] = []

    def make(block: tuple[int, ...]) -> np.ndarray:
        calls.append(block)
        return np.ones([space.sizes[tile] for tile in block])

    with tw.engine("mpi", workers=WORKERS) as engine:
        assert isinstance(engine, MpiEngine)
        folder = engine.world.gather(tempfile.mkdtemp())[0]
        tw.from_function(make, (space, space)).save(f"{folder}/made.h5")
        assert len(calls) == (16 if engine.rank == 0 else 0)
        assert tw.load(f"{folder}/made.h5").to_dense().sum() == 24 * 24


@pytest.mark.parametrize("near", NODES)
def test_a_group_of_k_with_nothing_to_do_adds_nothing(near: int | None) -> None:
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=near):
        tensor = tw.from_blocks(
            {(0, 0): np.random.default_rng(5).random((200, 300))}, (tw.Space([200, 7]), tw.Space([300]))
        )
        for seed in range(4):  # what is handed out again is not zero
            tw.random((tw.Space([400]), tw.Space([400])), seed=seed)
        plan = tw.plan("ij,kj->ik", tensor, tensor, algorithm="summa")
        assert isinstance(plan, tw.Plan)
        assert plan.sharing is None or plan.sharing.shares.groups > 1
        dense = tensor.to_dense()
        assert np.allclose(tw.execute(plan, tensor, tensor).to_dense(), dense @ dense.T)
        for layout in LAYOUTS:
            out = tw.redistribute(tw.random(plan.result.spaces, seed=1), layout)  # with blocks that the result lacks
            start = out.to_dense()
            tw.execute(plan, tensor, tensor, out=out, alpha=2.0, beta=-3.0)
            assert np.allclose(out.to_dense(), 2.0 * dense @ dense.T - 3.0 * start)
            assert out.norm() == pytest.approx(np.linalg.norm(out.to_dense()))


def test_calls_that_differ_are_told_so() -> None:
    space = tw.Space([20] * 4)
    with tw.engine("mpi", workers=WORKERS) as engine:
        left, right, total = (tw.random((space, space), seed=seed) for seed in range(3))
        if engine.ranks == 1:
            return
        first = engine.rank == 0
        calls: tuple[Callable[[], tw.BlockTensor], ...] = (
            lambda: tw.einsum("ij,jk->ik", left, right, alpha=1.0 + engine.rank),
            lambda: tw.einsum("ij,jk->ik", left, right, out=total, beta=1.0 + engine.rank),
            lambda: tw.einsum("ij,jk->ik", left, right, out=total if first else None),
            lambda: tw.einsum("ij,jk->ik", left, right, tol=None if first else 1e-3),
            lambda: tw.einsum("ij,jk->ik", left, right, memory="100MB" if first else None),
            lambda: tw.einsum("ij,jk->ik", *((left, right) if first else (right, left))),
            lambda: tw.redistribute(left, "column" if first else "replicated"),
            lambda: tw.random((space, space), density=0.5, seed=engine.rank),
            lambda: tw.random([tw.Space([100, 300] if first else [300, 100])] * 2),
            lambda: tw.zeros(pattern=tw.Pattern.dense((space, space), tw.Symmetry(((0, 1), 1 if first else -1)))),
            lambda: tw.einsum("ij,jk->ik", left, right) if first else tw.random((space, space)),
            lambda: tw.redistribute(left, "column") if first else tw.einsum("ij,jk->ik", left, right),
        )
        before = stored_bytes(total)
        for call in calls:
            with pytest.raises(tw.InputError, match="Ranks do not agree on"):
                call()
        assert stored_bytes(total) == before
        with (
            tw.engine("mpi", workers=WORKERS, layout="cyclic" if first else "weight"),
            pytest.raises(tw.InputError, match="Ranks do not agree on"),
        ):
            tw.random((space, space))
        rounded = 1.0 + engine.rank * np.finfo(float).eps  # as if each rank had worked it out
        product = tw.einsum("ij,jk->ik", left, right, alpha=rounded, tol=1e-9 * rounded)
        assert np.allclose(product.to_dense(), left.to_dense() @ right.to_dense())
        turned = tw.einsum("ij,jk->ik", left.astype(complex), right, alpha=-1.0 if first else np.exp(1j * np.pi))
        assert np.allclose(turned.to_dense(), -product.to_dense())
        assert tw.einsum("ij,jk->ik", left, right, tol=np.inf).norm() == 0


def test_threads_do_not_add_to_what_ranks_share() -> None:
    space = tw.Space([20] * 4)
    with tw.engine("mpi", workers=WORKERS) as engine:
        tensor, total = tw.random((space, space)), tw.random((space, space), seed=1)
        if engine.ranks > 1:
            with pytest.raises(tw.InputError, match="out= is spread over ranks"):
                tw.einsum("ij,jk->ik", tensor, tensor, out=total, engine="threads")
