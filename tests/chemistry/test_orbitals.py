from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyscf import dft, scf
from pyscf.pbc import gto as periodic
from pyscf.pbc import scf as periodic_scf

from chemistry.molecules import HYDROGEN, LITHIUM_HYDRIDE, WATER, make_mol, mean_field
from tilewise.chemistry.orbitals import parse_frozen
from tilewise.chemistry.reference import parse_reference
from tilewise.errors import InputError

OCCUPATIONS = np.array([2.0, 2.0, 2.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("frozen", "active"),
    [
        (0, [0, 1, 2, 3, 4]),
        (None, [0, 1, 2, 3, 4]),
        (2, [2, 3, 4]),
        (np.int64(1), [1, 2, 3, 4]),
        ([], [0, 1, 2, 3, 4]),
        ([0, 4], [1, 2, 3]),
        (np.array([1, 3]), [0, 2, 4]),
        ([3, 4], [0, 1, 2]),
    ],
)
def test_frozen_orbitals(frozen: Any, active: list[int]) -> None:
    assert np.flatnonzero(parse_frozen(frozen, OCCUPATIONS)).tolist() == active


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        (3, "frozen=3 leaves none of the 3 occupied orbitals"),
        (99, "Expected at most 2 of them"),
        (-1, "frozen=-1 is negative. Expected 0 to 2"),
        (True, "frozen= is True"),
        (1.0, "Integers are expected|must be an integer|does not list"),
        ([0, 1, 2], "leaves none of the 3 occupied"),
        ([5], "Expected different numbers from 0 to 4"),
        ([-1], "Expected different numbers from 0 to 4"),
        ([0, 0], "Expected different numbers"),
        ([[0]], "does not list orbitals"),
        ([0.5], "Integers are expected"),
    ],
)
def test_rejects_frozen(frozen: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_frozen(frozen, OCCUPATIONS)


def test_orbitals_are_those_of_the_mean_field() -> None:
    mf = mean_field(LITHIUM_HYDRIDE, "sto-3g")
    orbitals = parse_reference(mf, [0, 3])
    assert np.array_equal(orbitals.occupied, mf.mo_coeff[:, [1]])
    assert np.array_equal(orbitals.virtual, mf.mo_coeff[:, [2, 4, 5]])
    np.testing.assert_allclose(np.diag(orbitals.fock), mf.mo_energy[[1, 2, 4, 5]], rtol=0, atol=1e-6)
    assert orbitals.e_tot == mf.e_tot


def not_converged() -> Any:
    return scf.RHF(make_mol(WATER, "6-31g")).run(max_cycle=1)


def own_integrals() -> Any:
    mol = make_mol(HYDROGEN, "sto-3g")
    mol.incore_anyway = True
    return scf.RHF(mol).run()


def cell() -> Any:
    return periodic.M(a=np.eye(3) * 5, atom="He 0 0 0", basis="sto-3g", verbose=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "water", "mf is a str. Expected a mean field of PySCF"),
        (lambda: make_mol(HYDROGEN, "sto-3g"), "mf is a Mole"),
        (lambda: scf.RHF(make_mol(HYDROGEN, "sto-3g")), r"no orbitals yet.*Call mf\.run\(\) first"),
        (
            lambda: scf.UHF(make_mol(HYDROGEN, "sto-3g")).run(),
            "UHF has orbitals that are not doubly occupied",
        ),
        (lambda: scf.ROHF(make_mol("O 0 0 0", "sto-3g", spin=2)).run(), "Expected a closed shell"),
        (
            lambda: scf.GHF(make_mol(HYDROGEN, "sto-3g")).run(),
            "Expected a closed shell|Expected real orbitals",
        ),
        (lambda: dft.RKS(make_mol(HYDROGEN, "sto-3g")), "Kohn-Sham"),
        (lambda: periodic_scf.RHF(cell()), "periodic cell"),
        (not_converged, r"not converged.*Raise mf\.max_cycle, or use mf = mf\.newton\(\)"),
        (own_integrals, "integrals of its own"),
    ],
    ids=[
        "text",
        "molecule",
        "not run",
        "UHF",
        "ROHF",
        "GHF",
        "KS",
        "periodic",
        "unconverged",
        "model",
    ],
)
def test_rejects_mean_field(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_reference(make(), 0)


def test_takes_a_mean_field_of_second_order_convergence() -> None:
    mf = scf.RHF(make_mol(HYDROGEN, "6-31g")).newton().run()
    assert parse_reference(mf, 0).virtual.shape == (4, 3)
