"""Budgets of ranks, under ``mpiexec``: whatever is asked of them, none adds more than it may; see `test_mpi`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from engines.budgets import run_within
from engines.ranks import NODES, QUICK, WORKERS
from references import stored_bytes
from strategies import DTYPES
from tilewise.engines.mpi import MpiEngine
from tilewise.plans import shared_steps
from tilewise.plans.balance import BALANCERS
from tilewise.plans.layout import LAYOUTS
from tilewise.plans.shares import ALGORITHMS

pytestmark = pytest.mark.usefixtures("share_everything")


@pytest.mark.parametrize("near", NODES)
@pytest.mark.parametrize("algorithm", ["owner", "stationary", "summa"])
def test_a_budget_of_each_rank_is_kept(algorithm: str, near: int | None) -> None:
    wide, deep = tw.Space([20] * 9), tw.Space([40] * 150)
    left, right = tw.random((wide, deep)), tw.random((deep, wide), seed=1)
    expected = tw.einsum("ij,jk->ik", left, right)
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=near) as engine:
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


@pytest.mark.parametrize("kind", ["made by a function", "a chain", "counter", "nonnull", "buckets", "stealing"])
def test_the_least_memory_that_a_plan_names_is_enough(kind: str) -> None:
    i, j = tw.Space([60] * 5), tw.Space([51, 56, 33, 46, 9])
    with tw.engine("mpi", workers=WORKERS):
        tensors = [tw.random((i, j)), tw.random((j, i), seed=1), tw.random((i, i), seed=2)]
        dense = [tensor.to_dense() for tensor in tensors]
        tensors[0] = tw.from_function(tensors[0].block, (i, j)) if kind == "made by a function" else tensors[0]
        text, count = ("ij,jk,kl->il", 3) if kind == "a chain" else ("ij,jk->ik", 2)
        balancer = kind if kind in BALANCERS else "static"
        with pytest.raises(tw.MemoryBudgetError) as error:
            tw.plan(text, *tensors[:count], memory=1, balancer=balancer)
        plan = tw.plan(text, *tensors[:count], memory=error.value.least_bytes, balancer=balancer)
        for _ in range(5):
            assert np.allclose(tw.execute(plan, *tensors[:count]).to_dense(), np.linalg.multi_dot(dense[:count]))


OTHERS: dict[str, dict[str, Any]] = {
    "results on every rank": {"name": "mpi", "workers": WORKERS, "layout": "replicated"},
    "results on their owners": {"name": "mpi", "workers": WORKERS},
    "more workers": {"name": "mpi", "workers": WORKERS + 1},
    "other nodes": {"name": "mpi", "workers": WORKERS, "ranks_per_node": 1},
    "one rank": {"name": "threads", "workers": WORKERS},
}


@pytest.mark.parametrize("layout", ["cyclic", "replicated"])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk,kl->il"])
def test_a_budget_is_kept_by_an_engine_that_it_was_not_planned_for(
    text: str, other: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, wide = tw.Space([50] * 6), tw.Space([40] * 4)
    spaces = [(long, wide), (wide, long), (long, wide)][: text.count(",") + 1]
    own: list[int] = []
    plain = MpiEngine.run

    def run(*arguments: Any, **options: Any) -> tw.BlockTensor:
        result = plain(*arguments, **options)
        own.append(result.arena.own.nbytes if result.in_memory else 0)
        return result

    with tw.engine("mpi", workers=WORKERS, layout=layout) as engine:
        tensors = [tw.random(modes, seed=seed) for seed, modes in enumerate(spaces)]
        expected = np.einsum(text, *(tensor.to_dense() for tensor in tensors), optimize=True)
        patterns = [tensor.pattern for tensor in tensors]
        lazy = [tw.from_function(tensors[0].block, spaces[0]), *tensors[1:]]

        def plan_elsewhere(**options: Any) -> tw.Plan | tw.Program:
            with tw.engine(**OTHERS[other]):
                return tw.plan(text, *patterns, **options)

        free = plan_elsewhere().peak_bytes
        monkeypatch.setattr(MpiEngine, "run", run)
        for share in (0.3, 0.6, 1.0, 1.5):
            own.clear()
            steps, budget, result = run_within(int(share * free), plan_elsewhere, lazy)
            assert np.allclose(result.to_dense(), expected)
            if engine.ranks == 1:
                continue
            peaks = [step.runs[-1].ranks[engine.rank].peak_bytes for step in steps]
            assert all(0 < step.runs[-1].buffer_bytes <= budget for step in steps)
            assert len(steps) == 1 or peaks[1] + own[0] <= budget


def test_operands_that_are_copied_count() -> None:
    """Those of another element type, and those in the memory of other nodes."""
    space = tw.Space([40] * 6)
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=1):
        far = tw.random((space, space), seed=1)
    with tw.engine("mpi", workers=WORKERS) as engine:
        near, short = tw.random((space, space)), tw.random((space, space), dtype="float32")
        alike = tw.plan("ij,jk->ik", near, near, memory="1GB").peak_bytes
        for other in (far, short):
            copied = tw.plan("ij,jk->ik", other, near, memory="1GB")
            if engine.ranks > 1:
                assert copied.peak_bytes >= alike + near.nbytes // engine.ranks
            for given in (other, near):  # planned for one, and run on the other
                steps, budget, result = run_within(
                    1, lambda memory, given=given: tw.plan("ij,jk->ik", given, near, memory=memory), [other, near]
                )
                assert steps[0].runs[-1].buffer_bytes <= budget
                assert np.allclose(result.to_dense(), other.to_dense() @ near.to_dense(), atol=1e-4)


def test_nodes_are_the_same_however_they_are_named() -> None:
    """What was made on them is not copied, and may be added to."""
    space = tw.Space([40] * 4)
    with tw.engine("mpi", workers=WORKERS) as engine:
        assert isinstance(engine, MpiEngine)
        tensor, out = tw.random((space, space)), tw.random((space, space), seed=1)
        for near in (engine.ranks_per_node, engine.ranks, engine.ranks + 5):
            with tw.engine("mpi", workers=WORKERS, ranks_per_node=near) as other:
                assert isinstance(other, MpiEngine)
                assert other.node is engine.node
                tw.einsum("ij,jk->ik", tensor, tensor, out=out)


def test_functions_have_a_limit_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in one process, also where the plan was made from patterns, which need none."""
    space = tw.Space([40] * 6)
    with tw.engine("mpi", workers=WORKERS) as engine:
        near = tw.random((space, space))
        lazy = tw.from_function(near.block, pattern=near.pattern)
        plan = tw.plan("ij,jk->ik", near.pattern, near.pattern)
        monkeypatch.setattr(shared_steps, "parse_memory", lambda memory: 1000)
        if engine.ranks > 1:
            with pytest.raises(tw.MemoryBudgetError, match=r"The budget of each is \d+ bytes"):
                tw.execute(plan, lazy, near)


def test_a_function_counts_where_a_file_was_planned_for() -> None:
    space = tw.Space([40] * 6)
    with tw.engine("mpi", workers=WORKERS) as engine:
        assert isinstance(engine, MpiEngine)
        near = tw.random((space, space))
        folder = engine.world.gather(tempfile.mkdtemp())[0]
        near.save(Path(folder) / "t.h5")
        filed = tw.load(Path(folder) / "t.h5", on_disk=True)
        lazy = tw.from_function(near.block, pattern=near.pattern)
        steps, budget, result = run_within(
            1, lambda memory: tw.plan("ij,jk->ik", filed, near, memory=memory), [lazy, near]
        )
        assert steps[0].runs[-1].buffer_bytes <= budget
        assert np.allclose(result.to_dense(), near.to_dense() @ near.to_dense())


def test_what_was_asked_for_is_kept_when_steps_are_shared_again() -> None:
    space = tw.Space([20, 30, 40] * 3)
    with tw.engine("threads", workers=1):
        alone = tw.random((space, space))
        expected = tw.einsum("ij,jk->ik", alone, alone)
        plans = [
            tw.plan("ij,jk->ik", alone, alone, memory=memory, balancer="nonnull", reproducible=True)
            for memory in (None, "100MB")
        ]
    with tw.engine("mpi", workers=WORKERS) as engine:
        tensor = tw.random((space, space))
        for plan in plans:
            for given in (tensor, alone):  # spread, and on every rank
                assert stored_bytes(tw.execute(plan, given, given)) == stored_bytes(expected)
                assert isinstance(plan, tw.Plan)
                if engine.ranks > 1:
                    tickets = sum(rank.tickets for rank in plan.runs[-1].ranks)
                    assert tickets == expected.pattern.nnz_blocks + engine.ranks


def test_a_refusal_leaves_a_tensor_as_it_was() -> None:
    space = tw.Space([40] * 6)
    with tw.engine("mpi", workers=WORKERS):
        tensor, out = tw.random((space, space)), tw.random((space, space), seed=1)
        out.error_bound = 0.25
        before = stored_bytes(out)
        plan = tw.plan("ij,jk->ik", tensor.pattern, tensor.pattern, memory="1GB")
        with pytest.raises(tw.MemoryBudgetError):
            tw.einsum("ij,jk->ik", tensor, tensor, out=out, memory=1000)
        assert stored_bytes(out) == before
        tw.execute(plan, tensor, tensor, out=out, beta=1.0)
        assert out.error_bound == 0.25


@pytest.mark.parametrize("seed", range(4 if QUICK else 40))
def test_random_problems_keep_their_budgets(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five budgets for each: what was planned is never exceeded, and the least that is named is enough."""
    monkeypatch.undo()  # small tensors and products stay with each rank
    rng = np.random.default_rng(seed)
    text = str(rng.choice(["ij,jk->ik", "ij,kj->ik", "bij,bjk->bik", "ij,ij->i", "ij->ji", "ij,jk,kl->il"]))
    dtype, algorithm = str(rng.choice(DTYPES)), str(rng.choice(ALGORITHMS))
    balancer = str(rng.choice(BALANCERS)) if algorithm in ("auto", "owner") else "static"
    options: dict[str, Any] = {"algorithm": algorithm, "balancer": balancer}
    near, layout = (None, 1)[rng.integers(2)], str(rng.choice(LAYOUTS))
    with tw.engine("mpi", workers=int(rng.integers(1, 3)), ranks_per_node=near, layout=layout):
        sizes = ([int(rng.integers(20, 100))] * 4, rng.integers(1, 70, 6), rng.permutation(np.arange(1, 18)))
        spaces = {label: tw.Space([1, 2] if label == "b" else sizes[rng.integers(3)]) for label in "bijkl"}
        modes = [[spaces[label] for label in part] for part in text.partition("->")[0].split(",")]
        tensors = [tw.random(own, float(rng.choice([1.0, 0.5])), number, dtype) for number, own in enumerate(modes)]
        expected = np.einsum(text, *(tensor.to_dense() for tensor in tensors), optimize=True)
        if rng.integers(2):
            tensors[0] = tw.from_function(tensors[0].block, pattern=tensors[0].pattern, dtype=dtype)
        free = tw.plan(text, *tensors, **options)
        for share in (0.0, 0.4, 0.7, 1.0, 2.0):
            budget = int(share * free.peak_bytes) + 1
            try:
                plan = tw.plan(text, *tensors, memory=budget, **options)
            except tw.MemoryBudgetError as error:
                refused, budget = budget, error.least_bytes
                plan = tw.plan(text, *tensors, memory=budget, **options)
                assert refused < budget
            out = tw.redistribute(tw.random(pattern=plan.result, dtype=dtype), str(rng.choice(LAYOUTS)))
            add = int(rng.integers(2))
            dense = add * out.to_dense() + expected
            result = tw.execute(plan, *tensors, out=out if add else None, beta=add)
            steps = [step.plan for step in plan.steps] if isinstance(plan, tw.Program) else [plan]
            assert plan.peak_bytes <= budget
            again = add and steps[-1].spills  # one rank keeps what is added in memory: its steps are fitted again
            assert all(0 <= step.runs[-1].buffer_bytes <= (budget if again else step.peak_bytes) for step in steps)
            wide = dtype in ("float64", "complex128")
            assert np.allclose(result.to_dense(), dense, rtol=1e-8 if wide else 2e-3, atol=1e-8 if wide else 5e-2)
