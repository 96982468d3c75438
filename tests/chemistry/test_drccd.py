"""Direct ring CCD against the direct random-phase approximation by diagonalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pyscf import ao2mo

from chemistry.cc_cases import MOLECULES, TIGHT, direct_rpa, mean_field_of, stretched, tight_mean_field
from chemistry.molecules import HELIUM_CHAIN, HYDROGEN
from tilewise.chemistry import DRCCD

SAME = 1e-8


def rpa_amplitudes(mf: Any, frozen: int = 0) -> npt.NDArray[np.float64]:
    """t2[i, j, a, b] of the same equations from excitations X, Y: 2 t = Y / X (Scuseria, Henderson, Sorensen 2008)."""
    occ, vir = mf.mo_coeff[:, mf.mo_occ > 0][:, frozen:], mf.mo_coeff[:, mf.mo_occ == 0]
    nocc, nvir = occ.shape[1], vir.shape[1]
    repulsion = ao2mo.kernel(mf.mol, [occ, vir, occ, vir], compact=False).reshape(nocc * nvir, nocc * nvir)
    gaps = (mf.mo_energy[mf.mo_occ == 0] - mf.mo_energy[mf.mo_occ > 0][frozen:, None]).ravel()
    root = np.sqrt(gaps)
    squares, vectors = np.linalg.eigh(np.diag(gaps**2) + 4 * root[:, None] * repulsion * root)
    energies = np.sqrt(squares)
    total = root[:, None] * vectors / np.sqrt(energies)  # X + Y
    difference = vectors / root[:, None] * np.sqrt(energies)  # X - Y
    excited, returned = total + difference, total - difference
    amplitudes = np.linalg.solve(excited.T, returned.T).T / 2
    return amplitudes.reshape(nocc, nvir, nocc, nvir).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("symmetry", [False, True], ids=["no irreps", "irreps"])
@pytest.mark.parametrize(("frozen", "tile"), [(0, None), (1, 3)])
def test_amplitudes_are_those_of_the_excitations(symmetry: bool, frozen: int, tile: int | None) -> None:
    mf = mean_field_of("water", "6-31g", symmetry)
    method = DRCCD(mf, frozen, tile=tile, **TIGHT).run()
    t1, t2 = method.to_pyscf()
    assert method.t1 is None
    assert not t1.any()
    np.testing.assert_allclose(t2, rpa_amplitudes(mf, frozen), rtol=0, atol=1e-8)
    assert method.e_corr == pytest.approx(direct_rpa(mf, frozen), rel=0, abs=SAME)


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_stretched_hydrogen(factor: float) -> None:
    """Direct rings have no instability of closed shells."""
    mf = tight_mean_field(f"H 0 0 0; H 0 0 {0.74 * factor}", "cc-pvdz", True)
    method = DRCCD(mf, **TIGHT).run()
    assert method.converged
    assert method.e_corr == pytest.approx(direct_rpa(mf), rel=0, abs=SAME)


@pytest.mark.parametrize(("name", "factor"), [("water", 2.0), ("nitrogen", 1.4), ("hydrogen fluoride", 2.0)])
def test_stretched_molecules(name: str, factor: float) -> None:
    mf = tight_mean_field(stretched(name, factor), "6-31g")
    method = DRCCD(mf, MOLECULES[name].core, **TIGHT).run()
    assert method.converged
    assert method.e_corr == pytest.approx(direct_rpa(mf, MOLECULES[name].core), rel=0, abs=SAME)


@pytest.mark.parametrize(
    ("atoms", "basis", "tile"), [(HYDROGEN, "sto-3g", None), (HYDROGEN, "cc-pvtz", 4), (HELIUM_CHAIN, "6-31g", 4)]
)
def test_other_molecules(atoms: str, basis: str, tile: int | None) -> None:
    mf = tight_mean_field(atoms, basis)
    assert DRCCD(mf, tile=tile, **TIGHT).run().e_corr == pytest.approx(direct_rpa(mf), rel=0, abs=SAME)


def test_it_needs_few_integrals_and_products() -> None:
    plan = DRCCD(mean_field_of("water", "6-31g")).plan()
    assert set(plan.names) == {"V", "f_oo", "f_vv"}
    occ, vir = 5, 8
    assert plan.iteration.by_group()["rings"][1] == 2 * 2 * (occ * vir) ** 3
