"""`CoupledCluster`: what CCSD, CCD and drCCD have in common, with PySCF's habits."""

from __future__ import annotations

import hashlib
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.checkpoint import Checkpoint
from tilewise.chemistry.fitted_integrals import FittedIntegrals
from tilewise.chemistry.hamiltonian import Hamiltonian
from tilewise.chemistry.integrals import AtomicOrbitals
from tilewise.chemistry.kept_orbitals import keep_orbitals
from tilewise.chemistry.method import Method
from tilewise.chemistry.method_plan import INDICES, MethodPlan, plan_method, reserved_bytes
from tilewise.chemistry.orbitals import Frozen
from tilewise.chemistry.reference import orbital_turns, turn, turned_tensor
from tilewise.chemistry.solver import Options, Outcome, check_finite, solve
from tilewise.chemistry.starts import Start
from tilewise.chemistry.steps import add_tensor, divide
from tilewise.contract import einsum
from tilewise.engines.base import current_engine
from tilewise.engines.threads import hosting
from tilewise.errors import InputError
from tilewise.expressions.equations import Statement
from tilewise.plans.budget import budget_of, no_budget
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.memory import trim_heap

__all__ = ["CoupledCluster", "Timing"]

Floats = npt.NDArray[np.float64]
Amplitudes = dict[str, BlockTensor]
DTYPE: Final = np.dtype(np.float64)


@dataclass(frozen=True, slots=True)
class Timing:
    """What one iteration took."""

    seconds: float
    """All of it."""
    terms: Mapping[str, tuple[float, int]]
    """Seconds and floating-point operations of each group of terms."""


class CoupledCluster(Method):
    """Amplitude equations of a closed shell, solved by iteration; `CCSD` says what its arguments are."""

    name: ClassVar[str] = ""
    amplitude_names: ClassVar[tuple[str, ...]] = ("t2",)
    energy_names: ClassVar[tuple[str, ...]] = ("L",)
    """Tensors that the energy is made of."""
    planned: ClassVar[tuple[str, ...]] = (*Method.planned, "ladder", "diis", "diis_space", "reproducible")
    settings: ClassVar[tuple[str, ...]] = (
        *Method.settings,
        "callback",
        "checkpoint",
        "conv_tol",
        "conv_tol_normt",
        "diis",
        "diis_space",
        "diis_start_cycle",
        "iterative_damping",
        "ladder",
        "max_cycle",
        "reproducible",
    )

    def __init__(
        self,
        mf: Any,
        frozen: Frozen = None,
        *,
        memory: int | str | None = None,
        scratch: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        reproducible: bool = False,
        tile: int | None = None,
        integrals: str | None = None,
        auxbasis: str | None = None,
        cholesky_tol: float | None = None,
        verbose: int | None = None,
        progress: Callable[[str], None] | None = None,
        **settings: Any,
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
        self.checkpoint = checkpoint
        self.reproducible = reproducible
        self.max_cycle, self.conv_tol, self.conv_tol_normt = 50, 1e-7, 1e-5
        self.diis_space, self.diis_start_cycle, self.iterative_damping = 6, 0, 1.0
        self.diis = True
        self.ladder = "orbitals"
        self.callback: Callable[[dict[str, Any]], None] | None = None
        self.converged = False
        self.cycles = 0
        self.outcome: Outcome | None = None
        self.timings: list[Timing] = []
        self._amplitudes: Amplitudes = {}
        self._tensors: dict[str, BlockTensor] = {}
        self._singles: BlockTensor | None = None
        self.set(**settings)

    @abstractmethod
    def statements(self) -> tuple[Statement, ...]:
        """The terms of the residuals."""

    @abstractmethod
    def energy_of(self, amplitudes: Mapping[str, BlockTensor]) -> float:
        """The correlation energy of amplitudes."""

    @property
    def t1(self) -> BlockTensor | None:
        """Singles t1[i, a] over the mean field's orbitals, in tiles; None before the run or if the method has none."""
        return self._singles

    @property
    def t2(self) -> BlockTensor | None:
        """Doubles t2[i, j, a, b] over the mean field's orbitals, in tiles; None before the run.

        It is made each time that it is asked for, of ranks by all together.
        """
        return self._of_mean_field("t2")

    def _of_mean_field(self, name: str) -> BlockTensor | None:
        """Amplitudes in PySCF's order of modes, turned if the run has taken other orbitals than the mean field's."""
        found = self._amplitudes.get(name)
        if found is None:
            return None
        turns = orbital_turns(self.reference, self._asked)
        if turns is not None:
            options = {name: getattr(self, name) for name in ("memory", "scratch", "reproducible")}
            return turned_tensor(found, turns, self.spaces, self._asked_spaces, **options)
        return found if found.ndim == 2 else found.transpose(0, 2, 1, 3)

    def to_pyscf(self) -> tuple[Floats, Floats]:
        """The amplitudes as PySCF has them: arrays t1[i, a] and t2[i, j, a, b] over its active orbitals.

        A run that goes on from a checkpoint has the orbitals it was begun with; its amplitudes are turned into those of
        the mean field.  On ranks they are those of the first one.
        """
        self._check_has_run()
        occ, vir = np.argsort(self._asked_spaces.occ.order), np.argsort(self._asked_spaces.vir.order)
        doubles = self._amplitudes["t2"].to_dense().transpose(0, 2, 1, 3)
        singles = self._amplitudes["t1"].to_dense() if "t1" in self._amplitudes else np.zeros((self.nocc, self.nvir))
        turns = orbital_turns(self.reference, self._asked)
        singles, doubles = (turn(array, turns) for array in (singles, doubles))
        return singles[np.ix_(occ, vir)], np.ascontiguousarray(doubles[np.ix_(occ, occ, vir, vir)])

    def _check_has_run(self) -> None:
        if not self._amplitudes:
            raise InputError(f"{self.name} has no amplitudes yet. Expected them after a run. Call run() first.")

    def plan(self) -> MethodPlan:
        """What an iteration does and costs, and where its tensors are; of integrals only a sample is computed."""
        if self._plan is None:
            self._plan = self._make_plan(current_engine())
        made: MethodPlan = self._plan
        return made

    @property
    def peak_bytes(self) -> int:
        """Bytes that a run holds at its peak, as planned."""
        return self.plan().peak_bytes

    def _make_plan(self, engine: Engine) -> MethodPlan:
        self._check_settings()
        return self._plan_within(self.memory, engine)

    def _plan_within(self, memory: int | str | None, engine: Engine) -> MethodPlan:
        """The plan with a budget; ranks agree on one, since nodes may differ in what is free."""
        budget = engine.least(budget_of(memory, engine.ranks_per_node))
        return self._with_vectors(partial(self._plan_with, budget), engine)

    def _plan_with(self, budget: int, engine: Engine) -> MethodPlan:
        return plan_method(
            self.name,
            self.statements(),
            self._hamiltonian(engine),
            self.amplitude_names,
            self.energy_names,
            budget,
            diis_space=self.diis_space if self.diis else 0,
            scratch=self.scratch,
            engine=engine,
            reproducible=self.reproducible,
        )

    def _functions(self) -> AtomicOrbitals | None:
        """The atomic functions, if a ladder is done over them."""
        if self.ladder != "direct":
            return None
        if self.mol is None or self.integrals != "exact" or self.spaces.occ.irrep is not None:
            raise InputError(
                "ladder='direct' makes integrals over atomic functions anew. Expected a molecule without symmetry, and "
                "exact integrals. Leave ladder= away, or build the molecule with symmetry=False."
            )
        return AtomicOrbitals.of(self.mol, self.tile)

    def _hamiltonian(self, engine: Engine) -> Hamiltonian:
        if self.integrals == "exact":
            return Hamiltonian(self.reference, self.spaces, 0, self._functions())
        count, making = self._count_vectors(engine)
        return Hamiltonian(self.reference, self.spaces, count, self._functions(), making)

    def _source(self, engine: Engine) -> FittedIntegrals | None:
        """Vectors over orbitals; those over functions are not needed any more then."""
        if self.integrals == "exact":
            return None
        made = FittedIntegrals.of(self.reference, self.spaces, self.make_vectors(engine), engine)
        self._made_vectors = None
        return made

    def kernel(self, t1: Any = None, t2: Any = None) -> tuple[float, BlockTensor | None, BlockTensor | None]:
        """Solve the equations.

        Parameters
        ----------
        t1, t2 : array or BlockTensor, optional
            Amplitudes to start from, as PySCF or this class has them. Of several ranks the first one alone may have an
            array; tensors are given by all.

        Returns
        -------
        tuple
            Correlation energy in hartree, t1 and t2.
        """
        engine = current_engine()
        self._check_settings()
        self._begin(engine, self.checkpoint)
        start = Start.of(self.amplitude_names, t1, t2, self._asked_spaces, engine)
        del t1, t2  # a caller who wants them has them, and they are not planned for
        if self._plan is not None and self._plan.engine is not engine:
            self._plan = None  # it was made to look at
        plan = self.plan()
        with ExitStack() as stack:
            checkpoint = self._open_checkpoint(engine)
            if checkpoint is not None:
                stack.callback(checkpoint.close)
                kinds = {name: (self.spaces.pattern(INDICES[name]), DTYPE) for name in self.amplitude_names}
                checkpoint.look(kinds, self.name)
                keep_orbitals(self._settled, checkpoint.path, engine)
            planned = plan.peak_bytes - reserved_bytes(plan.budget)
            stack.enter_context(hosting(engine).memory.keeping(plan.budget - plan.peak_bytes, planned))
            self._tensors = self._build(plan, engine)
            outcome = solve(
                self._start(start, engine),  # nobody else holds it: it is gone after the first cycle
                self.energy_of,
                self._update,
                self._options(diis_on_disk=plan.diis_on_disk),
                name=self.name,
                checkpoint=checkpoint,
                log=self._say,
                callback=self.callback,
                engine=engine,
            )
        self._take(outcome)
        return outcome.e_corr, self.t1, self.t2

    def _build(self, plan: MethodPlan, engine: Engine) -> dict[str, BlockTensor]:
        """The integrals, where the plan has them."""
        return plan.hamiltonian.build(
            plan.names,
            plan.elsewhere,
            plan.budget - reserved_bytes(plan.budget),
            source=self._source(engine),
            scratch=self.scratch,
            engine=engine,
            tell=self._tell_stage,
            reproducible=self.reproducible,
        )

    def _forget(self) -> None:
        """Let go of an earlier run: its tensors are not planned for."""
        super()._forget()
        self._tensors, self._amplitudes, self._singles, self.outcome = {}, {}, None, None
        self.converged, self.cycles, self.timings = False, 0, []

    def _take(self, outcome: Outcome) -> None:
        self.outcome, self._amplitudes = outcome, dict(outcome.amplitudes)
        self._singles = self._of_mean_field("t1")
        self.e_corr, self.converged, self.cycles = outcome.e_corr, outcome.converged, outcome.cycles
        self._say(f"E({self.name}) = {self.e_tot:.12f}  E_corr = {self.e_corr:.12f}", level=3)

    def _check_settings(self) -> None:
        """Raise if something was set that no run can use."""
        self._options()
        if self.callback is not None and not callable(self.callback):
            raise InputError(
                f"callback={self.callback!r} cannot be called. Expected a function, or None. Pass a function."
            )
        for name in ("diis", "reproducible"):
            value = getattr(self, name)
            if not isinstance(value, (bool, np.bool_)):
                raise InputError(f"{name}={value!r} is neither. Expected True or False. Pass one of them.")

    def _options(self, *, diis_on_disk: bool = False) -> Options:
        return Options(
            max_cycle=self.max_cycle,
            conv_tol=self.conv_tol,
            conv_tol_normt=self.conv_tol_normt,
            diis_space=self.diis_space if self.diis else 0,
            diis_start_cycle=self.diis_start_cycle,
            diis_on_disk=diis_on_disk,
            scratch=self.scratch,
            iterative_damping=self.iterative_damping,
        )

    def _open_checkpoint(self, engine: Engine) -> Checkpoint | None:
        if self.checkpoint is None:
            return None
        return Checkpoint(self.checkpoint, self._digest(), engine)

    def _digest(self) -> bytes:
        """What tells the equations from others; where integrals of the ladder come from is not part of them."""
        fitting = getattr(getattr(self._mf, "with_df", None), "auxbasis", None)
        limit = self._cholesky_limit() if self.integrals == "cholesky" else None
        # The default auxiliary functions are others for the same basis set without its name.
        count = self.plan().hamiltonian.vectors if self.integrals == "df" else None
        origin = (self.integrals, self.auxbasis, fitting, limit, count)
        equations = (self.ladder == "none", origin)
        return hashlib.blake2b(self.reference.digest() + repr(equations).encode(), digest_size=32).digest()

    def _update(self, amplitudes: Amplitudes, check: Callable[[], None]) -> Amplitudes:
        """One quasi-Newton step."""
        begin = time.perf_counter()
        trim_heap()  # the step before has left pieces of tens of MB
        iteration = self.plan().iteration
        residuals = iteration.run({**self._tensors, **amplitudes}, between=check, check=check_finite)
        new = {}
        for name in self.amplitude_names:
            step = residuals.pop("r" + name[1:])
            divide(step, self._levels(step.ndim))
            add_tensor(step, amplitudes[name])
            new[name] = step
        self.timings.append(Timing(time.perf_counter() - begin, iteration.by_group(latest=True)))
        return new

    def _start(self, given: Start | None, engine: Engine) -> Amplitudes:
        """Amplitudes to start from: those of a user, or else of second-order perturbation theory."""
        if given is not None:
            return given.placed(self.spaces, orbital_turns(self._asked, self.reference), engine)
        doubles = self._tensors["V"].copy()
        doubles.engine = engine
        divide(doubles, self._levels(4))
        made = {"t2": doubles}
        if "t1" in self.amplitude_names:
            made["t1"] = self._tensors["f_ov"].copy()
            divide(made["t1"], self._levels(2))
        return {name: made[name] for name in self.amplitude_names}

    def _scalar(self, expression: str, *operands: BlockTensor) -> float:
        made = einsum(expression, *operands, memory=no_budget(), reproducible=self.reproducible)
        return float(made.item())
