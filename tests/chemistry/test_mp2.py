from __future__ import annotations

import gc
import io
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyscf import mp
from pyscf.mp import dfmp2

import tilewise as tw
from chemistry.molecules import (
    ETHENE,
    HELIUM_CHAIN,
    HYDROGEN,
    LITHIUM_HYDRIDE,
    WATER,
    mean_field,
    pyscf_mp2,
)
from tilewise.chemistry import MP2
from tilewise.errors import InputError


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field(WATER, "cc-pvdz")


@pytest.mark.parametrize(
    ("atoms", "basis", "frozen", "options"),
    [
        (WATER, "cc-pvdz", 1, {}),
        (WATER, "6-31g*", 0, {"cart": True}),
        (WATER, "cc-pvdz", 0, {"symmetry": True}),
        (WATER, "sto-3g", [0, 3], {}),
        (ETHENE, "6-31g", 2, {}),
        (HYDROGEN, "cc-pvtz", 0, {}),
        (HYDROGEN, "sto-3g", 0, {}),
        ("He 0 0 0", "cc-pvdz", 0, {}),
        (LITHIUM_HYDRIDE, "6-31g", 1, {}),
        (HELIUM_CHAIN, "6-31g", 0, {}),
        ("Cl 0 0 0; H 0 0 1.275", "def2-svp", 5, {}),
        ("I 0 0 0; H 0 0 1.609", "def2-svp", 4, {"ecp": "def2-svp"}),
        ("N 0 0 0; O 0 0 1.063", "6-31g", 2, {"charge": 1}),
    ],
)
def test_equals_pyscf(atoms: str, basis: str, frozen: Any, options: dict[str, Any]) -> None:
    mf = mean_field(atoms, basis, **options)
    ours = MP2(mf, frozen=frozen, tile=7)
    e_corr, _ = ours.kernel()
    assert e_corr == pytest.approx(pyscf_mp2(mf, frozen), abs=5e-9)
    assert (ours.e_hf, ours.e_corr, ours.e_tot) == (mf.e_tot, e_corr, mf.e_tot + e_corr)


@settings(max_examples=10)
@given(tile=st.integers(1, 30), frozen=st.lists(st.integers(1, 23), unique=True, max_size=10))
def test_any_tiling_and_frozen_list_equal_pyscf(water: Any, tile: int, frozen: list[int]) -> None:
    # Orbital 0 stays, so that something is left to correlate.
    assert MP2(water, frozen, tile=tile).run().e_corr == pytest.approx(pyscf_mp2(water, frozen), abs=5e-9)


@pytest.mark.parametrize("frozen", [0, list(range(5, 24))], ids=["minimal basis", "all virtuals frozen"])
def test_without_virtual_orbitals_the_energy_is_zero(water: Any, frozen: Any) -> None:
    mf = water if frozen else mean_field("He 0 0 0", "sto-3g")
    ours = MP2(mf, frozen).run()
    assert (ours.nvir, ours.e_corr, ours.e_tot) == (0, 0.0, mf.e_tot)


def test_amplitudes_are_pyscf_amplitudes(water: Any) -> None:
    energy, amplitudes = MP2(water, frozen=1, tile=4).kernel()
    reference = mp.MP2(water, frozen=1).run()
    assert energy == pytest.approx(reference.e_corr, abs=1e-9)
    np.testing.assert_allclose(amplitudes.to_dense(), reference.t2, rtol=0, atol=1e-8)


def test_screening_keeps_the_energy_and_saves_work() -> None:
    mf = mean_field(HELIUM_CHAIN, "6-31g")
    full, screened, rough = (MP2(mf, tile=4, tol=t).run() for t in (None, 1e-10, 1e-1))
    assert full.e_corr is not None
    assert screened.e_corr == pytest.approx(full.e_corr, abs=5e-9)
    plans: list[Any] = [each.plan() for each in (screened, full)]
    assert plans[0].chosen.cost.integrals < plans[1].chosen.cost.integrals
    assert rough.e_corr != pytest.approx(full.e_corr, abs=1e-9)


def test_more_workers_give_the_same_bits(water: Any) -> None:
    energies = set()
    for workers in (1, 2, 3):
        with tw.engine("threads", workers=workers):
            energies.add(MP2(water, tile=5).run().e_corr)
    assert len(energies) == 1


def test_nothing_is_known_before_the_run(water: Any) -> None:
    ours = MP2(water, 1)
    assert (ours.e_corr, ours.e_tot, ours.t2) == (None, None, None)
    assert (ours.nocc, ours.nvir, ours.frozen) == (4, 19, 1)
    assert ours.run() is ours


def test_plan_is_made_before_the_run_and_is_the_one_that_runs(water: Any) -> None:
    ours = MP2(water, tile=5)
    plan: Any = ours.plan()
    assert "Transform of 24 functions to 5 x 19 x 5 x 19 orbitals" in plan.explain()
    ours.run()
    assert plan.runs
    assert ours.plan() is plan


def test_fitted_integrals_are_those_of_pyscf(water: Any) -> None:
    fitted = mean_field(WATER, "cc-pvdz", density_fit=True)
    reference = dfmp2.DFMP2(fitted, frozen=1)
    reference.with_df = fitted.with_df
    assert MP2(fitted, 1).run().e_corr == pytest.approx(reference.run().e_corr, abs=1e-9)
    exact = MP2(water, 1).run().e_corr
    assert exact is not None
    assert MP2(water, 1, integrals="cholesky", cholesky_tol=1e-9).run().e_corr == pytest.approx(exact, abs=1e-7)
    assert MP2(water, 1, integrals="df").run().e_corr == pytest.approx(exact, abs=2e-4)


def test_mean_field_is_not_changed(water: Any) -> None:
    coefficients, energies = water.mo_coeff.copy(), water.mo_energy.copy()
    MP2(water, tile=3).run()
    assert np.array_equal(coefficients, water.mo_coeff)
    assert np.array_equal(energies, water.mo_energy)


@pytest.mark.parametrize(("verbose", "lines"), [(0, 0), (2, 0), (3, 1), (4, 3)])
def test_verbose_prints_to_the_stream_of_the_molecule(verbose: int, lines: int) -> None:
    mf = mean_field(HYDROGEN, "6-31g")
    mf.mol.stdout = io.StringIO()
    ours = MP2(mf, verbose=verbose).run()
    printed = mf.mol.stdout.getvalue().splitlines()
    assert len(printed) == lines
    assert not lines or printed[-1] == f"E(MP2) = {ours.e_tot:.12f}  E_corr = {ours.e_corr:.12f}"


def test_progress_gets_a_line_per_stage(water: Any) -> None:
    lines: list[str] = []
    MP2(water, progress=lines.append).run()
    assert [line.split(":")[0].split(" ")[0] for line in lines] == [
        "Transform",
        "Amplitudes",
        "E(MP2)",
    ]


def test_a_run_tells_its_stages_to_whom_it_is_told_to(water: Any) -> None:
    """Not to whom it was when the plan was made; and the method does not hold itself."""
    lines: list[str] = []
    ours = MP2(water)
    ours.plan()
    ours.run(progress=lines.append)
    assert [line.split(":")[0].split(" ")[0] for line in lines] == ["Transform", "Amplitudes", "E(MP2)"]
    found = weakref.ref(ours)
    gc.disable()
    try:
        del ours
        assert found() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 0}, "The tile size is 0"),
        ({"tile": 2.5}, "The tile size is 2.5"),
        ({"integrals": "best"}, "integrals='best' is unknown"),
        ({"integrals": "df", "tol": 1e-6}, "tol=1e-06 was given with integrals='df'"),
        ({"auxbasis": "weigend"}, "auxbasis='weigend' was given with integrals='exact'"),
        ({"memory": "8XB"}, "memory='8XB' is no amount of memory"),
        ({"progress": 3}, "progress=3 cannot be called"),
        ({"frozen": 5}, "leaves none of the 5 occupied orbitals"),
    ],
)
def test_rejects(water: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MP2(water, **options)


def test_degenerate_orbitals_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mf = mean_field(HYDROGEN, "sto-3g")
    monkeypatch.setattr("tilewise.chemistry.reference.fock_matrix", lambda mf: np.zeros((2, 2)))
    with pytest.raises(InputError, match="An energy denominator is below 1e-10 hartree"):
        MP2(mf).run()
