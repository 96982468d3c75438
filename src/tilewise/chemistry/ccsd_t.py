"""`CCSD_T`: CCSD with perturbative triples."""

from __future__ import annotations

import time
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.ccsd import CCSD
from tilewise.chemistry.hamiltonian import DIRECT
from tilewise.chemistry.method_plan import INDICES, MethodPlan, reserved_bytes, with_reserve
from tilewise.chemistry.triples import (
    TriplesInput,
    TriplesPlan,
    plan_triples,
    plan_within,
    stand_in,
    triples_energy,
)
from tilewise.engines.base import current_engine
from tilewise.engines.threads import hosting
from tilewise.errors import MemoryBudgetError
from tilewise.iteration import bytes_on_rank
from tilewise.plans.explain import bytes_text, plural_text
from tilewise.tensors import BlockTensor, Engine

__all__ = ["CCSD_T"]

Floats = npt.NDArray[np.float64]


DONE_WITH: Final = ("vv_s", "vv_a", "J", "L", "Vp", "ov_s", "ov_a", "oooo_s", "oooo_a")
"""Tensors that the triples do not need."""


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
        given = [t1, t2]
        del t1, t2  # the iteration lets go of them
        self.e_ccsd = super().kernel(t2=given.pop(), t1=given.pop())[0]  # not the amplitudes, which are a copy
        self.e_corr = None
        assert self.outcome is not None
        if not self.force:
            self.outcome.check_converged("CCSD(T)")
        begin = time.perf_counter()
        engine = current_engine()
        with hosting(engine).memory.keeping(0):  # what the tensors leave is for the triples
            for name in DONE_WITH:
                self._tensors.pop(name, None)
            self.e_t = triples_energy(
                self._triples_input(), memory=self._room(engine), engine=engine, progress=self._tell_stage
            )
        self.seconds_t = time.perf_counter() - begin
        self.e_corr = self.e_ccsd + self.e_t
        self._say(f"E(CCSD(T)) = {self.e_tot:.12f}  E_corr = {self.e_corr:.12f}  E(T) = {self.e_t:.12f}", level=3)
        return self.e_corr, self.t1, self.t2

    def _forget(self) -> None:
        super()._forget()
        self.e_ccsd = self.e_t = None
        self.seconds_t = 0.0

    def _make_plan(self, engine: Engine) -> MethodPlan:
        """Refuse before the iteration what the triples would refuse after it."""
        self.reference.check_canonical("CCSD(T)", singles=True)
        try:
            plan = super()._make_plan(engine)
        except MemoryBudgetError as error:
            if not error.least_bytes or (enough := self._enough(error.least_bytes, engine)) == error.least_bytes:
                raise
            raise _too_small(error.budget, enough, engine.workers) from None
        if self._lacking(plan) is not None:
            raise _too_small(plan.budget, self._enough(plan.budget + 1, engine), engine.workers)
        return plan

    def _enough(self, memory: int, engine: Engine) -> int:
        """A budget from here on that both the iteration and the triples can be planned with.

        More memory keeps more tensors, so what the triples lacked with less is not all that they need.
        """
        while True:
            lacking = self._lacking(self._plan_within(memory, engine))
            if lacking is None:
                return memory
            memory = max(with_reserve(lacking), memory + 1)

    def _lacking(self, plan: MethodPlan) -> int | None:
        """Bytes of the triples, of tensors and vectors, if they are more than the plan of an iteration has."""
        engine, hamiltonian = plan.engine, plan.hamiltonian
        kept = set(plan.names) - {*DONE_WITH, *plan.elsewhere, *DIRECT}
        patterns = [hamiltonian.pattern(name) for name in kept]
        patterns += [self.spaces.pattern(INDICES[name]) for name in self.amplitude_names]
        held = sum(bytes_on_rank(pattern, engine) for pattern in patterns) + hamiltonian.vector_bytes
        room = plan.budget - reserved_bytes(plan.budget) - held
        try:
            plan_within(self._expected_input(plan), room, engine.workers, engine.ranks)
        except MemoryBudgetError as error:
            return held + error.least_bytes
        return None

    def _expected_input(self, plan: MethodPlan) -> TriplesInput:
        """What the triples will be made of, without elements."""
        one_node = plan.engine.ranks == plan.engine.ranks_per_node

        def integrals(name: str) -> BlockTensor:
            return stand_in(plan.hamiltonian.pattern(name), one_node and name not in plan.elsewhere, plan.engine)

        def amplitudes(name: str) -> BlockTensor:
            return stand_in(self.spaces.pattern(INDICES[name]), one_node, plan.engine)

        return TriplesInput(
            self.spaces.occ,
            self.spaces.vir,
            *self._energies(),
            integrals("f_ov"),
            amplitudes("t1"),
            amplitudes("t2"),
            integrals("V"),
            integrals("ooov"),
            integrals("ovvv"),
        )

    def plan_triples(self) -> TriplesPlan:
        """What the triples will do; for after the run."""
        self._check_has_run()
        return plan_triples(self._triples_input(), memory=self._room(current_engine()))

    def _energies(self) -> tuple[Floats, Floats]:
        """Those of the occupied and of the virtual orbitals."""
        energies = np.diag(self.reference.fock)
        return energies[: self.nocc], energies[self.nocc :]

    def _triples_input(self) -> TriplesInput:
        held = self._tensors
        return TriplesInput(
            self.spaces.occ,
            self.spaces.vir,
            *self._energies(),
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


def _too_small(budget: int, enough: int, workers: int) -> MemoryBudgetError:
    return MemoryBudgetError(
        f"CCSD(T) needs {enough} bytes ({bytes_text(enough)}) with {plural_text(workers, 'worker')}, for the triples "
        f"and what the iteration leaves in memory. The budget is {budget} bytes ({bytes_text(budget)}). Give "
        f"memory={enough} or more, or use fewer workers or smaller tiles.",
        budget,
        enough,
    )
