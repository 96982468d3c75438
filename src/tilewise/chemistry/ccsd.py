"""`CCSD` and `CCD`: coupled cluster with singles and doubles, and with doubles alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from tilewise.chemistry.amplitudes import ccd_statements, ccsd_statements
from tilewise.chemistry.coupled_cluster import CoupledCluster
from tilewise.expressions.equations import Statement
from tilewise.tensors import BlockTensor

__all__ = ["CCD", "CCSD"]


class CCSD(CoupledCluster):
    """Closed-shell CCSD of a PySCF mean field, through block tensors.

    Parameters
    ----------
    mf : pyscf.scf.hf.RHF
        A converged restricted Hartree-Fock object.
    frozen : int or list of int, optional
        The number of lowest orbitals that are not correlated, or a list of such orbitals, occupied or virtual, counted
        from 0.
    memory : int or str, optional
        Most bytes that the run may hold, such as ``"8GB"``; 80 % of the free memory by default.  Integrals that do not
        fit are kept on disk, or made of vectors when they are needed.
    scratch : str or Path, optional
        Folder on a disk with room for them; the system's temporary folder by default.
    checkpoint : str or Path, optional
        A file in which each iteration is kept.  The same call goes on from there, after an interruption or with tighter
        convergence.
    reproducible : bool
        The same bits for any number of workers and ranks.
    tile : int, optional
        About how many orbitals a tile holds.
    integrals : str, optional
        ``"exact"``, ``"df"`` (density fitting) or ``"cholesky"``; by default fitted if the mean field is, else exact.
    auxbasis : str, optional
        The auxiliary basis set of density fitting, by its name.
    cholesky_tol : float, optional
        Largest error of an integral made of Cholesky vectors, in hartree.
    verbose : int, optional
        3 prints the energies, 4 each iteration as well, 0 nothing; that of the mean field by default.
    progress : callable, optional
        Called with a line of text at each stage and iteration.
    **settings
        Attributes to set: ``max_cycle`` (50), ``conv_tol`` (1e-7 hartree), ``conv_tol_normt`` (1e-5), ``diis_space``
        (6), ``diis_start_cycle`` (0), ``diis`` (True), ``iterative_damping`` (1), ``callback``, ``max_memory`` (MB).
        ``ladder``: ``"orbitals"``; ``"direct"``, over atomic functions whose integrals are made anew in each iteration,
        for little memory and disk; or ``"none"``, for measurements.

    Attributes
    ----------
    e_hf, e_corr, e_tot : float
        Energies in hartree: mean field, correlation, their sum. The last two are None before the run.
    converged : bool
        Whether energy and amplitudes changed by less than was asked for; `outcome` says why not.
    cycles : int
        Iterations done.
    t1, t2 : BlockTensor
        Amplitudes t1[i, a] and t2[i, j, a, b]; `to_pyscf` gives arrays.

    Examples
    --------
    >>> from pyscf import gto, scf
    >>> from tilewise.chemistry import CCSD
    >>> mol = gto.M(atom="H 0 0 0; H 0 0 0.74", basis="6-31g", verbose=0)
    >>> cc = CCSD(scf.RHF(mol).run()).run()
    >>> cc.converged, round(cc.e_corr, 6)
    (True, -0.024917)
    """

    name: ClassVar[str] = "CCSD"
    amplitude_names: ClassVar[tuple[str, ...]] = ("t1", "t2")
    energy_names: ClassVar[tuple[str, ...]] = ("L", "f_ov")

    def statements(self) -> tuple[Statement, ...]:
        """The terms of the residuals."""
        return ccsd_statements(self.ladder)

    def energy_of(self, amplitudes: Mapping[str, BlockTensor]) -> float:
        """The correlation energy of amplitudes."""
        t1, t2, exchange = amplitudes["t1"], amplitudes["t2"], self._tensors["L"]
        doubles = self._scalar("iajb,iajb->", exchange, t2)
        singles = self._scalar("iajb,ia,jb->", exchange, t1, t1)
        return doubles + singles + 2 * self._scalar("ia,ia->", self._tensors["f_ov"], t1)

    @property
    def t1_diagnostic(self) -> float:
        """Norm of t1 over the root of the number of correlated electrons; above 0.02, take the energy with care."""
        singles = self._amplitudes.get("t1")
        return 0.0 if singles is None else singles.norm() / float(np.sqrt(2 * self.nocc))


class CCD(CoupledCluster):
    """Closed-shell CCD: coupled cluster with doubles alone; for its arguments see `CCSD`.

    Examples
    --------
    >>> from pyscf import gto, scf
    >>> from tilewise.chemistry import CCD
    >>> mol = gto.M(atom="H 0 0 0; H 0 0 0.74", basis="6-31g", verbose=0)
    >>> round(CCD(scf.RHF(mol).run()).run().e_corr, 6)
    -0.024849
    """

    name: ClassVar[str] = "CCD"

    def statements(self) -> tuple[Statement, ...]:
        """The terms of the residual."""
        return ccd_statements(self.ladder)

    def energy_of(self, amplitudes: Mapping[str, BlockTensor]) -> float:
        """The correlation energy of amplitudes."""
        return self._scalar("iajb,iajb->", self._tensors["L"], amplitudes["t2"])
