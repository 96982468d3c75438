"""Compiling the loops of coupled cluster before a molecule needs them."""

from __future__ import annotations

from tilewise.chemistry.ccsd_t import CCSD_T
from tilewise.chemistry.integrals import hartree_fock, pyscf_module
from tilewise.errors import MemoryBudgetError

__all__ = ["compile_loops"]

ETHENE = "C 0 0 0.667; C 0 0 -0.667; H 0 0.923 1.238; H 0 -0.923 1.238; H 0 0.923 -1.238; H 0 -0.923 -1.238"
WAYS = ((False, "exact", None), (False, "exact", 4), (True, "exact", None), (False, "df", 10))
"""Whether orbitals have irreps, integrals, and orbitals of a tile."""
ENOUGH = "1GB"
"""Everything is in memory then."""


def compile_loops() -> None:
    """Compute the energy of ethene with everything in memory, with as little as will do, and from fitted integrals."""
    for symmetry, integrals, tile in WAYS:
        mol = pyscf_module().gto.M(atom=ETHENE, basis="cc-pvdz", symmetry=symmetry, verbose=0)
        job = CCSD_T(hartree_fock(mol), 2, memory=ENOUGH, integrals=integrals, tile=tile, verbose=0, force=True)
        job.set(max_cycle=2).run()
        job.set(memory=_least(job)).run()


def _least(job: CCSD_T) -> int:
    """The smallest budget."""
    try:
        job.set(memory=1).plan()
    except MemoryBudgetError as error:
        return error.least_bytes
    return 1
