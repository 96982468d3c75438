"""`Iteration`: equations over named tensors, planned as a whole and run again and again within one budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from tilewise.contract import execute, find_engine, plan
from tilewise.engines.folding import Folding, fold, unfold
from tilewise.engines.matching import fit_again
from tilewise.errors import InputError, MemoryBudgetError
from tilewise.expressions.equations import Statement
from tilewise.patterns import Pattern
from tilewise.plans import Plan, Program, Step
from tilewise.plans.budget import no_budget
from tilewise.plans.layout import largest_share, make_layout
from tilewise.plans.sharing import is_small
from tilewise.spaces import Pairs, Space
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.elsewhere import make_elsewhere
from tilewise.trace import MEMORY, Trace

__all__ = ["Iteration", "PlannedStep", "allowed_pattern", "bytes_on_rank"]

Letters = Mapping[str, Space | Pairs]
Given = BlockTensor | Pattern
Check = Callable[[str, BlockTensor, str], None]

DOUBLE = np.dtype(np.float64)

SLICES = "slices"
"""Ends the name of a group's time in which slices of operands were read or made and nothing was multiplied."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One term, with what it costs and what it lets go."""

    statement: Statement
    """What is done."""
    plan: Plan | Program | None
    """The contraction; None for folding, unfolding, and for a tensor that only changes its name."""
    frees: tuple[str, ...]
    """Tensors that are not needed afterwards."""
    held_bytes: int
    """Bytes of the tensors that live while it runs, the target included."""
    added_bytes: int
    """Bytes that it takes besides."""
    fresh: bool
    """Whether the contraction makes the target itself, instead of adding to what is there or to zeros."""
    seconds: list[float] = field(default_factory=list)
    """What each run took."""
    slice_seconds: list[float] = field(default_factory=list)
    """How much of it went by with reading or making slices of operands, while nothing was multiplied."""

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return 0 if self.plan is None else self.plan.flops

    @property
    def peak_bytes(self) -> int:
        """Bytes in memory at its peak."""
        return self.held_bytes + self.added_bytes

    @property
    def expected_seconds(self) -> float:
        """The median of the measured times; what the plan projects before the first run."""
        if self.seconds:
            return median(self.seconds)
        return 0.0 if self.plan is None else self.plan.seconds

    def split_seconds(self, *, latest: bool) -> tuple[float, float]:
        """Time of the work itself and that of slices, as they are expected or in the latest run."""
        if not self.seconds:
            return self.expected_seconds, 0.0
        whole, slices = (each[-1] if latest else median(each) for each in (self.seconds, self.slice_seconds))
        return max(whole - slices, 0.0), slices

    def note(self, seconds: float) -> None:
        """Write down what a run took."""
        self.seconds.append(seconds)
        self.slice_seconds.append(sum(level.waited_seconds for trace in self._traces() for level in trace.of(MEMORY)))

    def _traces(self) -> tuple[Trace, ...]:
        """What happened in the latest run."""
        if self.plan is None:
            return ()
        plans = (self.plan,) if isinstance(self.plan, Plan) else tuple(step.plan for step in self.plan.steps)
        return tuple(each.runs[-1] for each in plans if each.runs)


class Iteration:
    """Equations over named tensors, planned as a whole.

    Each term is planned once, for the memory that other tensors leave at its turn, and run in every iteration.  A
    temporary tensor lives from the line that makes it to the last that reads it.

    Parameters
    ----------
    statements : sequence of Statement
        The terms in order.
    letters : mapping
        The space, or the pairs, that each letter stands for.
    given : mapping of BlockTensor or Pattern
        Tensors that exist before; a pattern stands for one that will be in memory, and `make_elsewhere` makes one that
        will not.
    results : collection of str
        Tensors to keep.
    memory : int
        Bytes for everything: given tensors in memory, temporary ones and buffers.
    """

    def __init__(
        self,
        statements: Sequence[Statement],
        letters: Letters,
        given: Mapping[str, Given],
        results: Collection[str],
        *,
        memory: int,
        scratch: str | None = None,
        engine: Engine | None = None,
        reproducible: bool = False,
    ) -> None:
        self.engine = find_engine(engine)
        self.letters, self.given, self.results = letters, dict(given), tuple(results)
        self.memory, self.scratch, self.reproducible = memory, scratch, reproducible
        self.steps = _Planner(self, statements).plan_all()

    @property
    def flops(self) -> int:
        """Floating-point operations of all terms."""
        return sum(step.flops for step in self.steps)

    @property
    def peak_bytes(self) -> int:
        """Bytes in memory at the peak, given tensors included."""
        return max((step.peak_bytes for step in self.steps), default=0)

    @property
    def seconds(self) -> float:
        """Time of one iteration: measured once it was run, projected before."""
        return sum(step.expected_seconds for step in self.steps)

    def by_group(self, *, latest: bool = False) -> dict[str, tuple[float, int]]:
        """Seconds and floating-point operations of each group of terms, as they are expected or in the latest run.

        What a group spent on reading or making slices of operands, while nothing was multiplied, is a group of its own,
        whose name ends with "slices"; in steps that ranks share it is not told apart.
        """
        found: dict[str, tuple[float, int]] = {}

        def add(name: str, seconds: float, flops: int) -> None:
            before = found.get(name, (0.0, 0))
            found[name] = (before[0] + seconds, before[1] + flops)

        for step in self.steps:
            work, slices = step.split_seconds(latest=latest)
            add(step.statement.group, work, step.flops)
            if slices > 0:
                add(f"{step.statement.group} {SLICES}", slices, 0)
        return found

    def run(
        self,
        tensors: Mapping[str, BlockTensor],
        *,
        between: Callable[[], None] | None = None,
        check: Check | None = None,
    ) -> dict[str, BlockTensor]:
        """Do all terms.

        Parameters
        ----------
        tensors : mapping of BlockTensor
            The given tensors.
        between : callable, optional
            Called between two terms; it may raise to stop.
        check : callable, optional
            Called after each term with the name of the target, the target, and the term as text.

        Returns
        -------
        dict of BlockTensor
            The results.
        """
        alive = dict(tensors)
        for step in self.steps:
            if between is not None:
                between()
            begin = time.perf_counter()
            name = step.statement.target.name
            alive[name] = self._do(step, alive)
            step.note(time.perf_counter() - begin)
            if check is not None:
                check(name, alive[name], str(step.statement))
            for freed in step.frees:
                del alive[freed]
        return {name: alive[name] for name in self.results}

    def _do(self, step: PlannedStep, alive: Mapping[str, BlockTensor]) -> BlockTensor:
        """The target after one term."""
        statement = step.statement
        operands = [alive[each.name] for each in statement.operands]
        if statement.kind == "fold":
            return self._fold(statement, operands[0], alive)
        target = alive.get(statement.target.name) if statement.adds else None
        if statement.kind == "unfold":
            return self._unfold(statement, operands, target)
        if step.plan is None:
            return operands[0]
        if step.fresh:
            return execute(step.plan, *operands, alpha=statement.factor, engine=self.engine)
        if target is None:
            target = self._zeros(statement)
        return execute(step.plan, *operands, out=target, alpha=statement.factor, beta=1, engine=self.engine)

    def _fold(self, statement: Statement, operand: BlockTensor, alive: Mapping[str, BlockTensor]) -> BlockTensor:
        made = fold(operand, self.folding_of(statement.target.letters, statement.operands[0].letters))
        made = made if statement.factor == 1 else made * statement.factor
        return alive[statement.target.name] + made if statement.adds else made

    def _unfold(self, statement: Statement, operands: Sequence[BlockTensor], target: BlockTensor | None) -> BlockTensor:
        out = self._zeros(statement) if target is None else target
        pairs = tuple(self.folding_of(each.letters, statement.target.letters) for each in statement.operands)
        unfold(operands[0], operands[1], (pairs[0], pairs[1]), out)
        return out

    def _zeros(self, statement: Statement) -> BlockTensor:
        pattern = self.pattern_of(statement)
        arena = self.engine.allocate(pattern, DOUBLE, zero=False)
        arena.agree(lambda: arena.own.fill(0.0))
        return BlockTensor(pattern, arena, self.engine)

    def folding_of(self, letters: str, modes: str) -> Folding:
        """The pairs of a matrix, and which of its two modes has those of the modes 0 and 2 of a tensor."""
        first, second = (self.letters[letter] for letter in letters)
        assert isinstance(first, Pairs)
        assert isinstance(second, Pairs)
        turned = first.base is not self.letters[modes[0]]
        return Folding(second, first, turned) if turned else Folding(first, second)

    def pattern_of(self, statement: Statement) -> Pattern:
        """The blocks of a target: all that the irreps allow."""
        return allowed_pattern(self.letters, statement.target.letters)


class _Planner:
    """Plans terms one after the other."""

    def __init__(self, whole: Iteration, statements: Sequence[Statement]) -> None:
        self.whole, self.statements = whole, tuple(statements)
        self.alive: dict[str, Given] = dict(whole.given)
        last = {each.name: n for n, s in enumerate(statements) for each in (*s.operands, s.target)}
        kept = {*whole.given, *whole.results}
        self.last = {name: number for name, number in last.items() if name not in kept}

    def plan_all(self) -> tuple[PlannedStep, ...]:
        return tuple(self._plan(number, statement) for number, statement in enumerate(self.statements))

    def _plan(self, number: int, statement: Statement) -> PlannedStep:
        missing = [each.name for each in statement.operands if each.name not in self.alive]
        if missing:
            raise InputError(
                f"{statement} reads {missing[0]}, which is neither given nor made before. Expected one of "
                f"{', '.join(sorted(self.alive))}. Correct the equations."
            )
        name = statement.target.name
        frees = tuple(each for each, last in self.last.items() if last == number)
        moved = self._is_moved(statement, frees)
        pattern = self.whole.pattern_of(statement)
        target = self._size(pattern)
        held = sum(map(self._size, self.alive.values()))
        made: Plan | Program | None = None
        added, fresh = 0, False
        if statement.kind == "contract" and not moved:
            made = self._contraction(statement, self.whole.memory - held, into_out=statement.adds)
            fresh = not statement.adds and _makes(made, pattern)
            if fresh and _last(made).spills and self._stays(number):
                fresh = False
                made = self._contraction(statement, self.whole.memory - held - target, into_out=True)
            added = max(made.peak_bytes - (0 if _last(made).spills else _last(made).kept_bytes), 0)
        resident = not (fresh and made is not None and _last(made).spills)
        held += target if resident and not moved and not statement.adds else 0
        self.alive[name] = pattern if resident else make_elsewhere(pattern, self.whole.engine)
        step = PlannedStep(statement, made, frees, held, added, fresh)
        if step.peak_bytes > self.whole.memory:
            raise MemoryBudgetError(
                f"{statement} needs {step.peak_bytes} bytes with the tensors that live then. The budget is "
                f"{self.whole.memory}. Give more with memory=.",
                self.whole.memory,
                step.peak_bytes,
            )
        for freed in frees:
            del self.alive[freed]
        return step

    def _stays(self, number: int) -> bool:
        """Whether the target of a term has to be in memory: it is a result, or later terms add to it."""
        name = self.statements[number].target.name
        grows = any(later.adds and later.target.name == name for later in self.statements[number + 1 :])
        return grows or name in self.whole.results

    def _is_moved(self, statement: Statement, frees: Collection[str]) -> bool:
        """Whether the target is only another name for a temporary tensor that nobody reads any more."""
        if statement.adds or statement.kind != "contract" or len(statement.operands) > 1 or statement.factor != 1:
            return False
        (operand,) = statement.operands
        in_memory = isinstance(self.alive[operand.name], Pattern)
        return in_memory and operand.letters == statement.target.letters and operand.name in frees

    def _contraction(self, statement: Statement, room: int, *, into_out: bool) -> Plan | Program:
        """The plan of a term, in phases where it has to keep to the room that is left.

        What is added to a tensor that is there needs no room of its own.
        """
        operands = [self.alive[each.name] for each in statement.operands]
        whole = self.whole
        resident = all(isinstance(each, Pattern) or each.in_memory for each in operands)
        options: dict[str, Any] = {"engine": whole.engine, "reproducible": whole.reproducible}
        if whole.scratch is not None:
            options["scratch"] = whole.scratch
        if resident:
            free = plan(statement.expression, *operands, memory=no_budget(), **options)
            if free.peak_bytes - (_last(free).kept_bytes if into_out else 0) <= room:
                return free
        own = self._size(whole.pattern_of(statement)) if into_out else 0
        try:
            made = plan(statement.expression, *operands, memory=max(room + own, 0), **options)
            return _kept_in_memory(made, operands, whole.engine) if into_out and _last(made).spills else made
        except MemoryBudgetError as error:
            needed = error.least_bytes - own + whole.memory - room
            raise MemoryBudgetError(
                f"{statement} needs {needed} bytes with the tensors that live then. The budget is {whole.memory}. "
                "Give more with memory=.",
                whole.memory,
                needed,
            ) from None

    def _size(self, given: Given) -> int:
        if isinstance(given, BlockTensor):
            return bytes_on_rank(given.pattern, self.whole.engine) if given.in_memory else 0
        return bytes_on_rank(given, self.whole.engine)


def bytes_on_rank(pattern: Pattern, engine: Engine) -> int:
    """Bytes of a new tensor that one rank holds at the most."""
    if engine.ranks == 1 or engine.replicates or is_small(pattern, DOUBLE):
        return pattern.nbytes(DOUBLE)
    owner = make_layout("cyclic", pattern, engine.ranks).owner
    return largest_share(owner, pattern.block_sizes * DOUBLE.itemsize, engine.ranks)


def allowed_pattern(letters: Letters, indices: str) -> Pattern:
    """All blocks over some indices that irreps allow."""
    spaces = [found.space if isinstance(found := letters[letter], Pairs) else found for letter in indices]
    labelled = bool(spaces) and all(space.irrep is not None for space in spaces)
    return Pattern.allowed(spaces, irrep=0 if labelled else None)


def _kept_in_memory(made: Plan | Program, operands: Sequence[Given], engine: Engine) -> Plan | Program:
    """The same within its budget, but added to a tensor in memory instead of written to disk."""
    if isinstance(made, Program):
        return replace(made, steps=fit_again(made.steps, operands, made.dtype, True, engine))
    alone = Step(made, tuple(range(len(made.operands))), -1, ())
    return fit_again((alone,), operands, made.dtype, True, engine)[0].plan


def _last(made: Plan | Program) -> Plan:
    return made if isinstance(made, Plan) else made.steps[-1].plan


def _makes(made: Plan | Program, pattern: Pattern) -> bool:
    """Whether a plan fills just the blocks of a target."""
    return np.array_equal(made.result.index, pattern.index)
