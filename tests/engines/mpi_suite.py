"""What every rank does alike under ``mpiexec``: the suite of all engines, and the bits of one rank; see `test_mpi`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

import tilewise as tw
from engines.conformance import WORK, EngineConformance
from references import stored_bytes
from tilewise.engines import progress
from tilewise.engines.mpi import MpiEngine
from tilewise.plans import sharing as module
from tilewise.tensors import Engine

pytestmark = pytest.mark.usefixtures("blas_for_few_cells", "share_everything")


SETTINGS: dict[str, dict[str, Any]] = {
    "one-worker": {"workers": 1},
    "two-workers": {"workers": 2},
    "nodes-of-one": {"workers": 1, "ranks_per_node": 1, "layout": "cyclic2d"},
    "nodes-of-two": {"workers": 1, "ranks_per_node": 2, "layout": "column"},
}


@pytest.fixture(scope="module", autouse=True)
def share_everything() -> Iterator[None]:
    """Ranks share products of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_FLOPS", 0)
        patch.setattr(module, "LEAST_BYTES", 0)
        yield


class TestMpi(EngineConformance):
    @pytest.fixture(params=os.environ.get("TILEWISE_TEST_SETTINGS", " ".join(SETTINGS)).split())
    def engine(self, request: pytest.FixtureRequest) -> Engine:
        return MpiEngine(**SETTINGS[str(request.param)])


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize(("text", "spaces", "density", "kernel"), WORK)
def test_the_bits_are_those_of_one_rank(text: str, spaces: Any, density: float, kernel: str, dtype: str) -> None:
    operands = [tw.random(own, density, seed, dtype) for seed, own in enumerate(spaces)]
    with tw.engine("threads", workers=1):
        expected = tw.einsum(text, *operands)
    with tw.engine("mpi", workers=1):
        plan = tw.plan(text, *operands, reproducible=True)
        assert stored_bytes(tw.execute(plan, *operands)) == stored_bytes(expected)
        added = tw.einsum(text, *operands, out=expected.copy(), alpha=0.5, beta=2.0, reproducible=True)
    with tw.engine("threads", workers=1):
        assert stored_bytes(added) == stored_bytes(tw.einsum(text, *operands, out=expected.copy(), alpha=0.5, beta=2.0))
    assert isinstance(plan, tw.Plan)
    assert plan.runs[-1].flops == plan.flops


def test_a_product_of_nothing() -> None:
    empty = tw.Space([])
    nothing = tw.zeros((empty, empty))
    with tw.engine("mpi"):
        assert tw.einsum("ij,jk->ik", nothing, nothing).nbytes == 0
        assert tw.einsum("ij,ij->", nothing, nothing).item() == 0


def test_the_first_rank_tells_how_far_all_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.001)
    told: list[progress.Progress] = []
    space = tw.Space([60] * 20)
    tensor = tw.random((space, space))
    with tw.engine("mpi", workers=1, progress=told.append) as engine:
        assert isinstance(engine, MpiEngine)
        tw.einsum("ij,jk->ik", tensor, tensor)
        assert bool(told) == (engine.world.rank == 0)
    if told:
        assert told[-1].done > 0.5 * told[-1].total
        assert all(before.done <= after.done <= after.total for before, after in itertools.pairwise(told))
