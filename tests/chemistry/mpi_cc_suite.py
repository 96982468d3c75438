"""Coupled cluster on ranks, under ``mpiexec``: energies of PySCF, the bits of one rank, budgets; see `test_cc_mpi`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import cc

import tilewise as tw
from chemistry.cc_cases import (
    TIGHT,
    converge_pyscf,
    least_memory,
    mean_field_of,
    reference_energy,
    run_within,
    tensor_bytes,
)
from engines.ranks import NODES, WORKERS
from tilewise.chemistry import CCD, CCSD, CCSD_T, DRCCD, MP2
from tilewise.errors import InputError, MemoryBudgetError, NonFiniteError
from tilewise.plans import budget
from tilewise.plans import sharing as module

BITS = os.environ.get("TILEWISE_TEST_BITS")
"""Folder where one rank leaves its orbitals and results for others to compare with."""

KINDS = (CCSD, CCD, DRCCD)
CASES = [
    pytest.param("water", "sto-3g", True, CCSD),
    *(
        pytest.param(name, "6-31g", symmetry, kind, marks=pytest.mark.slow)
        for name in ("water", "ethene")
        for symmetry in (False, True)
        for kind in KINDS
    ),
]
irreps = pytest.mark.parametrize("symmetry", [False, True], ids=["no irreps", "irreps"])


@pytest.fixture(autouse=True)
def share_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks share tensors and products of any size."""
    monkeypatch.setattr(module, "LEAST_FLOPS", 0)
    monkeypatch.setattr(module, "LEAST_BYTES", 0)


def turned(mf: Any, rank: int) -> Any:
    """The orbitals of a rank: other signs on each, and on all but the first another order of those of one kind."""
    other = mf.copy()
    size, nocc = len(mf.mo_occ), int(np.count_nonzero(mf.mo_occ))
    random = np.random.default_rng(rank)
    order = np.arange(size)
    if rank:
        order = np.concatenate([random.permutation(nocc), nocc + random.permutation(size - nocc)])
    signs = random.choice([-1.0, 1.0], size)
    other.mo_coeff = (np.asarray(mf.mo_coeff) * signs)[:, order]
    other.mo_energy, other.mo_occ = mf.mo_energy[order], mf.mo_occ[order]
    return other


@pytest.mark.parametrize("per_node", NODES)
@pytest.mark.parametrize(("name", "basis", "symmetry", "kind"), CASES)
def test_energies(name: str, basis: str, symmetry: bool, kind: Any, per_node: int | None) -> None:
    mf = mean_field_of(name, basis, symmetry)
    with tw.engine("mpi", workers=WORKERS, ranks_per_node=per_node) as engine:
        method = kind(turned(mf, engine.rank), tile=4, **TIGHT).run()
        assert method.converged
        assert method.e_corr == engine.of_first(method.e_corr)
        if engine.ranks > 1:
            owner = method._amplitudes["t2"].arena.owner
            assert owner is not None
            assert set(owner.tolist()) == set(range(engine.ranks))
    assert method.e_corr == pytest.approx(reference_energy(kind.__name__, mf), rel=0, abs=1e-8)


@pytest.mark.slow
@irreps
def test_amplitudes_are_those_of_the_orbitals_of_the_first_rank(symmetry: bool) -> None:
    mf = mean_field_of("water", "6-31g", symmetry)
    with tw.engine("mpi", workers=WORKERS) as engine:
        method = CCSD(turned(mf, engine.rank), tile=4, **TIGHT).run()
        found = method.to_pyscf()
    expected = converge_pyscf(cc.CCSD(turned(mf, 0)))
    np.testing.assert_allclose(found[0], expected.t1, rtol=0, atol=1e-7)
    np.testing.assert_allclose(found[1], expected.t2, rtol=0, atol=1e-7)


def test_a_start_over_the_orbitals_of_each_rank() -> None:
    """Ranks begin with the amplitudes of the first one, whose orbitals they take."""
    mf = mean_field_of("water", "6-31g")
    with tw.engine("mpi", workers=WORKERS) as engine:
        own = turned(mf, engine.rank)
        expected = converge_pyscf(cc.CCSD(own))
        method = CCSD(own, tile=4, **TIGHT)
        energy, *_ = method.kernel(expected.t1, expected.t2)
        assert energy == engine.of_first(energy)
    assert energy == pytest.approx(expected.e_corr, rel=0, abs=1e-8)
    assert method.cycles <= 3


def test_a_start_that_the_first_rank_alone_has() -> None:
    mf = mean_field_of("water", "sto-3g")
    with tw.engine("mpi", workers=WORKERS) as engine:
        expected = converge_pyscf(cc.CCSD(mf))
        given = (expected.t1, expected.t2) if engine.rank == 0 else (None, None)
        method = CCSD(mf, tile=4, **TIGHT)
        energy, *_ = method.kernel(*given)
        assert energy == engine.of_first(energy)
    assert energy == pytest.approx(expected.e_corr, rel=0, abs=1e-8)
    assert method.cycles <= 3


def test_what_is_wrong_with_a_start_is_told_by_all() -> None:
    mf, unlike = mean_field_of("water", "sto-3g"), "Expected the same tensor on every rank"
    with tw.engine("mpi", workers=WORKERS) as engine:
        if engine.ranks == 1:
            return
        doubles, array = CCSD(mf, tile=4, max_cycle=1).run().t2, np.zeros((2, 2))
        first, last = 0, engine.ranks - 1
        for rank, value, message in (
            (first, array, r"t2= has shape \(2, 2\)"),
            (first, doubles, unlike),
            (last, doubles, unlike),
            (last, array, unlike),
        ):
            with pytest.raises(InputError, match=message):
                CCSD(mf, tile=4).kernel(None, value if engine.rank == rank else None)
            assert engine.of_first(engine.rank) == 0  # no rank waits for another any more


def test_one_rank_may_read_the_singles_of_a_run_that_goes_on() -> None:
    """Over orbitals that are turned into those of the mean field."""
    mf = mean_field_of("water", "6-31g")
    with tw.engine("mpi", workers=WORKERS) as engine, tempfile.TemporaryDirectory() as folder:
        path = Path(engine.of_first(folder)) / "run.h5"
        CCSD(mf, tile=4, checkpoint=path, max_cycle=1).run()
        method = CCSD(turned(mf, 7), tile=4, checkpoint=path, **TIGHT).run()
        if engine.rank == engine.ranks - 1:
            assert method.t1 is not None
            expected = converge_pyscf(cc.CCSD(turned(mf, 7))).t1
            np.testing.assert_allclose(method.t1.to_dense(), expected, rtol=0, atol=1e-7)
        method.to_pyscf()


@pytest.mark.slow
def test_frozen_core_and_a_start() -> None:
    mf = mean_field_of("water", "6-31g")
    expected = converge_pyscf(cc.CCSD(mf, frozen=[0, 12]))
    with tw.engine("mpi", workers=WORKERS):
        method = CCSD(mf, [0, 12], tile=4, **TIGHT)
        energy, *_ = method.kernel(expected.t1, expected.t2)
        again = CCSD(mf, [0, 12], tile=4, **TIGHT)
        again.kernel(method.t1, method.t2)
    assert energy == pytest.approx(expected.e_corr, rel=0, abs=1e-8)
    assert method.cycles <= 3
    assert again.cycles <= 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CCSD, DRCCD])
@pytest.mark.parametrize("name", ["water", "ethene"])
@irreps
def test_within_a_tight_budget(name: str, symmetry: bool, kind: Any) -> None:
    mf = mean_field_of(name, "6-31g", symmetry)
    with tw.engine("mpi", workers=WORKERS):
        free, least = tensor_bytes(kind(mf, tile=4)), least_memory(kind, mf, tile=4)
        method = run_within(kind, mf, None, (free + least) // 2, tile=4, **TIGHT)
        assert method.plan().peak_bytes <= method.memory
    assert method.e_corr == pytest.approx(reference_energy(kind.__name__, mf), rel=0, abs=1e-8)


def test_more_ranks_need_less_memory_each() -> None:
    mf = mean_field_of("ethene", "6-31g")
    alone = tensor_bytes(CCSD(mf, tile=4))
    with tw.engine("mpi", workers=WORKERS) as engine:
        shared = tensor_bytes(CCSD(mf, tile=4))
    assert shared <= alone * (1.3 / engine.ranks + 0.1) or engine.ranks == 1


@pytest.mark.parametrize("kind", [CCSD, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (CCD, DRCCD))])
@pytest.mark.parametrize("symmetry", [pytest.param(False, marks=pytest.mark.slow), True], ids=["no irreps", "irreps"])
def test_bits_are_those_of_one_rank(kind: Any, symmetry: bool) -> None:
    """Orbitals are those of the run on one rank too: a mean field that is solved again has other bits."""
    if BITS is None:
        pytest.skip("nobody says where the results of one rank are")
    path = Path(BITS) / f"{kind.__name__}-{symmetry}.npz"
    mf = mean_field_of("water", "6-31g", symmetry).copy()
    with tw.engine("mpi", workers=WORKERS) as engine:
        if engine.ranks > 1:
            kept = np.load(path)
            mf.mo_coeff, mf.mo_energy, mf.e_tot = kept["coefficients"], kept["energies"], float(kept["total"])
        settings: dict[str, Any] = {"tile": 4, "reproducible": True, "max_cycle": 2}
        results = [kind(mf, **settings).run()]
        results.append(run_within(kind, mf, None, least_memory(kind, mf, **settings), **settings))
        found = [(method.e_corr, *method.to_pyscf()) for method in results]
        if engine.ranks == 1:
            orbitals = {"coefficients": mf.mo_coeff, "energies": mf.mo_energy, "total": mf.e_tot}
            np.savez(path, e_corr=found[0][0], t1=found[0][1], t2=found[0][2], **orbitals)
            kept = np.load(path)
    for energy, t1, t2 in found:
        assert energy == float(kept["e_corr"])
        assert t1.tobytes() == kept["t1"].tobytes()
        assert t2.tobytes() == kept["t2"].tobytes()


def test_a_mean_field_that_differs_on_one_rank_is_told_by_all() -> None:
    mf = mean_field_of("water", "sto-3g")
    with tw.engine("mpi", workers=WORKERS) as engine:
        if engine.ranks == 1:
            return
        other = mf.copy()
        other.e_tot = mf.e_tot + 0.1 * (engine.rank == 1)
        reference = CCSD(other)._given_reference
        with pytest.raises(InputError, match="Expected the same on every rank"):
            reference.of_first(engine)
        assert engine.of_first(engine.rank) == 0  # no rank waits for another any more


def test_ranks_refuse_together() -> None:
    mf = mean_field_of("water", "6-31g")
    with (
        tw.engine("mpi", workers=WORKERS),
        pytest.raises(MemoryBudgetError, match=r"An iteration of CCSD needs \d+ bytes"),
    ):
        CCSD(mf, memory=1000).run()


def test_what_is_no_number_on_one_rank_is_told_by_all() -> None:
    mf = mean_field_of("water", "6-31g")
    with tw.engine("mpi", workers=WORKERS) as engine:
        method = CCSD(mf, tile=4)

        def strike(facts: dict[str, Any]) -> None:
            if facts["cycle"] == 2 and engine.rank == engine.ranks - 1:
                method._tensors["ovvv"].arena.own[:5] = np.nan

        method.callback = strike
        with pytest.raises(NonFiniteError, match="has elements that are not finite after") as found:
            method.run()
        told = (found.value.tensor, found.value.block, found.value.term)
        assert told == engine.of_first(told)
    assert len(method.timings) == 2


@pytest.mark.parametrize("small", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("kind", [CCSD_T, MP2])
def test_nodes_with_other_free_memory_plan_the_same(kind: Any, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory= each would take what is free on its own node, and wait for others in another order."""
    mf = mean_field_of("water", "6-31g")
    least = least_memory(kind, mf, tile=4)
    expected = kind(mf, tile=4).run().e_corr
    with tw.engine("mpi", workers=WORKERS) as engine:
        free = 4 * engine.ranks * least if engine.rank == range(engine.ranks)[small] else 10**10
        monkeypatch.setattr(budget, "free_memory", lambda: free)
        method = kind(mf, tile=4)
        method.run()
        planned = method.plan().budget
        assert planned == engine.of_first(planned)
        assert engine.ranks == 1 or planned < 10**9
    assert method.e_corr == pytest.approx(expected, rel=0, abs=1e-7)
