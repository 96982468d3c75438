"""Molecules that are correlated in more than one script, and the least memory that a method takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transform import benzene, waters

SCF_TOLERANCE = 1e-11
TRIAL = "water/cc-pVDZ"


@dataclass(frozen=True, slots=True)
class Problem:
    """A molecule to correlate."""

    atoms: Callable[[], str]
    """Makes its lines of element and coordinates in Angstrom."""
    basis: str
    """Name of the basis set."""
    frozen: int = 0
    """Lowest orbitals that are not correlated."""
    symmetry: bool = False
    """Whether the point group is used by those who can."""

    def molecule(self) -> Any:
        """The PySCF molecule."""
        from pyscf import gto

        return gto.M(atom=self.atoms(), basis=self.basis, symmetry=self.symmetry, verbose=0)

    def mean_field(self) -> Any:
        """Its restricted Hartree-Fock solution."""
        from pyscf import scf

        return scf.RHF(self.molecule()).run(conv_tol=SCF_TOLERANCE)

    def size(self) -> str:
        """Correlated occupied and virtual orbitals."""
        mol = self.molecule()
        pairs = mol.nelectron // 2
        return f"{pairs - self.frozen}/{mol.nao - pairs}"


PROBLEMS: Mapping[str, Problem] = {
    TRIAL: Problem(lambda: waters(1), "cc-pvdz"),
    "benzene/cc-pVDZ": Problem(benzene, "cc-pvdz"),
    "benzene/cc-pVDZ, D2h": Problem(benzene, "cc-pvdz", symmetry=True),
    "benzene/cc-pVDZ, frozen core": Problem(benzene, "cc-pvdz", frozen=6),
    "benzene/cc-pVDZ, frozen core, D2h": Problem(benzene, "cc-pvdz", frozen=6, symmetry=True),
    "3 waters/cc-pVDZ": Problem(lambda: waters(3), "cc-pvdz"),
    "4 waters/cc-pVDZ": Problem(lambda: waters(4), "cc-pvdz"),
    "2 waters/aug-cc-pVTZ, frozen core": Problem(lambda: waters(2), "aug-cc-pvtz", frozen=2),
}


def least_bytes(plan: Callable[[int], Any]) -> int:
    """The smallest budget that is accepted by what plans with one."""
    from tilewise.errors import MemoryBudgetError

    try:
        plan(1)
    except MemoryBudgetError as error:
        return error.least_bytes
    raise AssertionError("one byte is no budget")
