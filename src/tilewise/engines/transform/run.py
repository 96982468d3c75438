"""The schedules of four-index transforms, run: `tilewise.plans.transform.schedules` says what each holds and costs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.kernels.pairs import Sources
from tilewise.engines.threads import ThreadsEngine
from tilewise.engines.transform.checkpoint import PAIR, ROW, SLABS, Units, Unsaved
from tilewise.engines.transform.passes import Passes
from tilewise.engines.transform.results import KIND, Result, SpilledResult, write_block
from tilewise.engines.transform.sources import Source
from tilewise.engines.transform.stores import Halves, Kept, Panel, Readers, Slab, allocate, release
from tilewise.engines.transform.team import Alone, Team
from tilewise.patterns import Pattern
from tilewise.plans.transform import Problem
from tilewise.plans.transform.deal import Task
from tilewise.plans.transform.schedules import (
    Sizes,
    Variant,
    cost_of,
    deal_for,
    pairs_in,
    pairs_touching,
    row_buffers,
)
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor
from tilewise.tensors.files import ScratchFile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Part = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a transform made, and what it took."""

    tensor: BlockTensor
    """The result."""
    flops: int
    """Floating-point operations done."""
    integrals: int
    """Elements of A that were made."""
    peak_bytes: int
    """The most that was held."""
    written_bytes: int
    """Bytes that went to scratch."""
    read_bytes: int
    """Bytes that came back from it."""
    between_bytes: int
    """Bytes that went from node to node."""
    seconds: tuple[tuple[str, float], ...]
    """Time of each stage."""


def run_transform(
    host: ThreadsEngine,
    problem: Problem,
    variant: Variant,
    source: Source,
    matrices: Sequence[Floats],
    budget: int,
    scratch: str | None = None,
    told: Callable[[int, int], None] | None = None,
    team: Team | None = None,
    saved: Units | None = None,
) -> Outcome:
    """Transform A to orbitals.

    Parameters
    ----------
    host : ThreadsEngine
        Whose workers compute.
    problem : Problem
        The pairs of functions and orbitals.
    variant : Variant
        The schedule.
    source : Source
        Where A comes from.
    matrices : sequence of four arrays
        Coefficients (functions, orbitals) of each mode of the result, functions and orbitals in tile order.
    budget : int
        Bytes that may be held.
    scratch : str, optional
        Folder for what goes to disk.
    told : callable, optional
        Called now and then with the flops and the integrals that are done.
    team : Team, optional
        Who shares it; this process alone by default.
    saved : Units, optional
        Parts that an earlier run of the same transform has done, and where this one keeps its own until all are done.
        Not for several ranks.
    """
    units = Unsaved() if saved is None else saved
    run = Run(
        host,
        problem,
        variant,
        source,
        matrices,
        Account(budget),
        scratch,
        told,
        team or Alone(problem, host, host.memory),
        units,
    )
    try:
        outcome = run.all()
        units.remove()
        return outcome
    finally:
        run.close()


def _tell(told: Callable[[int, int], None] | None, readers: Readers, flops: int) -> None:
    if told is not None:
        told(flops, readers.made)


class Run:
    """One run of one variant, as one of a team does it."""

    def __init__(
        self,
        host: ThreadsEngine,
        problem: Problem,
        variant: Variant,
        source: Source,
        matrices: Sequence[Floats],
        account: Account,
        scratch: str | None,
        told: Callable[[int, int], None] | None,
        team: Team,
        saved: Units,
    ) -> None:
        self.host, self.problem, self.variant, self.account, self.scratch = host, problem, variant, account, scratch
        team.deal = deal_for(team.deal, variant)
        self.team = team
        self.readers = Readers(source, problem.functions, host.workers)
        account.take(Sizes(team.deal, host.workers).factors, "The coefficients")
        # Not a method of this object, which would hold itself then, and with it whoever is told.
        self.passes = Passes(host, problem, matrices, account, partial(_tell, told, self.readers))
        self.result: Result | SpilledResult | None = None
        self.read_bytes = self.written_bytes = 0
        self.seconds: dict[str, float] = {}
        self.saved = saved
        self._told = told

    def all(self) -> Outcome:
        """Run the schedule."""
        # Memory is kept for the next run only by schedules that ask for the same pieces again, and within the budget.
        again = self.variant.schedule == "fused12-34"
        peak = cost_of(self.problem, self.variant, self.host.workers, self.team.deal).peak_bytes
        with self.host.memory.keeping(self.account.budget - peak if again else 0):
            return self._all()

    def _all(self) -> Outcome:
        {
            "unfused": self._unfused,
            "fused12-34": self._spilled_pairs if self.variant.spills_halves else self._fused_pairs,
            "recompute": self._recompute,
            "fused1234": self._slabs,
            "fused1234-inner": self._inner_slabs,
        }[self.variant.schedule]()
        result = self._result()
        own = [self.passes.flops, self.readers.made, self.team.between_bytes]
        counts = self.team.total(np.array(own, np.float64))
        return Outcome(
            result.tensor(self.team, self.host),
            int(counts[0]),
            int(counts[1]),
            self.team.most(self.account.peak),
            self.written_bytes + result.written_bytes,
            self.read_bytes,
            int(counts[2]),
            tuple(self.seconds.items()),
        )

    def close(self) -> None:
        """Let go of everything: it is known to those whom this knows, and would stay until somebody looks for that."""
        self.readers.close()
        self.result = None

    @property
    def _every_row(self) -> Ints:
        return np.arange(self.problem.functions.count)

    @property
    def _every_tile(self) -> Part:
        return 0, self.problem.first.spaces[self.problem.lead(self.problem.first)].ntiles

    # Schedules

    def _unfused(self) -> None:
        if self._pairs_left(self._every_tile):
            self._steps(self._every_row, None, first=True, last=True)

    def _slabs(self) -> None:
        for part, first, last in self._slabs_left():
            self._steps(pairs_touching(self.problem.functions, part), part, first=first, last=last)

    def _inner_slabs(self) -> None:
        for part, first, last in self._slabs_left():
            rows = pairs_touching(self.problem.functions, part)
            halves = self._first_half(Panel(self.readers, self.account), rows, self._every_tile)
            self._second_half(halves, part, first=first, last=last)

    def _fused_pairs(self) -> None:
        if self._pairs_left(self._every_tile):
            halves = self._first_half(self._integrals(), self._every_row, self._every_tile)
            self._second_half(halves, None, first=True, last=True)

    def _recompute(self) -> None:
        for part in self.variant.parts:
            if self._pairs_left(part):
                halves = self._first_half(Panel(self.readers, self.account), self._every_row, part)
                self._second_half(halves, None, first=True, last=True)

    def _spilled_pairs(self) -> None:
        if not self._pairs_left(self._every_tile):
            return
        pairs = Space(self.problem.functions.sizes), Space(self.problem.first.sizes)
        file = ScratchFile(Pattern.dense(pairs), KIND, self.scratch)
        self._spill_halves(file)
        self._second_half_of(file)

    def _spill_halves(self, file: ScratchFile) -> None:
        """O2 row by row to a file, behind the computing if two are held; integrals and all views of them are let go."""
        problem, account = self.problem, self.account
        integrals = self._integrals()
        buffers = [allocate(account, size, "A part of O2") for size in row_buffers(problem, self.variant.rows_held)]
        tasks = self.team.deal.tasks(self._every_row, self._every_tile)
        room = self.passes.first_room(max((self.passes.orbitals(task) for task in tasks), default=0))
        with ThreadPoolExecutor(1, thread_name_prefix="tilewise-write") as writer:
            pending: deque[Future[None]] = deque()
            for number, task in enumerate(tasks):
                if len(pending) == len(buffers):
                    self._await(pending.popleft())
                halves = Halves(
                    problem, np.array([task.row]), np.arange(problem.first.count), buffers[number % len(buffers)]
                )
                if not self._restored(halves, task.row):
                    sources = self._sources(integrals, task.row)
                    with self._timed("first half"):
                        self.passes.first_half(task, sources, halves, room)
                    self._save_row(halves, task.row)
                pending.append(writer.submit(self._write_row, file, halves, task.row))
            for row in pending:
                self._await(row)
        self.saved.sync()
        self.passes.release(room)
        integrals.close()
        release(account, *buffers)

    def _await(self, written: Future[None]) -> None:
        """Wait until a row is in scratch."""
        with self._timed("to scratch"):
            written.result()

    # Halves

    def _tasks(self, rows: Ints, part: Part) -> tuple[list[Task], Ints, Ints]:
        """The tasks of this rank, pairs of orbitals, and the owner of each block of O2."""
        tasks, columns = self.team.deal.tasks(rows, part), pairs_in(self.problem, part)
        owner = self.team.deal.half_owner(tasks, rows, columns)
        return [task for task in tasks if task.rank == self.team.rank], columns, owner

    def _integrals(self) -> Kept | Panel:
        """A, kept or made when it is needed."""
        left = np.array([not self.saved.has(ROW, row) for row in self._every_row.tolist()], np.bool_)
        store = (Kept if self.variant.keeps else Panel)(self.readers, self.account)
        with self._timed("integrals"):
            if isinstance(store, Kept):
                store.fill(left, self._tell)
        return store

    def _sources(self, integrals: Kept | Panel | Slab, row: int) -> Sources:
        with self._timed("integrals"):
            return integrals.sources(row, self.problem.sign)

    def _first_half(self, integrals: Kept | Panel, rows: Ints, part: Part) -> Halves:
        """O2 of some pairs, where this rank can read what it needs; the integrals are let go."""
        tasks, columns, owner = self._tasks(rows, part)
        halves = self.team.new_halves(rows, columns, owner, self.account)
        room = self.passes.first_room(max((self.passes.orbitals(task) for task in tasks), default=0))
        for row, group in groupby(tasks, key=lambda task: task.row):
            if self._restored(halves, row):
                continue
            sources = self._sources(integrals, row)
            with self._timed("first half"):
                for task in group:
                    self.passes.first_half(task, sources, halves, room)
            self._save_row(halves, row)
        self.saved.sync()
        self.passes.release(room)
        integrals.close()
        return self._exchanged(halves)

    def _exchanged(self, halves: Halves) -> Halves:
        with self._timed("exchange"):
            return self.team.exchange(halves, self.account)

    def _own_pairs(self, columns: Ints) -> list[int]:
        """Pairs of leading orbitals that this rank has, without those whose C is saved."""
        found: list[int] = columns[self.team.deal.column_owner[columns] == self.team.rank].tolist()
        return [pair for pair in found if not self.saved.has(PAIR, pair)]

    def _second_half(self, halves: Halves, part: Part | None, *, first: bool, last: bool) -> None:
        """C for the pairs of orbitals of O2, or what some functions l add to it; O2 is let go."""
        factors, result = self.passes.second_factors(part), self._result()
        room = self.passes.second_room(factors)
        for pair in self._own_pairs(halves.columns):
            with self._timed("second half"):
                outcomes = result.outcomes(self.passes, pair, 0.0 if first else 1.0, final=last)
                squares = self.passes.second_half(pair, halves.sources(pair, part), factors, room, outcomes)
                result.note(pair, squares, final=last)
            self._save_pair(pair, squares, part)
        self.saved.sync()
        self.passes.release(room)
        self.team.drop_halves(halves, self.account)

    def _second_half_of(self, file: ScratchFile) -> None:
        """C from O2 in a file."""
        problem, account = self.problem, self.account
        tensor = file.tensor(self.host)
        data = allocate(account, problem.functions.elements * problem.first.largest, "A part of O2")
        factors, result = self.passes.second_factors(None), self._result()
        room = self.passes.second_room(factors)
        for pair in self._own_pairs(np.arange(problem.first.count)):
            halves = Halves(problem, self._every_row, np.array([pair]), data)
            with self._timed("from scratch"):
                blocks = [(row * problem.first.count + pair, halves.block(row, pair)) for row in halves.rows.tolist()]
                self.read_bytes += self.readers.run(partial(_read, tensor, *each) for each in blocks)
            with self._timed("second half"):
                outcomes = result.outcomes(self.passes, pair, 0.0, final=True)
                squares = self.passes.second_half(pair, halves.sources(pair), factors, room, outcomes)
            with self._timed("to scratch"):
                result.note(pair, squares, final=True)
            self._save_pair(pair, squares, None)
        self.saved.sync()
        self.passes.release(room)
        release(account, data)

    def _write_row(self, file: ScratchFile, halves: Halves, row: int) -> None:
        """Write a row of O2; the readers may be busy with integrals meanwhile."""
        begin = row * len(halves.columns)
        for column in halves.columns.tolist():
            self.written_bytes += write_block(file, begin + column, halves.block(row, column), np.inf)

    # Steps

    def _steps(self, rows: Ints, part: Part | None, *, first: bool, last: bool) -> None:
        """All four steps one after the other, for the matrices of some rows."""
        tasks, columns, owner = self._tasks(rows, self._every_tile)
        left = [task for task in tasks if not self.saved.has(ROW, task.row)]
        kept = self._first_step(left, part)
        halves = self.team.new_halves(rows, columns, owner, self.account)
        for row in rows.tolist():
            self._restored(halves, row)
        self._second_step(left, halves, kept)
        kept.clear()
        self._last_steps(self._exchanged(halves), part, first=first, last=last)

    def _second_step(self, tasks: list[Task], halves: Halves, kept: list[Floats]) -> None:
        """O2 of some tasks from their O1, which the caller drops."""
        room = self.passes.step_room(0, last=False)
        for task, intermediate in zip(tasks, kept, strict=True):
            with self._timed("step 2"):
                self.passes.second_step(task, halves, room, intermediate)
            self._save_row(halves, task.row)
        self.saved.sync()
        release(self.account, *kept)

    def _first_step(self, tasks: list[Task], part: Part | None) -> list[Floats]:
        """O1 of some tasks; the integrals are let go."""
        problem, account, passes = self.problem, self.account, self.passes
        if part is None:
            integrals: Kept | Panel | Slab = self._integrals()
        else:
            integrals = Slab(self.readers, account, np.unique([task.row for task in tasks]).astype(np.int64))
            with self._timed("integrals"):
                integrals.fill(self._tell)
        rows = problem.functions.sizes
        kept = [allocate(account, int(rows[task.row]) * passes.orbitals(task) * problem.size, "O1") for task in tasks]
        room = passes.step_room(problem.size, last=False)
        for row, group in groupby(zip(tasks, kept, strict=True), key=lambda each: each[0].row):
            sources = self._sources(integrals, row)
            with self._timed("step 1"):
                for task, intermediate in group:
                    passes.first_step(task, sources, room, intermediate)
        passes.release(room)
        integrals.close()
        return kept

    def _last_steps(self, halves: Halves, part: Part | None, *, first: bool, last: bool) -> None:
        """The third and the fourth step, one after the other; O2 is let go between them."""
        account, passes, unique = self.account, self.passes, self.problem.first.unique
        factors = passes.second_factors(part)
        wide = factors.second.shape[0]
        pairs = self._own_pairs(halves.columns)
        length = factors.first.shape[1] * wide
        kept = [allocate(account, int(unique[pair]) * length, "O3") for pair in pairs]
        with self._timed("step 3"):
            room = passes.step_room(wide, last=False)
            for pair, intermediate in zip(pairs, kept, strict=True):
                passes.third_step(pair, halves.sources(pair, part), factors, room, intermediate)
            passes.release(room)
        self.team.drop_halves(halves, account)
        del halves
        result = self._result()
        room = passes.step_room(wide, last=True)
        for pair, intermediate in zip(pairs, kept, strict=True):
            with self._timed("step 4"):
                outcomes = result.outcomes(passes, pair, 0.0 if first else 1.0, final=last)
                squares = passes.fourth_step(pair, factors, room, outcomes, intermediate)
                result.note(pair, squares, final=last)
            self._save_pair(pair, squares, part)
        self.saved.sync()
        passes.release(room)
        release(account, *kept)

    # What is saved

    def _pairs_left(self, part: Part) -> bool:
        """Whether C of any pair with leading orbitals in a range of tiles is to be made."""
        columns = pairs_in(self.problem, part).tolist()
        return not columns or not all(self.saved.has(PAIR, pair) for pair in columns)

    def _restored(self, halves: Halves, row: int) -> bool:
        """Whether O2 of a pair of functions is saved; then it is where it belongs."""
        if not self.saved.has(ROW, row):
            return False
        with self._timed("checkpoint"):
            self.saved.read(ROW, row, [_row_of(halves, row)])
        return True

    def _save_row(self, halves: Halves, row: int) -> None:
        """Keep O2 of a pair of functions, if it is made as a whole."""
        if not self.variant.parts:
            with self._timed("checkpoint"):
                self.saved.append(ROW, row, [_row_of(halves, row)])

    def _save_pair(self, pair: int, squares: Floats, part: Part | None) -> None:
        """Keep C of a leading pair, if it is the sum over all functions l."""
        if part is None:
            with self._timed("checkpoint"):
                self.saved.append(PAIR, pair, [squares, *self._result().pieces(pair)])

    def _slabs_left(self) -> Iterator[tuple[Part, bool, bool]]:
        """The slabs to be done, and whether each is the first and the last; C is saved after each but the last."""
        parts = self.variant.parts
        for number in range(self._slabs_done, len(parts)):
            last = number == len(parts) - 1
            yield parts[number], number == 0, last
            if not last:
                with self._timed("checkpoint"):
                    self.saved.replace(SLABS, number + 1, self._result().everything())

    @property
    def _slabs_done(self) -> int:
        return max(self.saved.numbers(SLABS), default=0)

    def _restore(self, result: Result | SpilledResult) -> None:
        """Bring all of C that is saved to where it belongs."""
        if self._slabs_done:
            self.saved.read(SLABS, self._slabs_done, result.everything())
        for pair in self.saved.numbers(PAIR):
            squares = np.empty(len(self.problem.blocks_of(pair)))
            self.saved.read(PAIR, pair, [squares, *result.pieces(pair)])
            result.note(pair, squares, final=True)

    # The rest

    def _result(self) -> Result | SpilledResult:
        """Where C goes, made when it is first asked for."""
        if self.result is None:
            spills = self.variant.spills_result
            self.result = (
                SpilledResult(self.problem, self.account, self.readers, self.scratch)
                if spills
                else Result(self.problem, self.team, self.account)
            )
            self._restore(self.result)
        return self.result

    def _tell(self) -> None:
        _tell(self._told, self.readers, self.passes.flops)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - begin


def _row_of(halves: Halves, row: int) -> Floats:
    """O2 of a pair of functions: its blocks lie one after the other."""
    length = Halves.elements(halves.problem, np.array([row]), halves.columns)
    begin = int(halves.starts(row)[0]) if length else 0
    return halves.data[begin : begin + length]


def _read(tensor: BlockTensor, number: int, block: Floats) -> int:
    """Read a block from scratch; return its bytes."""
    tensor.storage.read(number, block)
    return block.nbytes
