"""Molecules and mean fields for the tests of chemistry."""

from __future__ import annotations

from typing import Any

from pyscf import gto, mp, scf

WATER = "O 0 0 0; H 0 0.757 0.587; H 0 -0.757 0.587"
HYDROGEN = "H 0 0 0; H 0 0 0.74"
LITHIUM_HYDRIDE = "Li 0 0 0; H 0 0 1.596"
ETHENE = "C 0 0 0.667; C 0 0 -0.667; H 0 0.923 1.238; H 0 -0.923 1.238; H 0 0.923 -1.238; H 0 -0.923 -1.238"
HELIUM_CHAIN = "; ".join(f"He 0 {0.1 * (n % 3)} {3.5 * n}" for n in range(10))


def make_mol(atom: str, basis: Any, **options: Any) -> Any:
    return gto.M(atom=atom, basis=basis, verbose=0, **options)


def mean_field(atom: str, basis: Any, *, density_fit: bool = False, **options: Any) -> Any:
    """A converged restricted Hartree-Fock object."""
    solver = scf.RHF(make_mol(atom, basis, **options))
    return (solver.density_fit() if density_fit else solver).run(conv_tol=1e-11)


def pyscf_mp2(mf: Any, frozen: Any = 0) -> float:
    """PySCF's correlation energy of the same mean field."""
    return float(mp.MP2(mf, frozen=frozen).run().e_corr)
