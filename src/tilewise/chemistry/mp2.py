"""`MP2`: second-order perturbation theory of closed shells."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.fitted_integrals import AT_ONCE
from tilewise.chemistry.four_index import Transform
from tilewise.chemistry.method import Method
from tilewise.chemistry.method_plan import reserved_bytes, with_reserve
from tilewise.chemistry.orbitals import Frozen
from tilewise.chemistry.spaces import plain_space
from tilewise.chemistry.steps import LEAST_DENOMINATOR
from tilewise.chemistry.vectors import TILE, to_orbitals
from tilewise.contract import execute, plan
from tilewise.engines.base import current_engine
from tilewise.engines.folding import find_block, for_each_block
from tilewise.engines.threads import hosting
from tilewise.errors import InputError, MemoryBudgetError
from tilewise.iteration import bytes_on_rank
from tilewise.patterns import Pattern, transposed
from tilewise.plans import Plan, Program
from tilewise.plans.budget import budget_of
from tilewise.plans.explain import bytes_text
from tilewise.plans.transform import TransformPlan
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.generated import make_generated
from tilewise.tensors.storage import frobenius_norm

__all__ = ["MP2"]

Floats = npt.NDArray[np.float64]

FITTED = "Qia,Qjb->iajb"
"""Integrals (ia|jb) of three-index vectors."""

WORD = 8
"""Bytes of an element."""


@dataclass(frozen=True, slots=True, eq=False)
class Doubles:
    """Amplitudes t(iajb) = (ia|jb) / (e_i + e_j - e_a - e_b), of which no more than a block is made at a time."""

    repulsion: BlockTensor
    """(ia|jb), in memory or in a file."""
    occupied: Floats
    """Orbital energies, in hartree."""
    virtual: Floats
    """Orbital energies, in hartree."""

    def __call__(self, index: tuple[int, ...]) -> Floats:
        """The block [i, j, a, b] of some tiles."""
        i, j, a, b = index
        found = find_block(self.repulsion, (i, a, j, b))
        assert found is not None
        return np.divide(found, self.denominator((i, a, j, b))).transpose(0, 2, 1, 3)

    def tensor(self, norms: Floats) -> BlockTensor:
        """All of them as a tensor [i, j, a, b] whose blocks are made when they are needed."""
        pattern, engine = self.repulsion.pattern, self.repulsion.engine
        known = Pattern.trusted(pattern.spaces, pattern.index, norms, pattern.symmetry)
        at_most = _needed_bytes(pattern, self.repulsion.in_memory, engine)  # an energy takes more than amplitudes
        made = make_generated(self, transposed(known, (0, 2, 1, 3)), np.float64, 0.0, True, engine, at_most)
        gap = 2 * float(self.virtual.min(initial=np.inf) - self.occupied.max(initial=-np.inf))
        if self.repulsion.error_bound:
            made.error_bound = self.repulsion.error_bound / gap if gap > 0 else np.inf
        return made

    def denominator(self, index: tuple[int, ...]) -> Floats:
        """e_i + e_j - e_a - e_b of a block [i, a, j, b]."""
        occ, vir = self.repulsion.spaces[:2]
        left, right = (
            self.occupied[occ.offsets[i] : occ.offsets[i + 1], None] - self.virtual[vir.offsets[a] : vir.offsets[a + 1]]
            for i, a in (index[:2], index[2:])
        )
        made: Floats = left[:, :, None, None] + right
        if np.abs(made).min(initial=np.inf) < LEAST_DENOMINATOR:
            raise InputError(
                f"An energy denominator is below {LEAST_DENOMINATOR} hartree: occupied and virtual orbitals have the "
                "same energy. Expected a gap between them. Choose another reference, or freeze these orbitals."
            )
        return made

    def energy(self, row: int) -> tuple[float, float]:
        """What a block adds to the energy, t(iajb) [2 (ia|jb) - (ib|ja)], and the norm of its amplitudes."""
        i, a, j, b = self.repulsion.pattern.index[row].tolist()
        direct, exchange = self.repulsion.read_only(row), find_block(self.repulsion, (i, b, j, a))
        amplitudes = self.denominator((i, a, j, b))
        np.divide(direct, amplitudes, out=amplitudes)
        weighted = 2.0 * direct
        if exchange is not None:
            weighted -= exchange.transpose(0, 3, 2, 1)
        norm = frobenius_norm(amplitudes)
        return float(np.vdot(amplitudes, weighted)), norm

    def energies(self, at_once: int) -> Floats:
        """Energy and norm of every block; at most so many of them are there at a time in each process."""
        tensor, gate = self.repulsion, BoundedSemaphore(at_once)
        rows = tensor.arena.rows if tensor.in_memory else np.arange(tensor.pattern.nnz_blocks)
        found = np.zeros((2, tensor.pattern.nnz_blocks))

        def work(number: int) -> None:
            with gate:
                found[:, rows[number]] = self.energy(int(rows[number]))

        sizes = tensor.pattern.block_sizes[rows].tolist()
        if not tensor.in_memory:
            for_each_block(tensor.engine, sizes, work)
            return found
        tensor.arena.agree(lambda: for_each_block(tensor.engine, sizes, work))
        return np.asarray(sum(tensor.arena.gather(found)))


def _needed_bytes(pattern: Pattern, in_memory: bool, engine: Engine) -> int:
    """Bytes that a block takes while its energy is computed: amplitudes, weights, and copies of two blocks to read.

    One from another node is there twice while it is copied.
    """
    away = engine.ranks > engine.ranks_per_node
    copies = (0 if in_memory else 2) + (3 if away else 0)
    return WORD * (2 + copies) * int(pattern.block_sizes.max(initial=0))


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
        Amplitudes t2[i, j, a, b] in the order of the tiles; None before the run. Its blocks are made of integrals when
        they are needed; ``t2.copy()`` has them in memory.

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
    settings: ClassVar[tuple[str, ...]] = (*Method.settings, "tol")
    planned: ClassVar[tuple[str, ...]] = (*Method.planned, "tol")

    def __init__(
        self,
        mf: Any,
        frozen: Frozen = None,
        *,
        tol: float | None = None,
        memory: int | str | None = None,
        scratch: str | os.PathLike[str] | None = None,
        tile: int | None = None,
        integrals: str | None = None,
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
        self._planned_by: Engine | None = None
        self._budget = 0
        self._check_integrals()

    def plan(self) -> TransformPlan | Plan | Program:
        """What making the integrals (ia|jb) will do; of integrals only a sample is computed for it.

        Raises
        ------
        MemoryBudgetError
            If the integrals, or the energy of one block of them, cannot be computed within ``memory``.
        """
        engine = current_engine()
        self._check_integrals()
        self.reference.check_canonical(self.name, singles=False)
        if self.integrals == "exact":
            return self._transform(engine).plan()
        made: Plan | Program = self._plan_for(engine, self._plan_fitted)
        return made

    def kernel(self) -> tuple[float, BlockTensor]:
        """Compute the correlation energy and the amplitudes; ranks take the orbitals of the first one."""
        engine = current_engine()
        self._begin(engine)
        self.reference.check_canonical(self.name, singles=False)
        repulsion = self._repulsion(engine)
        self._say("Amplitudes and energy")
        energies = np.diag(self.reference.fock)
        doubles = Doubles(repulsion, energies[: self.nocc], energies[self.nocc :])
        # Of what the transform needed, nothing is kept for the next one.
        with hosting(engine).memory.keeping(0):
            found = doubles.energies(self._blocks_at_once(repulsion, engine))
        self.e_corr = float(found[0].sum())
        self.t2 = doubles.tensor(found[1])
        self._say(f"E(MP2) = {self.e_tot:.12f}  E_corr = {self.e_corr:.12f}", level=3)
        return self.e_corr, self.t2

    def _forget(self) -> None:
        super()._forget()
        self.t2 = None

    def _check_integrals(self) -> None:
        super()._check_integrals()
        tol = getattr(self, "tol", None)  # it is set after the others
        if tol is not None and self.integrals != "exact":
            raise InputError(
                f"tol={tol!r} was given with integrals={self.integrals!r}. Expected it with exact ones, whose blocks "
                "can be left out before they are made. Leave tol= away."
            )

    def _blocks_at_once(self, repulsion: BlockTensor, engine: Engine) -> int:
        """Blocks that there is room for beside the integrals, for each worker one at the most."""
        room = self._budget
        if repulsion.in_memory:
            room -= bytes_on_rank(repulsion.pattern, engine)
        one = max(_needed_bytes(repulsion.pattern, repulsion.in_memory, engine), 1)
        return min(max(room // one, 1), engine.workers)

    def _repulsion(self, engine: Engine) -> BlockTensor:
        """The integrals (ia|jb)."""
        if self.integrals == "exact":
            job = self._transform(engine)
            job.tensor, job.progress = None, self.speaker.say
            return job.kernel()
        made = self.plan()
        assert not isinstance(made, TransformPlan)
        vectors = self._vectors(engine)
        self._say(f"Integrals of {vectors.shape[0]} vectors: {made.flops / 1e9:.3g} GFLOP to {made.result!r}")
        return execute(made, vectors, vectors)

    def _transform(self, engine: Engine) -> Transform:
        made: Transform = self._plan_for(engine, self._fitting_transform)
        return made

    def _plan_for(self, engine: Engine, make: Callable[[Engine], Any]) -> Any:
        """The plan for an engine, made anew if it was another's."""
        if self._plan is None or self._planned_by is not engine:
            self._plan, self._planned_by = make(engine), engine
        return self._plan

    def _fitting_transform(self, engine: Engine) -> Transform:
        """A transform that leaves room for a block of amplitudes beside what it leaves."""
        job = self._new_transform(self.memory, engine)
        try:
            lacking = self._lacking(job)
            self._budget = job.plan().budget
        except MemoryBudgetError as error:
            least = error.least_bytes
            lacking = self._lacking(self._new_transform(least, engine))
            if not lacking:
                raise
            raise _too_small(error.budget, least + lacking) from None
        if not lacking:
            return job
        smaller = self._new_transform(max(self._budget - lacking, 1), engine)
        try:
            smaller.plan()
        except MemoryBudgetError as error:
            raise _too_small(self._budget, error.least_bytes + lacking) from None
        return smaller

    def _lacking(self, job: Transform) -> int:
        """Bytes for a block of amplitudes, if they do not fit beside what a transform leaves in memory."""
        made, pattern = job.plan(), job.problem.result
        in_memory = not made.variant.spills_result
        held = bytes_on_rank(pattern, job.engine) if in_memory else 0
        needed = _needed_bytes(pattern, in_memory, job.engine)
        return needed if held + needed > made.budget else 0

    def _new_transform(self, memory: int | str | None, engine: Engine) -> Transform:
        pair = [self.reference.occupied, self.reference.virtual]
        return Transform(
            self.reference.integrals,
            pair * 2,
            spaces=[plain_space(self.spaces.occ), plain_space(self.spaces.vir)] * 2,
            memory=memory,
            scratch=self.scratch,
            tol=self.tol,
            tile=self.tile,
            engine=engine,
            progress=self.speaker.say,
        )

    def _plan_fitted(self, engine: Engine) -> Plan | Program:
        return self._with_vectors(self._plan_product, engine)

    def _plan_product(self, engine: Engine) -> Plan | Program:
        """The product of vectors, within what vectors or a block of amplitudes leave of the budget."""
        budget = engine.least(budget_of(self.memory, engine.ranks_per_node))
        room = self._budget = budget - reserved_bytes(budget)
        count, making = self._count_vectors(engine)
        pair = plain_space(self.spaces.occ), plain_space(self.spaces.vir)
        pattern = Pattern.dense((Space.uniform(count, TILE, "aux"), *pair))
        over_orbitals = bytes_on_rank(pattern, engine)
        spare = max(over_orbitals, _needed_bytes(Pattern.dense(pair * 2), False, engine))
        least = making + over_orbitals
        try:
            made = plan(FITTED, pattern, pattern, memory=max(room - spare, 1), scratch=self.scratch, engine=engine)
        except MemoryBudgetError as error:
            raise _too_small(budget, with_reserve(max(least, spare + error.least_bytes))) from None
        if least > room:
            raise _too_small(budget, with_reserve(least))
        return made

    def _vectors(self, engine: Engine) -> BlockTensor:
        """B(Q, ia) of the orbitals that are correlated; vectors over functions are not needed any more then."""
        spaces = (plain_space(self.spaces.occ), plain_space(self.spaces.vir))
        made = to_orbitals(
            self.make_vectors(engine),
            self.reference.occupied,
            self.reference.virtual,
            spaces,
            at_once=AT_ONCE,
            engine=engine,
        )
        self._made_vectors = None
        return made


def _too_small(budget: int, least: int) -> MemoryBudgetError:
    return MemoryBudgetError(
        f"MP2 needs {least} bytes ({bytes_text(least)}), for the integrals (ia|jb), what they are made of, and a block "
        f"of amplitudes. The budget is {budget} bytes ({bytes_text(budget)}). Give memory={least} or more, or a "
        "smaller tile=.",
        budget,
        least,
    )
