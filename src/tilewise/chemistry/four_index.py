"""`transform`: integrals over functions to integrals over orbitals, by the schedule that fits."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.identity import function_numbers
from tilewise.chemistry.integrals import AtomicOrbitals, CoulombSource, FittedVectors
from tilewise.chemistry.origins import find_origin, find_spaces, parse_coefficients
from tilewise.contract import find_engine
from tilewise.engines.threads import ThreadsEngine, hosting
from tilewise.engines.transform import Outcome, Source, make_team, run_transform
from tilewise.engines.transform.checkpoint import (
    Heading,
    digest_transform,
    open_checkpoint,
    parse_checkpoint,
    read_variant,
)
from tilewise.engines.transform.fitted import run_fitted
from tilewise.errors import InputError, MemoryBudgetError
from tilewise.plans.budget import budget_of
from tilewise.plans.explain import bytes_text
from tilewise.plans.transform import (
    SCHEDULES,
    Measured,
    Problem,
    Rates,
    TilePairs,
    TransformPlan,
    Variant,
    plan_transform,
)
from tilewise.plans.transform.fitted import FITTED, FittedSizes
from tilewise.plans.transform.schedules import Candidate, cost_of
from tilewise.spaces import Space
from tilewise.spaces.integers import parse_integer
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.drafts import parse_scratch

__all__ = ["Transform", "transform"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

INTERVAL = 5.0
"""Seconds between two reports of progress."""

GEMM_EDGE = 256
"""Largest product that the rate of products is measured with."""

EFFICIENCY = 0.7
"""What of that rate a transform reaches: its matrices are put together first."""

WHOLE = 1 << 22
"""Elements up to which an array is told from others by all of them."""

SAMPLES = 16
"""Blocks by which a larger one is."""

SAMPLE_BYTES = 1 << 20
"""Blocks of integrals above this are not computed for the sake of a plan, but one over small tiles instead."""

SAMPLE_TILE = 12
"""About how many functions these have."""

TILE = 32
"""About how many functions or orbitals a tile holds: enough for fast products, few enough to spare half of them."""


def transform(
    mol_or_mf: Any,
    coeffs: Any,
    *,
    spaces: Space | Sequence[Space] | None = None,
    schedule: str = "auto",
    memory: int | str | None = None,
    scratch: str | os.PathLike[str] | None = None,
    engine: str | Engine | None = None,
    tol: float | None = None,
    tile: int = TILE,
    antisymmetric: bool = False,
    progress: Callable[[str], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    reproducible: bool = False,
) -> BlockTensor:
    """Transform two-electron integrals to orbitals.

    Parameters
    ----------
    mol_or_mf : pyscf.gto.Mole, mean field or array
        The molecule whose integrals (pq|rs) are made when they are needed; or an array of them, in memory or in a file:
        four axes, or PySCF's forms of two axes (pairs p >= q, r >= s) and of one (pairs of pairs).  A mean field with
        ``density_fit()`` gives fitted integrals, by the vectors it has.
    coeffs : array or sequence of four arrays
        Orbitals, as ``pyscf.ao2mo.kernel`` takes them: one matrix (functions, orbitals) for all modes, or one for each.
        Modes 0 and 1, or 2 and 3, with the same matrix are symmetric, and half of their blocks are stored.
    spaces : Space or sequence of four Space, optional
        Tiles of the orbitals; their `order` permutes the orbitals.  By default tiles of about `tile` orbitals, of one
        irrep each where molecule and orbitals have symmetry: blocks that vanish are neither computed nor stored.
        Irreps of spaces that are given are believed.
    schedule : str
        ``"auto"``, the fastest that fits, or one of ``"unfused"``, ``"fused12-34"``, ``"recompute"``, ``"fused1234"``,
        ``"fused1234-inner"`` (Rajbhandari et al. 2017).
    memory : int or str, optional
        Most bytes that the call may add, see `tilewise.einsum`.
    scratch : str or Path, optional
        Folder on a disk with room for what does not fit; the system's temporary folder by default.
    engine : str or Engine, optional
        Who runs it; the engine in use by default.
    tol : float, optional
        Largest Frobenius error of the result: blocks of integrals that Schwarz' inequality shows to be negligible are
        not made, and `error_bound` of the result says what that may come to.
    tile : int
        About how many functions or orbitals a tile holds.
    antisymmetric : bool
        Whether an array changes its sign when p and q, or r and s, are exchanged.
    progress : callable, optional
        Called with a line of text now and then; ``print`` writes it.
    checkpoint : str or Path, optional
        A file that keeps what is done, on a disk with room for the half-transformed integrals and the result, or for
        the result twice with ``fused1234``. If the job is killed, the same call goes on from there, by the schedule it
        was begun with, to the same bits; the file is removed at the end. An array with many elements is known by some
        of them. Not for fitted integrals or several ranks.
    reproducible : bool
        The same bits for any number of ranks and workers and any amount of memory, by ``fused12-34``.

    Returns
    -------
    BlockTensor
        (pq|rs) over orbitals, in chemists' order as `coeffs` are.  `pack_integrals` gives PySCF's form of it.

    Examples
    --------
    >>> from pyscf import gto, scf
    >>> from tilewise.chemistry import transform
    >>> mol = gto.M(atom="H 0 0 0; H 0 0 0.74", basis="6-31g", verbose=0)
    >>> mf = scf.RHF(mol).run()
    >>> eri = transform(mol, mf.mo_coeff)
    >>> eri.shape, round(float(eri.to_dense()[0, 0, 0, 0]), 6)
    ((4, 4, 4, 4), 0.650225)
    """
    job = Transform(
        mol_or_mf,
        coeffs,
        spaces=spaces,
        schedule=schedule,
        memory=memory,
        scratch=scratch,
        engine=engine,
        tol=tol,
        tile=tile,
        antisymmetric=antisymmetric,
        progress=progress,
        checkpoint=checkpoint,
        reproducible=reproducible,
    )
    return job.kernel()


class Transform:
    """A four-index transform that can be asked for its plan before it is run; for its arguments see `transform`.

    Parameters
    ----------
    rates : Rates, optional
        Those of another transform of the same molecule, instead of measuring them again.

    Attributes
    ----------
    tensor : BlockTensor
        The result; None before the run.

    Examples
    --------
    >>> from pyscf import gto, scf
    >>> from tilewise.chemistry import Transform
    >>> mol = gto.M(atom="H 0 0 0; H 0 0 0.74", basis="6-31g", verbose=0)
    >>> job = Transform(mol, scf.RHF(mol).run().mo_coeff, memory="1MB")
    >>> job.plan().peak_bytes <= 1_000_000
    True
    """

    def __init__(
        self,
        mol_or_mf: Any,
        coeffs: Any,
        *,
        spaces: Space | Sequence[Space] | None = None,
        schedule: str = "auto",
        memory: int | str | None = None,
        scratch: str | os.PathLike[str] | None = None,
        engine: str | Engine | None = None,
        tol: float | None = None,
        tile: int = TILE,
        antisymmetric: bool = False,
        progress: Callable[[str], None] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        reproducible: bool = False,
        rates: Rates | None = None,
    ) -> None:
        size = parse_integer(tile, "The tile size", "Pass a number such as tile=32.")
        if size < 1:
            raise InputError(f"The tile size is {size}. Expected at least 1. Pass a number such as tile=32.")
        self.engine = find_engine(engine)
        self.host = hosting(self.engine)
        if progress is not None and not callable(progress):
            raise InputError(f"progress={progress!r} cannot be called. Expected a function, or None. Pass print.")
        self.schedule, self.memory, self.progress, self._rates = schedule, memory, progress, rates
        self.reproducible = bool(reproducible)
        self.scratch = None if scratch is None else parse_scratch(scratch)
        self.checkpoint = None if checkpoint is None else checkpoint_for(self.engine, checkpoint)
        origin = find_origin(mol_or_mf, size, antisymmetric)
        matrices = parse_coefficients(self.engine.of_first(coeffs), origin.size)
        modes = find_spaces(origin.mol, matrices, spaces, size)
        equal = tuple(matrices[2 * i] is matrices[2 * i + 1] and modes[2 * i] == modes[2 * i + 1] for i in (0, 1))
        self.problem = Problem.of(origin.space, modes, (equal[0], equal[1]), -1 if antisymmetric else 1)
        self.matrices = [
            np.ascontiguousarray(matrix[origin.order][:, mode.order])
            for matrix, mode in zip(matrices, modes, strict=True)
        ]
        self.source, self.error_bound = origin.open(self.problem.functions, tol, self.matrices)
        if isinstance(self.source, FittedVectors) and self.engine.ranks > 1:
            raise InputError(
                f"Fitted integrals were given to {self.engine.ranks} ranks. Expected one process, with as many workers "
                "as there are cores. Use engine='threads', or pass mf.mol for the integrals themselves."
            )
        if self.checkpoint is not None and isinstance(self.source, FittedVectors):
            raise InputError(
                f"checkpoint={str(checkpoint)!r} was given with fitted integrals. Expected it with a molecule or an "
                "array: fitted ones take little time. Leave it away, or pass mf.mol for the integrals themselves."
            )
        self.problem = replace(self.problem, needed=getattr(self.source, "needed", None))
        self.team = make_team(self.problem, self.engine)
        self._same = matrices[0] is matrices[2] and matrices[1] is matrices[3] and modes[:2] == modes[2:]
        self.tensor: BlockTensor | None = None
        self._plan: TransformPlan | None = None

    def plan(self) -> TransformPlan:
        """What will be done, and what other schedules would cost; the rates of this computer are measured for it."""
        if self._plan is None:
            budget = self.engine.least(budget_of(self.memory, self.engine.ranks_per_node))
            if isinstance(self.source, FittedVectors):
                self._plan = self._plan_fitted(self.source, budget)
                return self._plan
            variant = None if self.checkpoint is None else read_variant(self.checkpoint, self._digest)
            if variant is not None:
                self._plan = self._plan_saved(variant, budget, self.rates)
                return self._plan
            self._plan = self._choose(budget, self.rates, self.schedule)
        return self._plan

    def _plan_saved(self, variant: Variant, budget: int, rates: Rates) -> TransformPlan:
        """The plan of a transform that was begun."""
        if self.schedule not in ("auto", variant.schedule):
            raise InputError(
                f"schedule={self.schedule!r} was given, and the checkpoint {self.checkpoint} was begun with "
                f"{variant.schedule!r}. Expected the same or 'auto'. Leave schedule= away, or remove the file."
            )
        deal, workers = self.team.deal, self.host.workers
        cost = cost_of(self.problem, variant, workers, deal)
        if cost.peak_bytes > budget:
            raise MemoryBudgetError(
                f"The checkpoint {self.checkpoint} was begun with {variant.schedule} ({_details(variant)}), which "
                f"needs {cost.peak_bytes} bytes ({bytes_text(cost.peak_bytes)}) with {workers} workers. The budget is "
                f"{budget} bytes ({bytes_text(budget)}). Give memory={cost.peak_bytes}, or remove the file.",
                budget,
                cost.peak_bytes,
            )
        fresh = self._choose(budget, rates, "auto")
        listed = sorted((fresh.chosen, *fresh.others), key=lambda each: SCHEDULES.index(each.variant.schedule))
        others = tuple(each for each in listed if each.variant.schedule != variant.schedule)
        chosen = Candidate(variant, cost, rates.seconds(cost), fits=True)
        return replace(fresh, chosen=chosen, others=others)

    def _choose(self, budget: int, rates: Rates, schedule: str) -> TransformPlan:
        workers, deal = self.host.workers, self.team.deal
        return plan_transform(self.problem, budget, workers, rates, schedule, deal, reproducible=self.reproducible)

    @cached_property
    def _digest(self) -> bytes:
        """What tells this transform from others."""
        assert not isinstance(self.source, FittedVectors)
        return digest_transform(self.problem, self.matrices, identify(self.source, self.problem.functions))

    def _plan_fitted(self, source: FittedVectors, budget: int) -> TransformPlan:
        if self.schedule not in ("auto", FITTED):
            raise InputError(
                f"schedule={self.schedule!r} was given with fitted integrals. Expected 'auto': their vectors are "
                "transformed instead of four indices. Leave it away, or pass mf.mol for the integrals themselves."
            )
        rates = Rates(measure_products(self.problem.size, self.host), 1.0)
        cost = self._fitted_sizes(source).cost(budget)
        chosen = Candidate(Variant(FITTED), cost, rates.seconds(cost), fits=True)
        return TransformPlan(self.problem, chosen, (), budget, self.host.workers, self.team.deal, rates)

    def _fitted_sizes(self, source: FittedVectors) -> FittedSizes:
        return FittedSizes(self.problem, source.count, self._same, self.host.workers)

    @property
    def rates(self) -> Rates:
        """What this computer does in a second, measured by the first rank so that all plan alike."""
        if self._rates is None:
            self._rates = self._measured_rates()
        return self._rates

    def _measured_rates(self) -> Rates:
        measured = np.zeros(2)
        if self.team.rank == 0:
            assert not isinstance(self.source, FittedVectors)
            rates = measure_rates(self.source, self.problem, self.host)
            measured[:] = rates.flops, rates.integrals
        return Rates(*self.team.total(measured).tolist())

    def kernel(self) -> BlockTensor:
        """Transform, and return the result."""
        plan = self.plan()
        if self.progress is not None:
            self.progress(f"Transform: {plan.schedule} ({_details(plan.variant)}), {plan.flops / 1e9:.3g} GFLOP")
        outcome = self._run(plan)
        plan.runs.append(
            Measured(
                outcome.flops,
                outcome.integrals,
                outcome.peak_bytes,
                outcome.written_bytes + outcome.read_bytes,
                outcome.seconds,
                outcome.between_bytes,
            )
        )
        self.tensor = outcome.tensor
        self.tensor.engine = self.engine
        self.tensor.error_bound = self.error_bound
        return self.tensor

    def _run(self, plan: TransformPlan) -> Outcome:
        told = None if self.progress is None else _Teller(self.progress, plan, time.perf_counter())
        if isinstance(self.source, FittedVectors):
            sizes = self._fitted_sizes(self.source)
            return run_fitted(self.host, sizes, self.source.bring, self.matrices, plan.budget, told)
        run = partial(
            run_transform,
            self.host,
            self.problem,
            plan.variant,
            self.source,
            self.matrices,
            plan.budget,
            self.scratch,
            told,
            self.team,
        )
        if self.checkpoint is None:
            return run()
        with open_checkpoint(self.checkpoint, Heading(self._digest, plan.variant)) as saved:
            if self.progress is not None and saved.units:
                self.progress(f"Transform: goes on from {self.checkpoint}, {len(saved.units)} units are done")
            return run(saved=saved)

    def run(self) -> Transform:
        """Transform, and return this object."""
        self.kernel()
        return self


def _details(variant: Variant) -> str:
    return str(variant) or "all at once"


def checkpoint_for(engine: Engine, path: str | os.PathLike[str]) -> Path:
    """The file of a checkpoint as a user gives it, for an engine that can use one."""
    if engine.ranks > 1:
        raise InputError(
            f"checkpoint={str(path)!r} was given with {engine.ranks} ranks. Expected one process, with as many workers "
            "as there are cores. Leave it away, or use engine='threads'."
        )
    return parse_checkpoint(path)


def identify(source: Source, pairs: TilePairs) -> list[Any]:
    """What tells a source of integrals from others: the functions of a molecule, or digests of blocks of an array."""
    if isinstance(source, CoulombSource):
        mol = source.functions.mol
        return [mol._add_suffix("int2e").encode(), *function_numbers(mol)]
    rows, columns = np.tril_indices(pairs.count)
    if pairs.elements**2 > 2 * WHOLE:
        some = np.unique(np.linspace(0, len(rows) - 1, SAMPLES).astype(np.int64))
        rows, columns = rows[some], columns[some]
    digests = []
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        block = np.empty((int(pairs.sizes[row]), int(pairs.sizes[column])))
        source.read(row, column, block)
        digests.append(hashlib.blake2b(block.data).digest())
    return digests


class _Teller:
    """Says how far a run has come, at most every few seconds."""

    def __init__(self, say: Callable[[str], None], plan: TransformPlan, begin: float) -> None:
        self._say, self._plan, self._begin = say, plan, begin
        self._last = begin

    def __call__(self, flops: int, integrals: int) -> None:
        now = time.perf_counter()
        if now - self._last < INTERVAL:
            return
        self._last = now
        rates = self._plan.rates
        done = self._plan.deal.ranks * (flops / rates.flops + integrals / rates.integrals)  # as if all were as far
        total = self._plan.flops / rates.flops + self._plan.integrals / rates.integrals
        share, passed = min(done / total, 1.0), now - self._begin
        left = f", about {passed * (1 - share) / share:.0f} s left" if 0 < share < 1 else ""
        self._say(f"Transform: {100 * share:.0f} %, {passed:.0f} s{left}")


def measure_products(size: int, host: ThreadsEngine) -> float:
    """Flops per second of products of matrices of about that size, all workers together."""
    edge = max(min(size, GEMM_EDGE), 16)
    matrix = np.ones((edge, edge))
    with host.blas.single_threaded():
        seconds = _least_seconds(lambda: np.matmul(matrix, matrix), 5)
    return EFFICIENCY * host.workers * 2 * edge**3 / seconds


def measure_rates(source: Source, problem: Problem, host: ThreadsEngine) -> Rates:
    """How fast this computer multiplies and how fast integrals come, from a few milliseconds of each."""
    pairs = problem.functions
    typical = _typical(pairs)
    if isinstance(source, CoulombSource) and 8 * int(pairs.sizes[typical]) ** 2 > SAMPLE_BYTES:
        functions = AtomicOrbitals.of(source.functions.mol, SAMPLE_TILE)
        pairs = TilePairs((functions.space, functions.space), symmetric=True, packed=True)
        source, typical = CoulombSource.of(functions, pairs), _typical(pairs)
    block = np.empty((int(pairs.sizes[typical]),) * 2)
    integral = _least_seconds(lambda: source.read(typical, typical, block), 1)
    return Rates(flops=measure_products(problem.size, host), integrals=host.workers * block.size / integral)


def _typical(pairs: TilePairs) -> int:
    """A pair of tiles of medium size."""
    return int(np.argsort(pairs.sizes)[pairs.count // 2])


def _least_seconds(work: Callable[[], object], repeats: int) -> float:
    least = math.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - begin)
    return max(least, 1e-9)
