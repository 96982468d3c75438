"""`triples_energy`: the perturbative triples correction E(T) of closed-shell CCSD(T).

In the letters of einsum, with i j k l occupied and a b c d virtual, chemists' integrals, and P for the sum over the six
orders of the pairs (ia), (jb), (kc):

    W[ijkabc] = P( (ia|bd) t2[kcjd] - t2[ialb] (lj|kc) )
    V[ijkabc] = (ia|jb) t1[kc] + (ia|kc) t1[jb] + (jb|kc) t1[ia] + t2[iajb] f[kc] + t2[iakc] f[jb] + t2[jbkc] f[ia]
    R x[ijk]  = 4 x[ijk] + x[jki] + x[kij] - 2 x[kji] - 2 x[ikj] - 2 x[jik]
    E(T)      = 1/3 W[ijkabc] R(W + V)[ijkabc] / (e_i + e_j + e_k - e_a - e_b - e_c)

(Rendell, Lee, Komornicki, Chem. Phys. Lett. 178, 462 (1991); f[ia] is zero for canonical orbitals.)  The energy is the
same for all orders of a, b, c, so only a >= b >= c are done.  W of one (a, b, c) takes six products of 2 o^3 (o + v)
flops each, three if two of them are equal, and none if all are, since R W is zero then: 2 o^3 (v^3 - v) (o + v) in all,
of which irreps leave a part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilewise.contract import find_engine
from tilewise.engines.triples import (
    Holding,
    Orbitals,
    TriplesInput,
    cut_slices,
    list_threes,
    run_triples,
    total_irreps,
)
from tilewise.errors import InputError, MemoryBudgetError, NonFiniteError
from tilewise.patterns import Pattern
from tilewise.plans.budget import budget_of
from tilewise.plans.explain import Report, Table, bytes_text, count_text, plural_text, to_text
from tilewise.spaces.integers import parse_count
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.elsewhere import make_elsewhere
from tilewise.tensors.storage import Arena

__all__ = ["TriplesInput", "TriplesPlan", "plan_triples", "plan_within", "stand_in", "triples_energy"]

MODES = (
    ("fov", "ov"),
    ("t1", "ov"),
    ("t2", "ovov"),
    ("ovov", "ovov"),
    ("ooov", "ooov"),
    ("ovvv", "vovv"),
)
"""The tensors and their modes: occupied or virtual."""

NEGLIGIBLE = 1e-6
"""Norm of blocks that vanish by symmetry, but for rounding: the energy is quadratic in them."""

THREES = 2
"""Threes of slices for each of several ranks at least, so that not every rank needs everything."""


@dataclass(frozen=True, slots=True)
class TriplesPlan:
    """What the triples correction will do.

    Examples
    --------
    >>> import numpy as np, tilewise as tw
    >>> from tilewise.chemistry.triples import TriplesInput, plan_triples
    >>> o, v = tw.Space([3]), tw.Space([4, 2])
    >>> given = TriplesInput(o, v, np.zeros(3), np.ones(6), tw.zeros((o, v)), *(
    ...     tw.random(spaces) for spaces in ((o, v), (o, v, o, v), (o, v, o, v), (o, o, o, v), (v, o, v, v))))
    >>> plan = plan_triples(given, memory="1MB", workers=1)
    >>> plan.flops == 2 * 3**3 * (6**3 - 6) * (3 + 6), plan.peak_bytes < 1_000_000
    (True, True)
    """

    holding: Holding
    """The orbitals, and what a rank holds of the operands at a time."""
    flops: int
    """Floating-point operations of the products of all ranks."""
    tasks: int
    """Tasks of all ranks."""
    peak_bytes: int
    """Bytes that a rank adds to what it holds of the tensors."""
    budget: int
    """Bytes that a rank may add."""
    workers: int
    """Workers of each rank."""
    ranks: int
    """Ranks that share the tasks."""

    def explain(self) -> str:
        """The plan as a person reads it."""
        orbitals, slices = self.holding.orbitals, len(self.holding.slices)
        who = plural_text(self.workers, "worker")
        who = who if self.ranks == 1 else f"{plural_text(self.ranks, 'rank')} with {who} each"
        whole = 2 * orbitals.nocc**3 * (orbitals.nvir**3 - orbitals.nvir) * (orbitals.nocc + orbitals.nvir)
        rows = [
            ("flops", count_text(self.flops)),
            ("  without irreps", count_text(whole)),
            ("tasks", count_text(self.tasks)),
            ("slices of virtual orbitals", str(slices)),
            ("  reads of (kc|bd) by one rank alone", f"{self.holding.passes:.2f}" if slices else "0"),
            ("memory of a rank", bytes_text(self.peak_bytes)),
            ("  budget", bytes_text(self.budget)),
        ]
        title = f"E(T) of {orbitals.nocc} occupied and {plural_text(orbitals.nvir, 'virtual orbital')}  ({who})"
        return to_text(Report(title, (Table("Cost", ("", "projected"), tuple(rows)),), ()))


def plan_triples(
    given: TriplesInput, *, memory: int | str | None = None, workers: int | None = None, ranks: int | None = None
) -> TriplesPlan:
    """What `triples_energy` will do; no element of any tensor is looked at.

    Parameters
    ----------
    given : TriplesInput
        The orbitals and tensors.
    memory : int or str, optional
        Most bytes that each rank may add to what the tensors hold, see `tilewise.einsum`.
    workers, ranks : int, optional
        Workers of each rank, and ranks; those of the engine in use by default.

    Raises
    ------
    MemoryBudgetError
        If it cannot be done within the memory.
    """
    _check(given)
    engine = find_engine(None)
    workers = engine.workers if workers is None else parse_count("workers", workers, "threads")
    ranks = engine.ranks if ranks is None else parse_count("ranks", ranks, "ranks")
    return plan_within(given, budget_of(memory, engine.ranks_per_node), workers, ranks)


def triples_energy(
    given: TriplesInput,
    *,
    memory: int | str | None = None,
    engine: Engine | None = None,
    progress: Callable[[str], None] | None = None,
) -> float:
    """The perturbative triples correction E(T), in hartree.

    Its bits depend neither on the number of workers or ranks nor on the memory.

    Parameters
    ----------
    given : TriplesInput
        The orbitals and tensors.
    memory : int or str, optional
        Most bytes that each rank may add to what the tensors hold, see `tilewise.einsum`.
    engine : Engine, optional
        Who computes it; the engine in use by default.
    progress : callable, optional
        Called with a line of text every few seconds; ``print`` writes it.

    Raises
    ------
    MemoryBudgetError
        If it cannot be done within the memory; nothing is computed then.
    NonFiniteError
        If a part of the energy is not finite.
    """
    _check(given)
    runner = find_engine(engine)
    budget = runner.least(budget_of(memory, runner.ranks_per_node))
    plan = plan_within(given, budget, runner.workers, runner.ranks)
    levels = runner.of_first((given.occupied_energies, given.virtual_energies))
    occupied, virtual = (np.array(each, np.float64) for each in levels)
    given = replace(given, occupied_energies=occupied, virtual_energies=virtual)
    say = None if runner.rank else progress
    tell = None if say is None else lambda done: say(str(done))
    parts = run_triples(runner, given, plan.holding, plan.flops, plan.budget, tell)
    _check_finite(parts, given)
    return 2 * math.fsum(parts)


def _check_finite(parts: npt.NDArray[np.float64], given: TriplesInput) -> None:
    """Raise if a part of the energy is not finite, with the first operand that is to blame."""
    wrong = int(np.count_nonzero(~np.isfinite(parts)))
    if not wrong:
        return
    cause, name = "An energy denominator vanishes, or a product overflows", "the energy"
    block: tuple[int, ...] = ()
    for operand, _ in MODES:
        tensor: BlockTensor = getattr(given, operand)
        norms = tensor.arena.frobenius_norms() if tensor.in_memory else tensor.pattern.norms
        rows = np.flatnonzero(~np.isfinite(norms))
        if len(rows):
            name, block = operand, tuple(tensor.pattern.index[rows[0]].tolist())
            cause = f"Block {block} of {name} is not finite, or nobody knows its norm"
            break
    raise NonFiniteError(
        f"{wrong} of {len(parts)} parts of E(T) are not finite. {cause}. Expected finite numbers, and virtual orbitals "
        "above the occupied ones. Check the amplitudes, the integrals and the orbital energies.",
        name,
        block,
        "E(T)",
    )


def stand_in(pattern: Pattern, seen: bool, engine: Engine) -> BlockTensor:
    """A tensor for plans that has no elements, as if it lay where a process sees all of them, or somewhere else."""
    if not seen:
        return make_elsewhere(pattern, engine)
    return BlockTensor(pattern, Arena(np.empty(0), np.zeros(pattern.nnz_blocks, np.int64)), engine)


def plan_within(given: TriplesInput, budget: int, workers: int, ranks: int) -> TriplesPlan:
    """The fewest slices that fit, and that ranks can share; tensors may be stand-ins."""
    orbitals = Orbitals.of(given.occ, given.vir)
    if not orbitals.ntasks:
        return TriplesPlan(Holding(orbitals, ()), 0, 0, 0, budget, workers, ranks)
    most, least, peaks = max(orbitals.nchunks // 2, 1), 1, []
    while ranks > 1 and least < most and least * (least + 1) * (least + 2) // 6 < THREES * ranks:
        least += 1
    for count in range(least, most + 1):
        holding = Holding(orbitals, cut_slices(orbitals, count))
        peaks.append(holding.peak_bytes(given, workers))
        if peaks[-1] <= budget:
            return TriplesPlan(holding, _flops(holding), orbitals.ntasks, peaks[-1], budget, workers, ranks)
    needed = min(peaks)
    raise MemoryBudgetError(
        f"The triples correction needs {needed} bytes ({bytes_text(needed)}) with {plural_text(workers, 'worker')}, in "
        f"the smallest slices. The budget is {budget} bytes ({bytes_text(budget)}). Give memory={needed}, or use fewer "
        "workers or smaller tiles.",
        budget,
        needed,
    )


def _flops(holding: Holding) -> int:
    """Floating-point operations of all tasks."""
    orbitals = holding.orbitals
    threes = ([holding.slices[each] for each in three] for three in list_threes(len(holding.slices)))
    return sum(int(orbitals.task_flops(orbitals.tasks(three)).sum()) for three in threes)


def _check(given: TriplesInput) -> None:
    """Raise if tensors and orbitals do not fit together."""
    for name, space in (("occupied_energies", given.occ), ("virtual_energies", given.vir)):
        shape = np.shape(getattr(given, name))
        if shape != (space.size,):
            raise InputError(
                f"{name} has the shape {shape}. Expected an energy for each of the {space.size} orbitals of {space!r}. "
                "Pass the diagonal of the Fock matrix in the order of the tiles."
            )
    for name, modes in MODES:
        tensor: BlockTensor = getattr(given, name)
        spaces = tuple(given.occ if mode == "o" else given.vir for mode in modes)
        if tensor.spaces != spaces:
            raise InputError(
                f"{name} has the spaces {tensor.spaces}. Expected {spaces}. Make it over the spaces of the orbitals."
            )
        if tensor.dtype.kind == "c":
            raise InputError(f"{name} is {tensor.dtype.name}. Expected real numbers. Use real orbitals.")
        _check_irreps(name, tensor, given)


def _check_irreps(name: str, tensor: BlockTensor, given: TriplesInput) -> None:
    """Raise if a block is not zero that the irreps say is."""
    if given.occ.irrep is None or given.vir.irrep is None:
        return
    pattern = tensor.pattern
    wrong = np.flatnonzero((total_irreps(pattern, pattern.index) != 0) & (pattern.norms > NEGLIGIBLE))
    if len(wrong):
        block, norm = tuple(pattern.index[wrong[0]].tolist()), float(pattern.norms[wrong[0]])
        raise InputError(
            f"Block {block} of {name} vanishes by the irreps of its tiles, and has the norm {norm:.3g}. Expected at "
            f"most {NEGLIGIBLE}. Correct the irreps, or give spaces without them."
        )
