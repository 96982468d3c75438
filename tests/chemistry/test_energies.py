"""Energies of many molecules by every method, against PySCF and against diagonalisation."""

from __future__ import annotations

import pytest
from pyscf import cc

import tilewise.chemistry
from chemistry.cc_cases import (
    BASES,
    MOLECULES,
    TIGHT,
    VARIANTS,
    Variant,
    converge_pyscf,
    energies_found,
    energy_of,
    mean_field_of,
    reference_energy,
    run_variant,
    stretched,
    tight_mean_field,
)
from chemistry.test_transform import BENZENE
from tilewise.chemistry import CCD, CCSD, DRCCD, MP2

SAME = 1e-8
"""Largest difference of energies, in hartree."""

METHODS = ("MP2", "DRCCD", "CCD", "CCSD_T")
QUICK = (("water", "6-31g"), ("carbon monoxide", "sto-3g"), ("lithium hydride", "6-31g"))
CASES = [
    pytest.param(name, basis, method, variant, id=f"{name}-{basis}-{method}-{title}")
    for name in MOLECULES
    for basis in BASES
    for method in METHODS
    for title, variant in VARIANTS.items()
    if (name, basis) not in QUICK and not (variant.tight and basis in ("sto-3g", "def2-svp"))
]


def check_energy(method: str, name: str, basis: str, variant: Variant) -> None:
    kind, mf = getattr(tilewise.chemistry, method), mean_field_of(name, basis, variant.symmetry)
    frozen = MOLECULES[name].core if variant.frozen else 0
    ours = run_variant(kind, mf, variant, frozen, **({} if method == "MP2" else TIGHT))
    assert method == "MP2" or ours.converged
    assert ours.e_hf == mf.e_tot
    assert ours.e_tot == mf.e_tot + ours.e_corr
    for each, energy in energies_found(method, ours).items():
        assert energy == pytest.approx(energy_of(each, name, basis, variant.frozen), rel=0, abs=SAME)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("name", "basis"), QUICK)
def test_small_molecules(name: str, basis: str, method: str, variant: Variant) -> None:
    check_energy(method, name, basis, variant)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "basis", "method", "variant"), CASES)
def test_all_molecules(name: str, basis: str, method: str, variant: Variant) -> None:
    check_energy(method, name, basis, variant)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["MP2", "DRCCD", "CCD", "CCSD"])
@pytest.mark.parametrize("symmetry", [False, True], ids=["no irreps", "irreps"])
def test_benzene(method: str, symmetry: bool) -> None:
    mf = tight_mean_field(BENZENE, "sto-3g", symmetry)
    settings = {} if method == "MP2" else TIGHT
    ours = getattr(tilewise.chemistry, method)(mf, 6, tile=8, **settings).run()
    assert ours.e_corr == pytest.approx(reference_energy(method, mf, 6), rel=0, abs=SAME)


@pytest.mark.parametrize(
    ("name", "basis", "frozen"),
    [
        ("ammonia", "6-31g", [0, 14]),
        ("water", "6-31g", [0, 2, 7, 12]),
        pytest.param("nitrogen", "cc-pvdz", [0, 1, 20, 21, 27], marks=pytest.mark.slow),
    ],
)
def test_frozen_lists(name: str, basis: str, frozen: list[int]) -> None:
    """Occupied and virtual orbitals, with irreps."""
    mf = mean_field_of(name, basis, True)
    expected = converge_pyscf(cc.CCSD(mf, frozen=frozen)).e_corr
    assert CCSD(mf, frozen, tile=4, **TIGHT).run().e_corr == pytest.approx(expected, rel=0, abs=SAME)


DIFFUSE = ("water", "ammonia", "hydrogen fluoride", "carbon monoxide")


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFUSE)
def test_diffuse_and_cartesian_functions(name: str) -> None:
    mf = tight_mean_field(MOLECULES[name].atoms, "6-31+g*", True, cart=True)
    for kind in (MP2, DRCCD, CCD, CCSD):
        settings = {} if kind is MP2 else TIGHT
        expected = reference_energy(kind.__name__, mf)
        assert kind(mf, **settings).run().e_corr == pytest.approx(expected, rel=0, abs=SAME)


STRETCHED = [("water", 1.5), ("water", 2.0), ("nitrogen", 1.4), ("hydrogen fluoride", 2.0)]


@pytest.mark.parametrize("symmetry", [False, True], ids=["no irreps", "irreps"])
@pytest.mark.parametrize(("name", "factor"), STRETCHED)
def test_stretched_bonds(name: str, factor: float, symmetry: bool) -> None:
    """Where PySCF converges, so do we, and to the same energy."""
    mf = tight_mean_field(stretched(name, factor), "6-31g", symmetry)
    theirs = converge_pyscf(cc.CCSD(mf))
    ours = CCSD(mf, **TIGHT).run()
    assert ours.converged
    assert ours.e_corr == pytest.approx(theirs.e_corr, rel=0, abs=SAME)
    assert ours.cycles <= 1.5 * theirs.cycles


@pytest.mark.slow
@pytest.mark.parametrize("basis", ["sto-3g", "cc-pvdz"])
@pytest.mark.parametrize(("name", "factor"), [*STRETCHED, ("lithium hydride", 2.0), ("fluorine", 1.3)])
def test_stretched_bonds_in_other_bases(name: str, factor: float, basis: str) -> None:
    mf = tight_mean_field(stretched(name, factor), basis)
    theirs = converge_pyscf(cc.CCSD(mf))
    ours = CCSD(mf, **TIGHT).run()
    assert ours.converged
    assert ours.e_corr == pytest.approx(theirs.e_corr, rel=0, abs=SAME)
