"""Molecules of the tests of coupled cluster, and their energies by PySCF and by diagonalisation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from pyscf import ao2mo, cc, gto, mp, scf

from chemistry.molecules import ETHENE, LITHIUM_HYDRIDE, WATER
from tilewise.errors import MemoryBudgetError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Molecule:
    """A closed-shell molecule."""

    atoms: str
    """Its atoms, in angstrom."""
    core: int
    """Orbitals of inner shells."""


MOLECULES = {
    "water": Molecule(WATER, 1),
    "ammonia": Molecule("N 0 0 0.116; H 0 0.939 -0.271; H 0.813 -0.469 -0.271; H -0.813 -0.469 -0.271", 1),
    "methane": Molecule(
        "C 0 0 0; H 0.629 0.629 0.629; H -0.629 -0.629 0.629; H -0.629 0.629 -0.629; H 0.629 -0.629 -0.629", 1
    ),
    "hydrogen fluoride": Molecule("F 0 0 0; H 0 0 0.917", 1),
    "nitrogen": Molecule("N 0 0 0; N 0 0 1.098", 2),
    "carbon monoxide": Molecule("C 0 0 0; O 0 0 1.128", 2),
    "ethyne": Molecule("C 0 0 0.601; C 0 0 -0.601; H 0 0 1.662; H 0 0 -1.662", 2),
    "ethene": Molecule(ETHENE, 2),
    "formaldehyde": Molecule("C 0 0 -0.527; O 0 0 0.677; H 0 0.936 -1.109; H 0 -0.936 -1.109", 2),
    "hydrogen cyanide": Molecule("H 0 0 -1.065; C 0 0 0; N 0 0 1.153", 2),
    "fluorine": Molecule("F 0 0 0; F 0 0 1.412", 2),
    "lithium hydride": Molecule(LITHIUM_HYDRIDE, 1),
    "borane": Molecule("B 0 0 0; H 0 1.19 0; H 1.0306 -0.595 0; H -1.0306 -0.595 0", 1),
    "sodium hydride": Molecule("Na 0 0 0; H 0 0 1.887", 5),
    "carbon dioxide": Molecule("C 0 0 0; O 0 0 1.16; O 0 0 -1.16", 3),
}

BASES = ("sto-3g", "6-31g", "cc-pvdz", "def2-svp")

TIGHT: dict[str, Any] = {"conv_tol": 1e-10, "conv_tol_normt": 1e-8, "max_cycle": 200}
"""Settings with which energies are right to far less than 1e-8 hartree."""


def stretched(name: str, factor: float) -> str:
    """The atoms of a molecule whose bonds are so much longer."""
    atoms = [line.split() for line in MOLECULES[name].atoms.split(";")]
    places = np.array([line[1:] for line in atoms], dtype=float) * factor
    return "; ".join(f"{line[0]} {x} {y} {z}" for line, (x, y, z) in zip(atoms, places.tolist(), strict=True))


def tight_mean_field(atoms: str, basis: str, symmetry: bool = False, **options: Any) -> Any:
    """Orbitals so tight that energies of two runs, with irreps and without, are comparable."""
    mol = gto.M(atom=atoms, basis=basis, symmetry=symmetry, verbose=0, **options)
    mf = scf.RHF(mol).run(conv_tol=1e-13, conv_tol_grad=1e-8, max_cycle=200)
    assert mf.converged
    return without_file(mf)


def without_file(mf: Any) -> Any:
    """A mean field whose file is closed: Python complains if it is not when it collects what refers to each other."""
    mf._chkfile.close()
    return mf


@lru_cache(maxsize=8)
def mean_field_of(name: str, basis: str, symmetry: bool = False) -> Any:
    """The mean field of one of `MOLECULES`."""
    return tight_mean_field(MOLECULES[name].atoms, basis, symmetry)


class PyscfCCD(cc.ccsd.CCSD):  # type: ignore[misc]
    """PySCF's CCSD whose singles stay zero."""

    def update_amps(self, t1: Floats, t2: Floats, eris: Any) -> tuple[Floats, Floats]:
        singles, doubles = super().update_amps(t1, t2, eris)
        return np.zeros_like(singles), doubles

    def init_amps(self, eris: Any = None) -> tuple[float, Floats, Floats]:
        energy, singles, doubles = super().init_amps(eris)
        return energy, np.zeros_like(singles), doubles


def converge_pyscf(method: Any) -> Any:
    """Converge a coupled-cluster object of PySCF as far as its extrapolation goes."""
    method.set(verbose=0, **TIGHT)
    method.kernel()
    if not method.converged:  # its extrapolation leaves out what is small
        method.conv_tol_normt = 1e-7
        method.kernel(method.t1, method.t2)
    assert method.converged
    return method


def direct_rpa(mf: Any, frozen: int = 0) -> float:
    """The correlation energy of the direct random-phase approximation, by diagonalisation.

    E = 1/2 sum (omega - A), with omega^2 the eigenvalues of D^(1/2) (D + 4 K) D^(1/2), D the differences of orbital
    energies, K = (ia|jb), and A = D + 2 K on the diagonal.
    """
    occupied = np.flatnonzero(mf.mo_occ)[frozen:]
    occ, vir = mf.mo_coeff[:, occupied], mf.mo_coeff[:, mf.mo_occ == 0]
    pairs = occ.shape[1] * vir.shape[1]
    repulsion = ao2mo.kernel(mf.mol, [occ, vir, occ, vir], compact=False).reshape(pairs, pairs)
    gaps = (mf.mo_energy[mf.mo_occ == 0] - mf.mo_energy[occupied][:, None]).ravel()
    root = np.sqrt(gaps)
    squares = np.linalg.eigvalsh(np.diag(gaps**2) + 4 * root[:, None] * repulsion * root)
    return float(0.5 * (np.sqrt(squares).sum() - gaps.sum() - 2 * np.trace(repulsion)))


def ccsd_energies(mf: Any, frozen: Any = None) -> dict[str, float]:
    """Correlation energies of CCSD, and with its triples, by PySCF."""
    solver = converge_pyscf(cc.CCSD(mf, frozen=frozen))
    return {"CCSD": float(solver.e_corr), "CCSD_T": float(solver.e_corr + solver.ccsd_t())}


def reference_energy(method: str, mf: Any, frozen: int = 0) -> float:
    """The correlation energy of a method, without anything of ours."""
    if method == "DRCCD":
        return direct_rpa(mf, frozen)
    if method == "MP2":
        return float(mp.MP2(mf, frozen=frozen).run(verbose=0).e_corr)
    if method == "CCD":
        return float(converge_pyscf(PyscfCCD(mf, frozen=frozen)).e_corr)
    return ccsd_energies(mf, frozen)[method]


@cache
def energy_of(method: str, name: str, basis: str, frozen: bool) -> float:
    """The same for one of `MOLECULES`; it does not depend on irreps."""
    if method in ("CCSD", "CCSD_T"):
        return _ccsd_energies_of(name, basis, frozen)[method]
    return reference_energy(method, mean_field_of(name, basis), MOLECULES[name].core if frozen else 0)


@cache
def _ccsd_energies_of(name: str, basis: str, frozen: bool) -> dict[str, float]:
    """Both come of one iteration."""
    return ccsd_energies(mean_field_of(name, basis), MOLECULES[name].core if frozen else 0)


@dataclass(frozen=True, slots=True)
class Variant:
    """How the energy of a molecule is computed."""

    frozen: bool = False
    """Whether inner shells are left out."""
    symmetry: bool = False
    """Whether orbitals have irreps."""
    tile: int | None = None
    """Orbitals of a tile; by default there are as many as in small molecules, so that there is one tile."""
    tight: bool = False
    """Whether not everything fits in the budget."""
    spare: float = 0.0
    """Where a tight budget lies between the least that will do (0) and what would hold everything (1)."""


VARIANTS = {
    "one tile": Variant(frozen=True),
    "tiles of 5": Variant(tile=5),
    "irreps": Variant(symmetry=True),
    "frozen core, irreps, tiles of 5": Variant(frozen=True, symmetry=True, tile=5),
    "least budget": Variant(tile=10, tight=True),
    "half the budget": Variant(tile=10, tight=True, spare=0.5),
}


@dataclass(frozen=True, slots=True)
class Ranked:
    """A molecule whose energies are computed on ranks."""

    molecule: str
    """One of `MOLECULES`."""
    basis: str
    """One of `BASES`."""
    variant: Variant
    """How."""
    methods: tuple[str, ...]
    """By which classes."""

    @property
    def key(self) -> str:
        """What it is called."""
        return f"{self.molecule}, {self.basis}"

    def expected(self) -> dict[str, float]:
        """Its energies without anything of ours."""
        names = [*self.methods, "CCSD"] if "CCSD_T" in self.methods else self.methods
        return {name: energy_of(name, self.molecule, self.basis, self.variant.frozen) for name in names}


def shared(variant: Variant) -> Variant:
    """With tiles so small that each of several ranks gets some blocks."""
    return replace(variant, tile=variant.tile or 5)


OTHERS = ("MP2", "DRCCD", "CCD")
RANKED = tuple(
    Ranked(name, basis, shared(tuple(VARIANTS.values())[number % len(VARIANTS)]), ("CCSD_T", OTHERS[number % 3]))
    for number, (name, basis) in enumerate(product(MOLECULES, BASES))
    if name not in ("ethene", "sodium hydride", "carbon dioxide")
)
"""Twelve molecules in every basis, each in another variant."""


def energies_found(method: str, ours: Any) -> dict[str, float]:
    """Energies of a method that was run; triples are told apart."""
    return {"CCSD_T": ours.e_corr, "CCSD": ours.e_ccsd} if method == "CCSD_T" else {method: ours.e_corr}


def tensor_bytes(method: Any) -> int:
    """Bytes of tensors and buffers that an iteration has at its peak, as planned."""
    plan = method.plan()
    return int(plan.iteration.peak_bytes + plan.diis.held_bytes)


def least_memory(kind: Any, mf: Any, frozen: Any = None, **settings: Any) -> int:
    """The least budget that a method says it needs."""
    try:
        kind(mf, frozen, memory=1000, **settings).plan()
    except MemoryBudgetError as error:
        return error.least_bytes
    return 1000


def run_within(kind: Any, mf: Any, frozen: Any, memory: int, **settings: Any) -> Any:
    """Run a method with a budget, or with the next above it that is enough for the transform of the integrals."""
    while True:
        method = kind(mf, frozen, memory=memory, **settings)
        try:
            return method.run()
        except MemoryBudgetError:
            memory += memory // 8


def run_variant(kind: Any, mf: Any, variant: Variant, frozen: Any, **settings: Any) -> Any:
    """Run a method as a variant has it; with the least budget something is not in memory.

    That is so unless it is making the integrals that takes most.
    """
    settings |= {"tile": variant.tile}
    if not variant.tight:
        return kind(mf, frozen, **settings).run()
    free = kind(mf, frozen, **settings).plan().peak_bytes
    least = least_memory(kind, mf, frozen, **settings)
    memory = least + int(variant.spare * max(free - least, 0))
    method = kind(mf, frozen, memory=memory, **settings).run()
    plan = method.plan()
    assert plan.peak_bytes <= memory
    if kind.__name__ != "MP2" and memory == least < free:
        iterating = plan.iteration.peak_bytes + plan.diis.held_bytes
        assert plan.elsewhere or plan.diis_on_disk or plan.build_bytes >= iterating
    return method
