"""`CCSD_T`: CCSD with perturbative triples."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

from tilewise.chemistry.ccsd import CCSD
from tilewise.chemistry.method_plan import MethodPlan, reserved_bytes
from tilewise.chemistry.triples import TriplesInput, TriplesPlan, plan_triples, triples_energy
from tilewise.engines.base import current_engine
from tilewise.iteration import bytes_on_rank
from tilewise.tensors import BlockTensor, Engine

__all__ = ["CCSD_T"]


class CCSD_T(CCSD):
    """Closed-shell CCSD(T): CCSD, and the energy of triples by perturbation theory; for its arguments see `CCSD`.

    Parameters
    ----------
    force : bool
        Compute the triples of amplitudes that have not converged too, instead of refusing.

    Attributes
    ----------
    e_ccsd, e_t : float
        Correlation energies of CCSD and of the triples alone, in hartree; `e_corr` is their sum.
    seconds_t : float
        Time of the triples.

    Examples
    --------
    >>> from pyscf import gto, scf
    >>> from tilewise.chemistry import CCSD_T
    >>> mol = gto.M(atom="Be 0 0 0", basis="6-31g", verbose=0)
    >>> cc = CCSD_T(scf.RHF(mol).run()).run()
    >>> round(cc.e_ccsd, 6), round(cc.e_t, 6)
    (-0.046754, -2.6e-05)
    """

    settings: ClassVar[tuple[str, ...]] = (*CCSD.settings, "force")

    def __init__(self, mf: Any, *arguments: Any, force: bool = False, **options: Any) -> None:
        self.force = force
        self.e_ccsd: float | None = None
        self.e_t: float | None = None
        self.seconds_t = 0.0
        super().__init__(mf, *arguments, **options)

    def kernel(self, t1: Any = None, t2: Any = None) -> tuple[float, BlockTensor | None, BlockTensor | None]:
        """Solve the equations of CCSD, then add the triples.

        Raises
        ------
        ConvergenceError
            If the amplitudes have not converged, unless ``force`` is set.
        """
        energy, _, _ = super().kernel(t1, t2)
        self.e_ccsd, self.e_corr = energy, None
        assert self.outcome is not None
        if not self.force:
            self.outcome.check_converged("CCSD(T)")
        begin = time.perf_counter()
        engine = current_engine()
        for name in ("vv_s", "vv_a", "J", "L", "Vp", "ov_s", "ov_a", "oooo_s", "oooo_a"):
            self._tensors.pop(name, None)
        self.e_t = triples_energy(
            self._triples_input(), memory=self._room(engine), engine=engine, progress=self._tell_stage
        )
        self.seconds_t = time.perf_counter() - begin
        self.e_corr = self.e_ccsd + self.e_t
        self._say(f"E(CCSD(T)) = {self.e_tot:.12f}  E_corr = {self.e_corr:.12f}  E(T) = {self.e_t:.12f}", level=3)
        return self.e_corr, self.t1, self.t2

    def _make_plan(self, engine: Engine) -> MethodPlan:
        """Refuse before the iteration what the triples would refuse after it."""
        self.reference.check_canonical("CCSD(T)", singles=True)
        return super()._make_plan(engine)

    def plan_triples(self) -> TriplesPlan:
        """What the triples will do; for after the run."""
        self._check_has_run()
        return plan_triples(self._triples_input(), memory=self._room(current_engine()))

    def _triples_input(self) -> TriplesInput:
        energies = np.diag(self.reference.fock)
        held = self._tensors
        return TriplesInput(
            self.spaces.occ,
            self.spaces.vir,
            energies[: self.nocc],
            energies[self.nocc :],
            held["f_ov"],
            self._amplitudes["t1"],
            self._amplitudes["t2"],
            held["V"],
            held["ooov"],
            held["ovvv"],
        )

    def _room(self, engine: Engine) -> int:
        """Bytes that the tensors leave of the budget."""
        tensors = [*self._tensors.values(), *self._amplitudes.values()]
        held = sum(bytes_on_rank(tensor.pattern, engine) for tensor in tensors if tensor.in_memory)
        budget = self.plan().budget
        return budget - reserved_bytes(budget) - self.plan().hamiltonian.vector_bytes - held
