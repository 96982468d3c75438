"""Plans with a budget that another engine runs than the one they were made for, or on operands that lie elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise as tw
from engines.budgets import run_within
from tilewise.engines.streaming import Runner

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
