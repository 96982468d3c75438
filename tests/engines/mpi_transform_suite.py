"""Transforms that ranks share, under ``mpiexec``: numbers of NumPy and PySCF, counts of the plan; see `test_mpi`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyscf import ao2mo

import tilewise as tw
from chemistry.molecules import ETHENE, WATER, mean_field, pyscf_mp2
from chemistry.test_transform import BENZENE
from engines.ranks import NODES, WORKERS
from engines.test_transform import AO, CASES, integrals, orbitals, source_of
from references import stored_bytes
from tilewise.chemistry import MP2, Transform, pack_integrals, transform
from tilewise.chemistry.reference import parse_reference
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


def orbitals_of(mf: Any) -> dict[str, Any]:
    occ, vir = mf.mo_coeff[:, mf.mo_occ > 0], mf.mo_coeff[:, mf.mo_occ == 0]
    return {
        "full": mf.mo_coeff,
        "ovov": [occ, vir, occ, vir],
        "oovv": [occ, occ, vir, vir],
        "ovvv": [occ, vir, vir, vir],
        "four": [occ, vir[:, 2:7], mf.mo_coeff[:, 1:], vir[:, :3]],
    }


def check_molecule(mf: Any, name: str, schedule: str, per_node: int | None, tile: int) -> None:
    """The integrals are PySCF's, the counts those of the plan."""
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=per_node) as engine:
        coeffs = engine.of_first(orbitals_of(mf)[name])
        job = Transform(mf.mol, coeffs, schedule=schedule, tile=tile)
        found = pack_integrals(job.kernel())
    assert np.abs(found - ao2mo.kernel(mf.mol, coeffs)).max() < 1e-10
    (run,) = job.plan().runs
    assert (run.flops, run.peak_bytes) == (job.plan().flops, job.plan().peak_bytes)
    assert (run.integrals, run.between_bytes) == (job.plan().integrals, job.plan().between_bytes)


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field(WATER, "cc-pvdz")


@pytest.fixture(scope="module")
def benzene() -> Any:
    return mean_field(BENZENE, "6-31g")


@pytest.fixture(scope="module")
def ethene() -> Any:
    """D2h."""
    return mean_field(ETHENE, "6-31g", symmetry=True)


@pytest.mark.parametrize("per_node", NODES)
@pytest.mark.parametrize("schedule", ["auto", *SCHEDULES])
@pytest.mark.parametrize("name", ["full", "ovov", "oovv", "ovvv", "four"])
def test_water(water: Any, name: str, schedule: str, per_node: int | None) -> None:
    check_molecule(water, name, schedule, per_node, 8)


@pytest.mark.slow
@pytest.mark.parametrize("per_node", NODES)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["full", "ovov", "four"])
def test_benzene_and_ethene_with_irreps(
    benzene: Any, ethene: Any, name: str, schedule: str, per_node: int | None
) -> None:
    check_molecule(benzene, name, schedule, per_node, 16)
    check_molecule(ethene, name, schedule, per_node, 4)


def test_ranks_refuse_together() -> None:
    with tw.engine("mpi", workers=WORKERS), pytest.raises(tw.MemoryBudgetError, match="the least is"):
        transform(np.zeros((6,) * 4), np.eye(6), memory=1000, tile=2)


def test_ranks_take_the_orbitals_of_the_first_one(water: Any) -> None:
    """Each solves its mean field by itself, and orbitals have no sign of their own."""
    with tw.engine("mpi", workers=WORKERS) as engine:
        turned = water.copy()
        turned.mo_coeff = water.mo_coeff * np.where(np.arange(24) % 3 == engine.rank, -1.0, 1.0)
        energy = MP2(turned, verbose=0).run().e_corr
        found = pack_integrals(transform(water.mol, turned.mo_coeff, tile=8))
        first = engine.of_first(turned.mo_coeff)
    assert energy == pytest.approx(pyscf_mp2(water), abs=1e-9)
    np.testing.assert_allclose(found, ao2mo.kernel(water.mol, first), rtol=0, atol=1e-10)


def test_ranks_with_other_mean_fields_are_told(water: Any) -> None:
    with tw.engine("mpi", workers=WORKERS) as engine:
        other = water.copy()
        other.e_tot = water.e_tot + 0.1 * engine.rank
        reference = parse_reference(other, 0)
        if engine.ranks == 1:
            assert reference.of_first(engine).e_tot == water.e_tot
        else:
            with pytest.raises(tw.InputError, match="Expected the same on every rank"):
                reference.of_first(engine)
