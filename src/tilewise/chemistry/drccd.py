"""`DRCCD`: direct ring coupled cluster with doubles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tilewise.chemistry.amplitudes import drccd_statements
from tilewise.chemistry.coupled_cluster import CoupledCluster
from tilewise.errors import InputError
from tilewise.expressions.equations import Statement
from tilewise.tensors import BlockTensor

__all__ = ["DRCCD"]


class DRCCD(CoupledCluster):
    """Direct ring CCD, whose energy is that of the direct random-phase approximation; for its arguments see `CCSD`.

    Examples
    --------
    >>> from pyscf import gto, scf
    >>> from tilewise.chemistry import DRCCD
    >>> mol = gto.M(atom="H 0 0 0; H 0 0 0.74", basis="6-31g", verbose=0)
    >>> round(DRCCD(scf.RHF(mol).run()).run().e_corr, 6)
    -0.028317
    """

    name: ClassVar[str] = "drCCD"
    energy_names: ClassVar[tuple[str, ...]] = ("V",)
    settings: ClassVar[tuple[str, ...]] = tuple(each for each in CoupledCluster.settings if each != "ladder")

    def statements(self) -> tuple[Statement, ...]:
        """The terms of the residual."""
        return drccd_statements()

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.ladder != "orbitals":
            raise InputError(f"ladder={self.ladder!r} was set for drCCD. Expected nothing: it has none. Leave it away.")

    def energy_of(self, amplitudes: Mapping[str, BlockTensor]) -> float:
        """The correlation energy of amplitudes."""
        return 2 * self._scalar("iajb,iajb->", self._tensors["V"], amplitudes["t2"])
