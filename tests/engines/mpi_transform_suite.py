"""Transforms that ranks share, under ``mpiexec``: numbers of NumPy and PySCF, counts of the plan; see `test_mpi`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise as tw
from engines.ranks import NODES, WORKERS
from engines.test_transform import AO, CASES, integrals, orbitals, source_of
from references import stored_bytes
from tilewise.engines.mpi import MpiEngine
from tilewise.engines.threads import ThreadsEngine
from tilewise.engines.transform import make_team, run_transform
from tilewise.plans import sharing as module
from tilewise.plans.transform import SCHEDULES, Problem
from tilewise.plans.transform.schedules import cost_of, list_variants


@pytest.fixture(autouse=True)
def share_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks share results of any size."""
    monkeypatch.setattr(module, "LEAST_BYTES", 0)


@pytest.mark.parametrize("per_node", NODES)
@pytest.mark.parametrize("case", CASES)
def test_every_variant(case: str, per_node: int | None) -> None:
    engine = MpiEngine(workers=WORKERS, ranks_per_node=per_node)
    spaces, equal, sign = CASES[case]
    problem = Problem.of(AO, spaces, equal, sign)
    a, matrices = integrals(AO.size, sign), orbitals(AO.size, spaces, equal)
    for variant in list_variants(problem, engine.ranks):
        team = make_team(problem, engine)
        cost = cost_of(problem, variant, WORKERS, team.deal)
        found = run_transform(
            engine.host, problem, variant, source_of(problem, a), matrices, cost.peak_bytes, team=team
        )
        alone = run_transform(ThreadsEngine(1), problem, variant, source_of(problem, a), matrices, 10**12)
        with tw.engine("threads"):
            assert stored_bytes(found.tensor) == stored_bytes(alone.tensor)
            np.testing.assert_array_equal(found.tensor.pattern.norms, alone.tensor.pattern.norms)
        assert found.flops == cost.flops == alone.flops
        assert found.integrals == cost.integrals
        assert found.peak_bytes == cost.peak_bytes
        assert found.between_bytes == cost.between_bytes


@pytest.mark.parametrize("per_node", NODES)
@pytest.mark.parametrize("schedule", ["auto", *SCHEDULES])
def test_a_molecule(schedule: str, per_node: int | None) -> None:
    gto = pytest.importorskip("pyscf.gto")
    from pyscf import ao2mo

    from tilewise.chemistry import Transform, pack_integrals

    mol: Any = gto.M(atom="O 0 0 0; H 0 0.757 0.587; H 0 -0.757 0.587", basis="6-31g", verbose=0)
    coeffs = np.linalg.qr(np.random.default_rng(0).standard_normal((13, 13)))[0]
    subsets: list[Any] = [coeffs, [coeffs[:, :5], coeffs[:, 5:], coeffs[:, :5], coeffs[:, 5:]]]
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=per_node):
        for orbitals_ in subsets:
            job = Transform(mol, orbitals_, schedule=schedule, tile=4)
            found = pack_integrals(job.kernel())
            assert np.abs(found - ao2mo.kernel(mol, orbitals_)).max() < 1e-10
            (run,) = job.plan().runs
            assert (run.flops, run.peak_bytes) == (job.plan().flops, job.plan().peak_bytes)


def test_ranks_refuse_together() -> None:
    with tw.engine("mpi", workers=WORKERS):
        from tilewise.chemistry import transform

        with pytest.raises(tw.MemoryBudgetError, match="the least is"):
            transform(np.zeros((6,) * 4), np.eye(6), memory=1000, tile=2)
