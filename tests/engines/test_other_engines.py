"""Plans with a budget that another engine runs than the one they were made for, or on operands that lie elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise as tw
from engines.budgets import run_within
from references import stored_bytes
from tilewise.engines.streaming import Runner
from tilewise.engines.threads import ThreadsEngine
from tilewise.plans import fitting

ENGINES: dict[str, dict[str, Any]] = {
    "one thread": {"name": "threads", "workers": 1},
    "three threads": {"name": "threads", "workers": 3},
    "a device": {"name": "device", "capacity": "300kB", "library": "numpy", "workers": 1},
}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each result that stayed in memory, filled in as steps are run."""
    sizes: list[int] = []
    plain = Runner.run

    def run(*arguments: Any, **options: Any) -> tw.BlockTensor:
        result = plain(*arguments, **options)
        sizes.append(result.nbytes if result.in_memory else 0)
        return result

    monkeypatch.setattr(Runner, "run", run)
    return sizes


@pytest.mark.parametrize("where", ["in memory", "made by a function"])
@pytest.mark.parametrize("runner", ENGINES)
@pytest.mark.parametrize("planner", ENGINES)
@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk,kl->il"])
def test_a_budget_is_kept(text: str, planner: str, runner: str, where: str, kept: list[int]) -> None:
    long, wide = tw.Space([50] * 6), tw.Space([40] * 4)
    spaces = [(long, wide), (wide, long), (long, wide)][: text.count(",") + 1]
    tensors = [tw.random(own, seed=seed) for seed, own in enumerate(spaces)]
    expected = np.einsum(text, *(tensor.to_dense() for tensor in tensors), optimize=True)
    given = tensors
    if where == "made by a function":
        given = [tw.from_function(tensor.block, pattern=tensor.pattern) for tensor in tensors]

    def plan_elsewhere(**options: Any) -> tw.Plan | tw.Program:
        with tw.engine(**ENGINES[planner]):
            return tw.plan(text, *tensors, **options)

    free = plan_elsewhere().peak_bytes
    for share in (0.2, 0.4, 0.7, 1.0, 1.5):
        kept.clear()
        with tw.engine(**ENGINES[runner]):
            steps, budget, result = run_within(int(share * free), plan_elsewhere, given)
        assert np.allclose(result.to_dense(), expected)
        beside = kept[0] if len(steps) == 2 else 0
        assert 0 < steps[0].runs[-1].buffer_bytes <= budget
        assert 0 < steps[-1].runs[-1].buffer_bytes <= budget - beside


def test_a_limit_that_nobody_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step has enough memory and another has not: they are run by more workers than they were planned for."""
    long, wide = tw.Space([50] * 6), tw.Space([40] * 4)
    tensors = [tw.random(modes, seed=seed) for seed, modes in enumerate([(long, wide), (wide, long), (long, wide)])]
    with tw.engine(**ENGINES["one thread"]):
        limit = tw.plan("ij,jk,kl->il", *tensors).peak_bytes - 1
        monkeypatch.setattr(fitting, "SMALL_BYTES", 0)
        monkeypatch.setattr(fitting, "parse_memory", lambda memory: limit)
        plan = tw.plan("ij,jk,kl->il", *tensors)
    assert isinstance(plan, tw.Program)
    first, last = (step.plan for step in plan.steps)
    assert first.budget is None
    assert last.budget is not None
    with tw.engine(**ENGINES["three threads"]):
        tw.execute(plan, *tensors)
    assert last.runs[-1].buffer_bytes <= limit - first.result_bytes


def test_a_budget_of_the_environment_is_kept_by_plans_made_from_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    space = tw.Space([40] * 6)
    pattern = tw.Pattern.dense((space, space))
    monkeypatch.setenv("TILEWISE_MEMORY", "700kB")
    plan = tw.plan("ij,jk->ik", pattern, pattern)
    assert isinstance(plan, tw.Plan)
    assert plan.budget == 700_000
    monkeypatch.setenv("TILEWISE_MEMORY", "1kB")
    with pytest.raises(tw.MemoryBudgetError):
        tw.plan("ij,jk->ik", pattern, pattern)


def test_a_run_that_is_refused_leaves_a_tensor_as_it_was() -> None:
    space = tw.Space([40] * 6)
    tensor, out = tw.random((space, space)), tw.random((space, space), seed=1)
    out.error_bound = 0.25
    before = stored_bytes(out)
    lazy = tw.from_function(tensor.block, pattern=tensor.pattern)
    with tw.engine(**ENGINES["one thread"]):
        plan = tw.plan("ij,jk->ik", tensor.pattern, tensor.pattern, memory=700_000)
        with pytest.raises(tw.MemoryBudgetError):
            tw.execute(plan, lazy, lazy, out=out, engine=Refusing())
    assert stored_bytes(out) == before


class Refusing(ThreadsEngine):
    """Finds only when it runs a plan that there is not enough memory."""

    def run(self, *arguments: Any, **options: Any) -> tw.BlockTensor:
        raise tw.MemoryBudgetError("too much", 1, 2)
