"""Solving amplitude equations by iteration, whichever method they belong to.

A method gives amplitudes to start from, their energy, and what one quasi-Newton iteration makes of them; here they are
extrapolated (`tilewise.chemistry.diis`), written down (`checkpoint`), checked, and told to people.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tilewise.chemistry.checkpoint import Checkpoint, Saved, State
from tilewise.chemistry.diis import Amplitudes, Diis, combine, difference
from tilewise.chemistry.interrupts import Interrupts, catching_signals
from tilewise.engines.base import current_engine
from tilewise.errors import ConvergenceError, InputError, Interrupted, NonFiniteError
from tilewise.patterns import Pattern, equal_structure
from tilewise.plans.explain import plural_text
from tilewise.plans.propagation import nonnegative
from tilewise.spaces.integers import parse_integer
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.storage import frobenius_norm

__all__ = ["Cycle", "Options", "Outcome", "check_finite", "explain_failure", "solve"]

Check = Callable[[], None]
"""Called at a safe place of an iteration, by all ranks: raises if the run is to end."""

MOST_ENERGY = 1e3
"""Correlation energies beyond this, in hartree, are those of an iteration that diverges."""

MOST_GROWTH = 1e4
"""An iteration diverges once a step is so much longer than the first one and than 1."""

ROUNDING = 1e-13
"""Norm of steps that consist of rounding."""

RECENT = 6
"""How many of the last cycles are looked at to tell what is wrong."""


@dataclass(frozen=True, slots=True)
class Options:
    """When to stop, and how to get there; names and defaults are PySCF's."""

    max_cycle: int = 50
    """Most iterations, those before an interruption included."""
    conv_tol: float = 1e-7
    """Largest change of the energy, in hartree."""
    conv_tol_normt: float = 1e-5
    """Largest norm of the step of all amplitudes."""
    diis_space: int = 6
    """How many amplitudes DIIS combines; 0 or 1 turns it off."""
    diis_start_cycle: int = 0
    """Iterations before DIIS begins."""
    diis_on_disk: bool = False
    """Whether what DIIS remembers is in scratch files."""
    scratch: str | None = None
    """Folder for these files; the system's temporary folder by default."""
    iterative_damping: float = 1.0
    """Part of each step that is taken, more than 0 and at most 1."""

    def __post_init__(self) -> None:
        for name in ("max_cycle", "diis_space", "diis_start_cycle"):
            value = getattr(self, name)
            if parse_integer(value, f"{name}=", "Pass a number such as 6.") < 0:
                raise InputError(f"{name}={value} is negative. Expected an integer >= 0. Pass a number such as 6.")
        for name in ("conv_tol", "conv_tol_normt"):
            value = getattr(self, name)
            if not 0 < (nonnegative(value) or 0) < math.inf:
                raise InputError(f"{name}={value!r} is no tolerance. Expected a number > 0. Pass one such as 1e-7.")
        if not 0 < (nonnegative(self.iterative_damping) or 0) <= 1:
            raise InputError(
                f"iterative_damping={self.iterative_damping!r} is no part of a step. Expected a number > 0 and <= 1. "
                "Pass one such as 0.5."
            )

    def are_met(self, change: float, norm: float) -> bool:
        """Whether an iteration with such a change of the energy and such a step is the last one."""
        return abs(change) < self.conv_tol and norm < self.conv_tol_normt


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one iteration came to."""

    number: int
    """From 1."""
    e_corr: float
    """Correlation energy, in hartree."""
    change: float
    """Of the energy, in hartree."""
    norm: float
    """Of the step of all amplitudes."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """How an iteration ended."""

    name: str
    """The method."""
    amplitudes: Amplitudes
    """The last amplitudes."""
    e_corr: float
    """Their correlation energy, in hartree."""
    converged: bool
    """Whether energy and amplitudes have changed by no more than was asked for."""
    cycles: int
    """Iterations, those before an interruption included."""
    history: tuple[Cycle, ...]
    """What each came to."""
    reason: str
    """Why it ended; without convergence also what to do about it."""

    def check_converged(self, what: str) -> None:
        """Raise if something is asked for that needs converged amplitudes."""
        if not self.converged:
            raise ConvergenceError(f"{what} needs converged amplitudes. {self.reason}")


def check_finite(name: str, tensor: BlockTensor, term: str) -> None:
    """Raise `NonFiniteError`, on all ranks, if elements are infinite or no numbers.

    Contractions note an infinite norm for blocks with such elements, so that this costs nothing where all is well.

    Parameters
    ----------
    name : str
        What the tensor is called.
    tensor : BlockTensor
        The tensor.
    term : str
        What has just been computed or added to it.
    """
    if np.isfinite(tensor.pattern.norms).all():
        return
    wrong = np.flatnonzero(~np.isfinite(_true_norms(tensor)))  # a norm is also infinite if nobody knows it
    if len(wrong):
        block = tuple(tensor.pattern.index[wrong[0]].tolist())
        others = f" and {len(wrong) - 1} more blocks" if len(wrong) > 1 else ""
        raise NonFiniteError(
            f"Block {block}{others} of {name} has elements that are not finite after {term}. Expected finite numbers. "
            "Check the integrals and orbital energies, and the amplitudes to start from.",
            name,
            block,
            term,
        )


def _true_norms(tensor: BlockTensor) -> Any:
    if tensor.in_memory:
        return tensor.arena.frobenius_norms()
    return np.array([frobenius_norm(tensor.read_only(row)) for row in range(tensor.pattern.nnz_blocks)])


def solve(
    start: Amplitudes,
    energy_of: Callable[[Amplitudes], float],
    update: Callable[[Amplitudes, Check], Amplitudes],
    options: Options | None = None,
    *,
    name: str = "CCSD",
    checkpoint: Checkpoint | None = None,
    log: Callable[[str], None] | None = None,
    callback: Callable[[dict[str, Any]], None] | None = None,
    engine: Engine | None = None,
) -> Outcome:
    """Iterate until the energy and the amplitudes do not change any more, or until there is no hope.

    Parameters
    ----------
    start : dict of str to BlockTensor
        Amplitudes to start from, in memory; they have every block that an iteration gives them. A run that goes on from
        a checkpoint with ``diis_on_disk`` writes over them: their memory serves to bring back what DIIS remembers.
    energy_of : callable
        The correlation energy of amplitudes.
    update : callable
        ``update(amplitudes, check)`` returns new amplitudes and leaves the old ones as they are. It may call
        ``check()`` between its steps, on all ranks alike: that raises `Interrupted` if a signal has come, and the
        iteration is dropped.
    options : Options, optional
        When to stop.
    name : str
        The method, for people and for the checkpoint.
    checkpoint : Checkpoint, optional
        Where each iteration is written. If it has a state already, the run goes on from there. SIGTERM and SIGUSR1 are
        caught meanwhile, see `tilewise.chemistry.interrupts`.
    log : callable
        Called on the first rank with a line for each iteration.
    callback : callable
        Called after each iteration with a dictionary of its ``cycle``, ``e_corr``, ``de``, ``norm`` and ``amplitudes``.
    engine : Engine, optional
        Whose ranks iterate together; the engine in use by default.

    Raises
    ------
    NonFiniteError
        If amplitudes or the energy are not finite.
    Interrupted
        If a signal has come; the last iteration that was finished is in the checkpoint.

    Notes
    -----
    An iteration that does not converge is no error: the outcome says so, why, and what to try.

    With an update and an energy whose bits do not depend on the number of ranks, those of the outcome do not either,
    nor on how often the run was stopped.

    Examples
    --------
    >>> import numpy as np, tilewise as tw
    >>> from tilewise.chemistry.solver import solve
    >>> i = tw.Space([2, 1])
    >>> start = {"t": tw.from_dense(np.ones(3), (i,))}
    >>> cosine = lambda amplitudes, check: {"t": amplitudes["t"].map(lambda block, at: np.cos(block))}
    >>> found = solve(start, lambda amplitudes: tw.dot(amplitudes["t"], amplitudes["t"]), cosine)
    >>> found.converged, found.amplitudes["t"].to_dense().round(5).tolist()
    (True, [0.73909, 0.73909, 0.73909])
    """
    runner = current_engine() if engine is None else engine
    iteration = _Iteration(energy_of, update, options or Options(), name, checkpoint, log, callback, runner)
    with _signals(checkpoint, runner) as interrupts:
        try:
            iteration.begin(start)
            del start  # from here on it is in memory only if somebody else wants it
            return iteration.run(interrupts.check)
        except Interrupted as stop:
            raise iteration.stopped(stop) from None
        finally:
            if checkpoint is not None:
                checkpoint.close()


def _signals(checkpoint: Checkpoint | None, engine: Engine) -> AbstractContextManager[Interrupts]:
    """Signals are caught only if it is of use: without a checkpoint they end the process as ever."""
    return nullcontext(Interrupts(engine)) if checkpoint is None else catching_signals(engine)


class _Iteration:
    """An iteration on its way."""

    def __init__(
        self,
        energy_of: Callable[[Amplitudes], float],
        update: Callable[[Amplitudes, Check], Amplitudes],
        options: Options,
        name: str,
        checkpoint: Checkpoint | None,
        log: Callable[[str], None] | None,
        callback: Callable[[dict[str, Any]], None] | None,
        engine: Engine,
    ) -> None:
        self.energy_of, self.update, self.options, self.name = energy_of, update, options, name
        self.checkpoint, self.log, self.callback, self.engine = checkpoint, log, callback, engine
        space, start = options.diis_space, options.diis_start_cycle
        self.diis = Diis(space, start, on_disk=options.diis_on_disk, scratch=options.scratch)
        self.amplitudes: Amplitudes = {}
        self.kinds: dict[str, tuple[Pattern, np.dtype[Any]]] = {}
        self.energies: list[float] = []
        self.norms: list[float] = []
        self.mixes: dict[int, Mapping[int, float]] = {0: {0: 1.0}}

    @property
    def cycle(self) -> int:
        """Iterations that are done."""
        return len(self.norms)

    @property
    def history(self) -> tuple[Cycle, ...]:
        """What each came to."""
        changes = np.diff(self.energies).tolist()
        rows = zip(self.energies[1:], changes, self.norms, strict=True)
        return tuple(Cycle(number, *row) for number, row in enumerate(rows, 1))

    def begin(self, start: Amplitudes) -> None:
        """Take the amplitudes to start from, or what the checkpoint has."""
        _check_start(start)
        self.kinds = {name: (tensor.pattern, tensor.dtype) for name, tensor in start.items()}
        saved = None if self.checkpoint is None else self.checkpoint.read(start)
        if saved is not None:
            self._go_on(saved, start)
            return
        for name, tensor in start.items():
            check_finite(name, tensor, "taking it to start from")
        self.amplitudes = start
        self.energies.append(self._energy())
        self._write(start)
        self._say(f"Init E_corr({self.name}) = {self.energies[0]:.15g}")

    def _go_on(self, saved: Saved, like: Amplitudes) -> None:
        assert self.checkpoint is not None
        state = saved.state
        self.checkpoint.check_method(state, self.name)
        saved.restore(self.diis, like)
        self.amplitudes = saved.amplitudes(like)
        self.energies, self.norms, self.mixes = list(state.energies), list(state.norms), dict(state.mixes)
        self._say(
            f"{self.name} goes on after cycle {self.cycle} from {self.checkpoint.path}  "
            f"E_corr({self.name}) = {self.energies[-1]:.15g}"
        )

    def run(self, check: Check) -> Outcome:
        """Iterate to the end."""
        reason = ""
        while not reason and not self._has_converged() and self.cycle < self.options.max_cycle:
            check()
            reason = self._step(check)
        converged = not reason and self._has_converged()
        if converged:
            reason = f"{self.name} converged in {self.cycle} cycles."
        elif not reason:
            reason = f"{self.name} has not converged. {explain_failure(self.history, self.options)}"
        self._say(f"{self.name} converged" if converged else reason)
        return Outcome(self.name, self.amplitudes, self.energies[-1], converged, self.cycle, self.history, reason)

    def _has_converged(self) -> bool:
        change = self.energies[-1] - self.energies[-2] if self.norms else math.inf
        return bool(self.norms) and self.options.are_met(change, self.norms[-1])

    def _step(self, check: Check) -> str:
        """One iteration; what is wrong if it leads nowhere, else an empty string."""
        number, part = self.cycle + 1, self.options.iterative_damping
        new = self.update(self.amplitudes, check)
        self._check_names(new)
        new = {name: self._conformed(name, new[name]) for name in self.kinds}
        for name, tensor in new.items():
            check_finite(name, tensor, f"the update of cycle {number}")
        if part < 1:
            old = self.amplitudes
            new = {name: combine([(part, t), (1 - part, old[name])], t) for name, t in new.items()}
            del old
        steps = difference(new, self.amplitudes)
        norm = self.engine.of_first(math.hypot(*(tensor.pattern.norm for tensor in steps.values())) / part)
        if norm > MOST_GROWTH * max([1.0, *self.norms[:1]]):
            return self._diverged(f"the step of cycle {number} has the norm {norm:.3g}")
        self.amplitudes = new  # the old ones are not needed any more
        self.amplitudes = self.diis.update(new, steps, number)
        del steps
        self.energies.append(self._energy())
        self.norms.append(norm)
        if abs(self.energies[-1]) > MOST_ENERGY:
            return self._diverged(f"the energy of cycle {number} is {self.energies[-1]:.3g} hartree")
        self._finish(new)
        return ""

    def _finish(self, made: Amplitudes) -> None:
        """Write an iteration down and tell of it."""
        wanted = {number - 1 for number in self.diis.numbers}
        self.mixes = {cycle: weights for cycle, weights in self.mixes.items() if cycle in wanted}
        self.mixes[self.cycle] = dict(self.diis.weights)
        self._write(made)
        (before, energy), norm = self.energies[-2:], self.norms[-1]
        change, names = energy - before, ",".join(made)
        self._say(
            f"cycle = {self.cycle}  E_corr({self.name}) = {energy:.15g}  dE = {change:.9g}  norm({names}) = {norm:.6g}"
        )
        if self.callback is not None:
            facts = {"cycle": self.cycle, "e_corr": energy, "de": change, "norm": norm, "amplitudes": self.amplitudes}
            self.callback(facts)

    def _write(self, made: Amplitudes) -> None:
        if self.checkpoint is not None:
            numbers, overlaps = tuple(self.diis.numbers), self.diis.overlaps
            energies, norms = tuple(self.energies), tuple(self.norms)
            state = State(self.name, self.cycle, energies, norms, self.mixes, numbers, overlaps)
            self.checkpoint.write(state, made)

    def _energy(self) -> float:
        energy = self.engine.of_first(float(np.real(self.energy_of(self.amplitudes))))
        if not math.isfinite(energy):
            raise NonFiniteError(
                f"The energy of {self.name} is {energy} after cycle {self.cycle}. Expected a finite number. Check the "
                "integrals and the amplitudes to start from.",
                "the energy",
            )
        return energy

    def _check_names(self, new: Amplitudes) -> None:
        if set(new) != set(self.kinds):
            raise InputError(
                f"The update returned the amplitudes {', '.join(new)}. Expected {', '.join(self.kinds)}, as in the "
                "start. Return each of them."
            )

    def _conformed(self, name: str, tensor: BlockTensor) -> BlockTensor:
        """New amplitudes with all blocks of the first ones: a block that is zero may be missing."""
        pattern, dtype = self.kinds[name]
        if tensor.in_memory and tensor.dtype == dtype and equal_structure(tensor.pattern, pattern):
            return tensor
        alike = tensor.spaces == pattern.spaces and tensor.symmetry == pattern.symmetry and tensor.dtype == dtype
        if not alike or pattern.find(tensor.pattern.index).min(initial=0) < 0:
            raise InputError(
                f"The update made {name} as {tensor!r}. Expected the spaces, the element type and no other blocks than "
                f"the start has: {pattern!r}. Make the start of zeros with tw.zeros(pattern=...)."
            )
        return _with_blocks(tensor, pattern)

    def _diverged(self, sign: str) -> str:
        return (
            f"{self.name} diverges: {sign}. Expected steps that become smaller. Check that the mean field is stable "
            "and has a gap between occupied and virtual orbitals, take smaller steps with iterative_damping=0.5, or "
            "start from the amplitudes of a geometry nearby."
        )

    def stopped(self, stop: Interrupted) -> Interrupted:
        """What to tell after a signal."""
        if self.checkpoint is None:
            return stop
        return Interrupted(
            f"{self.name} was stopped by {stop.signal or 'a signal'} after {self.cycle} cycles. They are in "
            f"{self.checkpoint.path}. Run the same calculation again to go on from there.",
            stop.signal,
        )

    def _say(self, line: str) -> None:
        if self.log is not None and self.engine.rank == 0:
            self.log(line)


def _check_start(start: Amplitudes) -> None:
    if not start:
        raise InputError("There are no amplitudes to start from. Expected at least one tensor. Pass {'t2': tensor}.")
    for name, tensor in start.items():
        if not isinstance(tensor, BlockTensor) or not tensor.in_memory:
            kind = "not in memory" if isinstance(tensor, BlockTensor) else f"a {type(tensor).__name__}"
            raise InputError(f"The amplitudes {name} are {kind}. Expected a BlockTensor in memory. Pass its copy().")


def _with_blocks(tensor: BlockTensor, pattern: Pattern) -> BlockTensor:
    """A tensor with all blocks of a pattern, in memory; those it lacks are zero."""
    arena = tensor.engine.allocate(pattern, tensor.dtype, zero=True)
    rows = tensor.pattern.find(pattern.index)

    def fill() -> None:
        for row, part in arena.parts(pattern):
            if rows[row] >= 0:
                tensor.storage.read(int(rows[row]), part.reshape(-1))

    arena.agree(fill)
    made = BlockTensor(pattern, arena, tensor.engine, tensor.error_bound)
    made.replace_norms(arena.norms())
    return made


def explain_failure(history: tuple[Cycle, ...], options: Options) -> str:
    """Why an iteration has not converged within its cycles, from what these came to, and what to try."""
    limits = (
        f"Expected a norm below conv_tol_normt={options.conv_tol_normt:.3g} and a change below "
        f"conv_tol={options.conv_tol:.3g}."
    )
    if not history:
        return f"There was no cycle. {limits} Raise max_cycle={options.max_cycle}."
    last = history[-1]
    return (
        f"After {plural_text(last.number, 'cycle')} the step has the norm {last.norm:.3g} and the energy changed by "
        f"{last.change:.3g} hartree. {limits} {_advice(history, options)}"
    )


def _advice(history: tuple[Cycle, ...], options: Options) -> str:
    """What some cycles lack, and what to try."""
    last, norms = history[-1], [cycle.norm for cycle in history]
    if len(history) < 3:
        return f"Raise max_cycle={options.max_cycle}."
    if 0 < last.norm < ROUNDING:
        return "Steps are as short as rounding lets them be: raise conv_tol_normt and conv_tol."
    least = min(norms)
    if last.norm > 10 * least:
        return (
            f"Steps grow again: the shortest was {least:.3g} in cycle {norms.index(least) + 1}. Check that the mean "
            "field is stable and has a gap, take smaller steps with iterative_damping=0.5, or start from the "
            "amplitudes of a geometry nearby."
        )
    return _advice_on_rate(history[-RECENT:], options)


def _advice_on_rate(recent: tuple[Cycle, ...], options: Options) -> str:
    """The same for steps that neither grow nor are as short as can be, by how fast the last ones became shorter."""
    last = recent[-1]
    rate = (last.norm / recent[0].norm) ** (1 / (len(recent) - 1)) if recent[0].norm else 0.0
    if rate < 0.9:
        return f"It was still converging: raise max_cycle to {_cycles_needed(last, rate, options)} or more."
    turns = sum(a.change * b.change < 0 for a, b in pairwise(recent))
    if turns >= len(recent) // 2:
        return (
            f"The energy goes up and down. Raise diis_space={options.diis_space}, or take smaller steps with "
            "iterative_damping=0.5."
        )
    if rate >= 1:
        return (
            "Steps do not become shorter. Check that the mean field is stable and has a gap, raise "
            f"diis_space={options.diis_space}, or take smaller steps with iterative_damping=0.5; or the limits are "
            "below the rounding or the screening of the integrals."
        )
    return (
        f"Each step is {rate:.2f} times as long as the one before, which is slow. Raise max_cycle to "
        f"{_cycles_needed(last, min(rate, 0.98), options)} or more and diis_space={options.diis_space}, and check that "
        "the mean field has a gap."
    )


def _cycles_needed(last: Cycle, rate: float, options: Options) -> int:
    """In how many cycles an iteration would converge if it went on like that, with some to spare."""
    excess = max(last.norm / options.conv_tol_normt, abs(last.change) / options.conv_tol, 1.0)
    more = math.log(excess) / -math.log(rate) if rate else 1.0
    return last.number + math.ceil(1.5 * more) + 1
