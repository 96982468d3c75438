"""Running the phases of a plan: fetch what the next one needs while the present one is computed."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.progress import Tell, Watch
from tilewise.engines.spans import Span, covered, shared
from tilewise.expressions import Reduction
from tilewise.machine import Machine
from tilewise.patterns import Pattern
from tilewise.plans import Plan, inspect_reduction
from tilewise.plans.budget import parse_memory
from tilewise.plans.inspector import inspect_part
from tilewise.plans.layout import make_layout
from tilewise.plans.phases import Phase, Phases, Source, plan_phases
from tilewise.plans.reduction import reduction_part
from tilewise.plans.work import Product
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.files import ScratchFile
from tilewise.tensors.generated import Generated
from tilewise.tensors.memory import Memory
from tilewise.tensors.protocol import Scalar
from tilewise.tensors.storage import Arena, Result, block_norms, block_offsets
from tilewise.trace import MEMORY, Level, Trace, added

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ready:
    """What a phase computes with."""

    plan: Plan
    """The part of the whole that is computed."""
    operands: tuple[BlockTensor, ...]
    """The operands; of those that are fetched, the blocks that the part needs."""
    phase: Phase
    """What is done."""


class Stopped(Exception):
    """Fetching was given up because the run ended."""


class Fetcher:
    """Brings blocks into two buffers for the streamed operand and one for the stationary one."""

    def __init__(self, plan: Plan, phases: Phases, operands: Sequence[BlockTensor], buffers: Sequence[Array]) -> None:
        self.plan, self.phases, self.operands = plan, phases, tuple(operands)
        self.held_buffer, *self.chunk_buffers = buffers
        self.held: BlockTensor | None = None
        self.fetched_bytes, self.fetched_blocks = [0] * len(operands), [0] * len(operands)
        self.spans: list[Span] = []
        self._context = contextvars.copy_context()
        self._stop = threading.Event()
        self._readers = ThreadPoolExecutor(phases.readers, thread_name_prefix="tilewise-read")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="tilewise-fetch")

    def close(self) -> None:
        """Give up what is under way; blocks that are being made are not waited for."""
        self._stop.set()
        for pool in (self._ahead, self._readers):
            pool.shutdown(wait=False, cancel_futures=True)

    def run(self) -> Iterator[Ready]:
        """The phases in order; the chunk of the next one is fetched while the caller computes."""
        sequence = self.phases.sequence
        chunk = self._start(0) if sequence else None
        for number, phase in enumerate(sequence):
            if phase.held is not None:
                self.held = self._fetch(self.phases.stationary, phase.held, self.held_buffer)
            assert chunk is not None
            streamed, part = chunk.result()
            if number + 1 < len(sequence):
                chunk = self._start(number + 1)
            yield Ready(part, self._tensors(streamed), phase)

    def _start(self, number: int) -> Future[tuple[BlockTensor, Plan]]:
        buffer = self.chunk_buffers[number % len(self.chunk_buffers)]
        return self._ahead.submit(self._prepare, self.phases.sequence[number], buffer)

    def _prepare(self, phase: Phase, buffer: Array) -> tuple[BlockTensor, Plan]:
        streamed = self._fetch(self._streamed, phase.streamed, buffer)
        if len(self.phases.sequence) == 1:
            return streamed, self.plan
        if isinstance(self.plan.work, Product):
            return streamed, inspect_part(self.plan, *phase.blocks)
        begin, end = phase.blocks[0].tolist()
        return streamed, reduction_part(self.plan, begin, end)

    @property
    def _streamed(self) -> int:
        return 1 - self.phases.stationary if self.phases.stationary >= 0 else 0

    def _tensors(self, streamed: BlockTensor) -> tuple[BlockTensor, ...]:
        if len(self.operands) == 1:
            return (streamed,)
        assert self.held is not None
        return (self.held, streamed) if self.phases.stationary == 0 else (streamed, self.held)

    def _fetch(self, number: int, blocks: Ints, buffer: Array) -> BlockTensor:
        """An operand with some of its blocks in a buffer; the operand itself if it needs no fetching."""
        operand = self.operands[number]
        if self.phases.sources[number].resident:
            return operand
        sizes = operand.pattern.block_sizes[blocks]
        ends = np.cumsum(sizes)
        offsets = np.full(operand.pattern.nnz_blocks, -1, np.int64)
        offsets[blocks] = ends - sizes
        places = [buffer[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
        begin = time.perf_counter()
        self._read(operand, blocks.tolist(), places)
        self.spans.append((begin, time.perf_counter()))
        self.fetched_bytes[number] += int(sizes.sum()) * buffer.itemsize
        self.fetched_blocks[number] += len(blocks)
        return BlockTensor(operand.pattern, Arena(buffer, offsets), operand.engine, operand.error_bound)

    def _read(self, operand: BlockTensor, blocks: Sequence[int], places: Sequence[Array]) -> None:
        """Read blocks, several at once if the storage allows it, in the context of the run: its engine is in use."""

        def read(wanted: Sequence[tuple[int, Array]]) -> None:
            for block, place in wanted:
                if self._stop.is_set():
                    raise Stopped
                operand.storage.read(block, place)

        wanted = list(zip(blocks, places, strict=True))
        parts = [[each] for each in wanted] if operand.storage.parallel else [wanted]
        futures = [self._readers.submit(self._context.copy().run, read, part) for part in parts]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise


@dataclass(frozen=True, slots=True)
class Call:
    """What an engine is asked to run: a plan, or the part of one."""

    plan: Plan
    """What is done."""
    operands: tuple[BlockTensor, ...]
    """The operands."""
    out: BlockTensor | None
    """Where the result is added, if it is."""
    alpha: Scalar
    """Factor of the result."""
    beta: Scalar
    """Factor of what `out` holds."""
    account: Account | None
    """Where memory is counted; None if nobody asked for a budget."""
    watch: Watch
    """Who tells how far it has come."""


class Runner(Engine, Protocol):
    """An engine of this computer: it computes with operands in memory, and runs a plan in phases where it has to."""

    memory: Memory
    progress: Tell | None

    @property
    def rank(self) -> int:
        """The first, and only one."""
        return 0

    @property
    def machine(self) -> Machine:
        """The computer that this is."""
        return Machine.measured()

    @property
    def ranks(self) -> int:
        """One: this process."""
        return 1

    @property
    def ranks_per_node(self) -> int:
        """One: this process."""
        return 1

    def allocate(self, pattern: Pattern, dtype: npt.DTypeLike, *, zero: bool) -> Arena:
        """Memory of this process; what is to be filled comes from what earlier tensors have left."""
        if zero:
            return Arena.allocate(pattern, dtype, zero=True)
        return Arena(self.memory.empty(pattern.nnz_elements, np.dtype(dtype)), block_offsets(pattern))

    def spread(self, tensor: BlockTensor, layout: str) -> BlockTensor:
        """The tensor itself: there is nobody else to give blocks to."""
        make_layout(layout, tensor.pattern, 1)
        return tensor

    def agree(self, work: Callable[[], Result], *, once: bool = False) -> Result | None:
        """Nobody else has to."""
        return work()

    def of_first(self, value: Result) -> Result:
        """There is no other."""
        return value

    def least(self, value: int) -> int:
        """There is no other."""
        return value

    @property
    def replicates(self) -> bool:
        """One process has everything."""
        return True

    def abandon(self, error: BaseException, message: str = "") -> None:
        """Nobody waits for this process."""
        return

    def run_resident(self, call: Call) -> tuple[BlockTensor, Trace]:
        """Run a call whose operands are in memory."""

    def run(
        self,
        plan: Plan,
        operands: Sequence[BlockTensor],
        *,
        out: BlockTensor | None = None,
        alpha: Scalar = 1,
        beta: Scalar = 0,
    ) -> BlockTensor:
        """Run a plan, all at once or phase by phase; see `tilewise.tensors.Engine`."""
        made = self.prepare(plan)
        phases = phases_for(made, operands, out is not None)
        with Watch(self.progress, made.label, made.flops) as watch:
            call = Call(made, tuple(operands), out, alpha, beta, None, watch)
            target, trace = self.run_resident(call) if phases is None else stream(self, call, phases)
        plan.runs.append(trace)
        target.engine = self
        return target


def phases_for(plan: Plan, operands: Sequence[BlockTensor], into_out: bool) -> Phases | None:
    """The phases of a plan for these operands; None if everything is in memory and no budget was asked for."""
    sources = sources_of(operands, plan.dtype)
    if plan.phases is not None and _fits(plan.phases, sources, into_out):
        return plan.phases
    if plan.budget is None and all(source.resident for source in sources):
        return None
    budget = parse_memory(None) if plan.budget is None else plan.budget
    return plan_phases(plan, sources, budget, Machine.measured().copy_rate, "out" if into_out else "auto")


def _fits(phases: Phases, sources: Sequence[Source], into_out: bool) -> bool:
    """Whether phases were planned for operands that lie where these do."""
    alike = all(planned.is_alike(source) for planned, source in zip(phases.sources, sources, strict=True))
    return alike and not (phases.spills and into_out)


def sources_of(operands: Sequence[BlockTensor], dtype: np.dtype[Any]) -> tuple[Source, ...]:
    """What fetching each operand costs; another element type has to be converted on the way."""
    return tuple(
        Source(
            resident=operand.in_memory and operand.arena.complete and operand.dtype == dtype,
            seconds=operand.storage.seconds if isinstance(operand.storage, Generated) else None,
            made_bytes=operand.storage.largest_bytes if isinstance(operand.storage, Generated) else 0,
        )
        for operand in operands
    )


def stream(runner: Runner, call: Call, phases: Phases) -> tuple[BlockTensor, Trace]:
    """Run a plan phase by phase, with everything it adds counted."""
    begin = time.perf_counter()
    account, memory, plan = Account(phases.budget), runner.memory, call.plan
    with ExitStack() as stack:
        stack.enter_context(memory.keeping(phases.budget - phases.peak_bytes))
        buffers = []
        for size in (phases.held_bytes, *[phases.chunk_bytes] * (2 if phases.prefetches else 1)):
            stack.enter_context(account.holding(size, "What a phase fetches"))
            buffers.append(memory.empty(size // plan.dtype.itemsize, plan.dtype))
        stack.enter_context(account.holding(phases.made_bytes, "What functions make at once"))
        fetcher = Fetcher(plan, phases, call.operands, buffers)
        stack.callback(fetcher.close)
        run = _Run(runner, replace(call, account=account), phases, fetcher, account)
        target = run.start()
    return target, run.trace(time.perf_counter() - begin)


class _Run:
    """The phases of one run."""

    def __init__(self, runner: Runner, call: Call, phases: Phases, fetcher: Fetcher, account: Account) -> None:
        self.runner, self.call, self.phases, self.fetcher, self.account = runner, call, phases, fetcher, account
        self.plan = call.plan
        self.traces: list[Trace] = []
        self.spans: list[Span] = []
        self.written_blocks = self.written_bytes = 0

    def start(self) -> BlockTensor:
        """All phases; their parts are added to one result."""
        if self.phases.spills:
            return self._spilled()
        if len(self.phases.sequence) < 2:
            ready = next(self.fetcher.run(), None)
            return self._compute(self.call if ready is None else replace(self.call, operands=ready.operands))
        if self.phases.partial_bytes:
            return self._in_pieces()
        target, beta = self._zeros() if self.call.out is None else self.call.out, self.call.beta
        for ready in self.fetcher.run():
            self._add(ready, target, beta)
            beta = 1
        return target

    def _add(self, ready: Ready, target: BlockTensor, beta: Scalar = 1) -> None:
        """Compute what a phase adds to a result."""
        self._compute(replace(self.call, plan=ready.plan, operands=ready.operands, out=target, beta=beta))

    def _compute(self, call: Call) -> BlockTensor:
        begin = time.perf_counter()
        target, trace = self.runner.run_resident(call)
        self.spans.append((begin, time.perf_counter()))
        self.traces.append(trace)
        return target

    def _in_pieces(self) -> BlockTensor:
        """All phases of a sum in pieces: each piece starts from zero, and they are added up in order."""
        total, piece = self._zeros(), self._zeros()
        for ready in self.fetcher.run():
            self._add(ready, piece)
            if ready.phase.closes:
                total.arena.data[...] += piece.arena.data
                piece.arena.data[...] = 0
        total.replace_norms(block_norms(total.arena.data, total.arena.offsets))
        if self.call.out is None:
            return total
        names = tuple(map(str, range(total.ndim)))
        copy = inspect_reduction(Reduction(names, names), total.pattern, self.plan.dtype, workers=self.plan.workers)
        return self._compute(replace(self.call, plan=copy, operands=(total,), alpha=1))

    def _spilled(self) -> BlockTensor:
        """All phases of a result that does not fit: the part that a block adds to is held, then written out."""
        plan, size = self.plan, self.phases.result_bytes
        scratch = ScratchFile(plan.result, plan.dtype, plan.scratch)
        buffer = self.runner.memory.empty(size // plan.dtype.itemsize, plan.dtype)
        held: tuple[Ints, BlockTensor] | None = None
        with self.account.holding(size, "A part of the result"):
            for ready in self.fetcher.run():
                if ready.phase.spilled is not None:
                    self._write_out(held, scratch)
                    held = ready.phase.spilled, _part_of(plan, ready.phase.spilled, buffer, self.runner)
                assert held is not None
                self._add(ready, held[1])
            self._write_out(held, scratch)
        return scratch.tensor(self.runner)

    def _write_out(self, held: tuple[Ints, BlockTensor] | None, scratch: ScratchFile) -> None:
        if held is None:
            return
        rows, tensor = held
        for row, (_, block), norm in zip(rows.tolist(), tensor.blocks(), tensor.pattern.norms.tolist(), strict=True):
            scratch.write(row, block, norm)
            self.written_bytes += block.nbytes
        self.written_blocks += len(rows)

    def _zeros(self) -> BlockTensor:
        self.account.take(self.plan.result_bytes, "The result")
        result = self.plan.result
        known = Pattern.trusted(result.spaces, result.index, np.zeros(result.nnz_blocks))
        data = self.runner.memory.empty(result.nnz_elements, self.plan.dtype)
        data[...] = 0
        return BlockTensor(known, Arena(data, block_offsets(result)), self.runner)

    def trace(self, seconds: float) -> Trace:
        """What happened, the phases added up."""
        traces = self.traces
        below = added(level for trace in traces for level in trace.levels)
        return Trace(
            label=self.plan.label,
            seconds=seconds,
            packing_seconds=sum(trace.packing_seconds for trace in traces),
            flops=sum(trace.flops for trace in traces),
            tasks=sum(trace.tasks for trace in traces),
            calls=sum(trace.calls for trace in traces),
            workers=self.plan.workers,
            buffer_bytes=self.account.peak,
            library=traces[-1].library,
            phases=len(self.phases.sequence),
            levels=(self._level(), *below),
        )

    def _level(self) -> Level:
        """What came into the memory of this computer, and what left it for a scratch file."""
        return Level(
            name=MEMORY,
            number=0,
            capacity_bytes=self.phases.budget,
            projected_bytes=self.phases.peak_bytes,
            peak_bytes=self.account.peak,
            in_blocks=tuple(self.fetcher.fetched_blocks),
            in_bytes=tuple(self.fetcher.fetched_bytes),
            neighbour_bytes=0,
            out_blocks=self.written_blocks,
            out_bytes=self.written_bytes,
            transfer_seconds=covered(self.fetcher.spans),
            compute_seconds=covered(self.spans),
            overlap_seconds=shared(self.fetcher.spans, self.spans),
        )


def _part_of(plan: Plan, blocks: Ints, buffer: Array, runner: Runner) -> BlockTensor:
    """Some blocks of the result, as zeros at the beginning of a buffer."""
    whole = plan.result
    pattern = Pattern.trusted(whole.spaces, np.ascontiguousarray(whole.index[blocks]), np.zeros(len(blocks)))
    data = buffer[: pattern.nnz_elements]
    data[...] = 0
    return BlockTensor(pattern, Arena(data, block_offsets(pattern)), runner)
