"""Compiling the loops of coupled cluster before a molecule needs them."""

from __future__ import annotations

from tilewise.chemistry.ccsd_t import CCSD_T
from tilewise.chemistry.integrals import hartree_fock, pyscf_module
from tilewise.errors import MemoryBudgetError

__all__ = ["compile_loops"]

ETHENE = "C 0 0 0.667; C 0 0 -0.667; H 0 0.923 1.238; H 0 -0.923 1.238; H 0 0.923 -1.238; H 0 -0.923 -1.238"


def compile_loops() -> None:
    """Compute the energy of ethene with everything in memory, with as little as will do, and from fitted integrals."""
    mol = pyscf_module().gto.M(atom=ETHENE, basis="cc-pvdz", verbose=0)
    mf = hartree_fock(mol)
    for integrals, tile in (("exact", None), ("exact", 4), ("df", 10)):
        job = CCSD_T(mf, 2, integrals=integrals, tile=tile, verbose=0, max_cycle=2, force=True).run()
        job.set(memory=_least(job)).run()


def _least(job: CCSD_T) -> int:
    """The smallest budget."""
    try:
        job.set(memory=1).plan()
    except MemoryBudgetError as error:
        return error.least_bytes
    return 1
