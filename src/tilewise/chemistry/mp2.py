"""`MP2`: second-order perturbation theory of closed shells."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from tilewise.chemistry.four_index import Transform
from tilewise.chemistry.method import Method
from tilewise.chemistry.orbitals import Frozen
from tilewise.chemistry.spaces import plain_space
from tilewise.chemistry.steps import divide
from tilewise.chemistry.vectors import to_orbitals
from tilewise.contract import einsum, execute, plan
from tilewise.engines.base import current_engine
from tilewise.errors import InputError
from tilewise.plans import Plan, Program
from tilewise.plans.transform import TransformPlan
from tilewise.tensors import BlockTensor, Engine

__all__ = ["MP2"]

FITTED = "Qia,Qjb->iajb"
"""Integrals (ia|jb) of three-index vectors."""


class MP2(Method):
    """Closed-shell MP2 of a PySCF mean field, through block tensors.

    Parameters
    ----------
    mf : pyscf.scf.hf.RHF
        A converged restricted Hartree-Fock object; one with ``density_fit()`` gives fitted integrals.
    frozen : int or list of int, optional
        The number of lowest orbitals that are not correlated, or a list of such orbitals, occupied or virtual, counted
        from 0.
    tol : float, optional
        Largest Frobenius error of the integrals (ia|jb): blocks of AO integrals that Schwarz' inequality shows to be
        negligible are not computed.
    memory, scratch, tile, integrals, auxbasis, cholesky_tol, verbose, progress
        As for `CCSD`.

    Attributes
    ----------
    e_hf, e_corr, e_tot : float
        Energies in hartree: mean field, correlation, their sum. The last two are None before the run.
    t2 : BlockTensor
        Amplitudes t2[i, j, a, b] in the order of the tiles; None before the run.

    Examples
    --------
    >>> from pyscf import gto, scf
    >>> from tilewise.chemistry import MP2
    >>> mol = gto.M(atom="H 0 0 0; H 0 0 0.74", basis="6-31g", verbose=0)
    >>> mp = MP2(scf.RHF(mol).run()).run()
    >>> round(mp.e_corr, 6)
    -0.017381
    """

    name: ClassVar[str] = "MP2"

    def __init__(
        self,
        mf: Any,
        frozen: Frozen = None,
        *,
        tol: float | None = None,
        memory: int | str | None = None,
        scratch: str | os.PathLike[str] | None = None,
        tile: int | None = None,
        integrals: str = "exact",
        auxbasis: str | None = None,
        cholesky_tol: float | None = None,
        verbose: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(
            mf,
            frozen,
            memory=memory,
            scratch=scratch,
            tile=tile,
            integrals=integrals,
            auxbasis=auxbasis,
            cholesky_tol=cholesky_tol,
            verbose=verbose,
            progress=progress,
        )
        self.tol = tol
        self.t2: BlockTensor | None = None
        if tol is not None and self.integrals != "exact":
            raise InputError(
                f"tol={tol!r} was given with integrals={self.integrals!r}. Expected it with exact ones, whose blocks "
                "can be left out before they are made. Leave tol= away."
            )

    def plan(self) -> TransformPlan | Plan | Program:
        """What making the integrals (ia|jb) will do; no block of integrals is computed for it."""
        engine = current_engine()
        if self.integrals == "exact":
            return self._transform(engine).plan()
        if self._plan is None:
            vectors = self._vectors(engine)
            self._plan = plan(FITTED, vectors, vectors, memory=self.memory, scratch=self.scratch)
        made: Plan | Program = self._plan
        return made

    def kernel(self) -> tuple[float, BlockTensor]:
        """Compute the correlation energy and the amplitudes; ranks take the orbitals of the first one."""
        engine = current_engine()
        self._settle(engine)
        self.reference.check_canonical(self.name, singles=False)
        repulsion = self._repulsion(engine)
        self._say("Amplitudes and energy")
        amplitudes = repulsion.copy()
        divide(amplitudes, self._levels(4))
        # E = sum (ia|jb) [2 (ia|jb) - (ib|ja)] / (e_i + e_j - e_a - e_b)
        direct = einsum("iajb,iajb->", repulsion, amplitudes).item()
        exchange = einsum("iajb,ibja->", repulsion, amplitudes).item()
        self.e_corr = float(np.real(2 * direct - exchange))
        self.t2 = amplitudes.transpose(0, 2, 1, 3)
        self._say(f"E(MP2) = {self.e_tot:.12f}  E_corr = {self.e_corr:.12f}", level=3)
        return self.e_corr, self.t2

    def _repulsion(self, engine: Engine) -> BlockTensor:
        """The integrals (ia|jb)."""
        if self.integrals == "exact":
            return self._transform(engine).kernel()
        vectors, made = self._vectors(engine), self.plan()
        assert not isinstance(made, TransformPlan)
        self._say(f"Integrals of {vectors.shape[0]} vectors: {made.flops / 1e9:.3g} GFLOP to {made.result!r}")
        return execute(made, vectors, vectors)

    def _transform(self, engine: Engine) -> Transform:
        if self._plan is None or self._plan.engine is not engine:
            pair = [self.reference.occupied, self.reference.virtual]
            spaces = [plain_space(self.spaces.occ), plain_space(self.spaces.vir)]
            self._plan = Transform(
                self.reference.integrals,
                pair * 2,
                spaces=spaces * 2,
                memory=self.memory,
                scratch=self.scratch,
                tol=self.tol,
                tile=self.tile,
                engine=engine,
                progress=self.speaker.say,
            )
        made: Transform = self._plan
        return made

    def _vectors(self, engine: Engine) -> BlockTensor:
        """B(Q, ia) of the orbitals that are correlated."""
        if self._over_orbitals is None:
            spaces = (plain_space(self.spaces.occ), plain_space(self.spaces.vir))
            self._over_orbitals = to_orbitals(
                self.make_vectors(engine), self.reference.occupied, self.reference.virtual, spaces, engine=engine
            )
        return self._over_orbitals
