"""Orbitals for which the Fock matrix is not diagonal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import lo, scf
from pyscf.tools import fcidump

from chemistry.cc_cases import mean_field_of, tight_mean_field
from chemistry.molecules import WATER, make_mol, pyscf_mp2
from tilewise.chemistry import CCSD, CCSD_T, MP2
from tilewise.chemistry.fcidump import read_fcidump, reference
from tilewise.chemistry.four_index import Transform
from tilewise.chemistry.hamiltonian import Hamiltonian
from tilewise.errors import InputError


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field_of("water", "6-31g")


@pytest.fixture(scope="module")
def localised(water: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A file of the integrals over occupied orbitals that are localised by Boys."""
    orbitals = water.mo_coeff.copy()
    orbitals[:, :5] = lo.Boys(water.mol, orbitals[:, :5]).kernel()
    path = tmp_path_factory.mktemp("localised") / "fcidump"
    fcidump.from_mo(water.mol, str(path), orbitals)
    return reference(read_fcidump(Path(path)), range(5))


def turned(mf: Any, first: int, second: int, angle: float) -> Any:
    """The mean field with two of its orbitals mixed."""
    mixed = mf.copy()
    mixed.mo_coeff = mf.mo_coeff.copy()
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    mixed.mo_coeff[:, [first, second]] = mf.mo_coeff[:, [first, second]] @ rotation
    return mixed


def refuse(*arguments: object, **options: object) -> None:
    raise AssertionError("nothing is to be computed")


@pytest.mark.parametrize("kind", [MP2, CCSD_T])
def test_localised_orbitals_are_refused_before_anything_is_computed(
    localised: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hamiltonian, "build", refuse)
    monkeypatch.setattr(Transform, "kernel", refuse)
    with pytest.raises(InputError, match=r"element .* hartree between orbital \d \(occupied\) and orbital \d \(occu"):
        kind(localised).run()
    with pytest.raises(InputError, match="orbital"):
        kind(localised).plan()


def test_coupled_cluster_takes_localised_orbitals(localised: Any, water: Any) -> None:
    tight: dict[str, Any] = {"conv_tol": 1e-10, "conv_tol_normt": 1e-8}
    expected = CCSD(water, **tight).run().e_corr
    assert CCSD(localised, **tight).run().e_corr == pytest.approx(expected, rel=0, abs=1e-8)


@pytest.mark.parametrize("pair", [(1, 3), (6, 9)])
@pytest.mark.parametrize("kind", [MP2, CCSD_T])
def test_two_orbitals_are_named(water: Any, kind: Any, pair: tuple[int, int]) -> None:
    words = "occupied" if pair[0] < 5 else "virtual"
    message = rf"between orbital {pair[0]} \({words}\) and orbital {pair[1]} \({words}\), counted from 0"
    with pytest.raises(InputError, match=message):
        kind(turned(water, *pair, 1e-2), tile=3).run()


def test_brillouins_theorem_is_for_mp2_alone(water: Any) -> None:
    """CCSD(T) has the elements between occupied and virtual orbitals in its equations, MP2 no singles."""
    mixed = turned(water, 3, 6, 2e-4)
    with pytest.raises(InputError, match=r"orbital 3 \(occupied\) and orbital 6 \(virtual\).* MP2 takes canonical"):
        MP2(mixed).run()
    CCSD_T(mixed).plan()


@pytest.mark.parametrize("frozen", [[0, 1], [1, 2]])
def test_frozen_orbitals_do_not_matter(water: Any, frozen: list[int]) -> None:
    mixed = turned(water, frozen[0], frozen[1], 0.3)
    assert MP2(mixed, frozen).run().e_corr == pytest.approx(pyscf_mp2(water, frozen), abs=1e-8)


@pytest.mark.parametrize(
    ("atoms", "basis"),
    [(WATER, "cc-pvdz"), ("N 0 0 0; N 0 0 1.1", "6-31g"), ("C 0 0 0; O 0 0 1.13", "6-31g"), ("Ne 0 0 0", "6-31g")],
)
@pytest.mark.parametrize("fitted", [False, True])
def test_mean_fields_of_default_tolerance_are_taken(atoms: str, basis: str, fitted: bool) -> None:
    solver = scf.RHF(make_mol(atoms, basis))
    mf = (solver.density_fit() if fitted else solver).run()
    MP2(mf).reference.check_canonical("MP2", singles=False)


def test_orbitals_of_the_same_energy_may_be_mixed() -> None:
    mf = tight_mean_field("N 0 0 0; N 0 0 1.1", "6-31g")
    assert mf.mo_energy[5] == pytest.approx(mf.mo_energy[6], abs=1e-8)
    assert MP2(turned(mf, 5, 6, 0.7)).run().e_corr == pytest.approx(MP2(mf).run().e_corr, abs=1e-9)
