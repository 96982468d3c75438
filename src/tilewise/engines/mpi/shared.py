"""Running a step that ranks share: each brings what its node lacks, and computes its part."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.current import using
from tilewise.engines.kernels.squares import block_squares
from tilewise.engines.mpi.counter import Counter
from tilewise.engines.mpi.drawing import Drawing, Timing, by_block
from tilewise.engines.mpi.moves import Moved, Places, change_layout, move_blocks
from tilewise.engines.mpi.node import Node
from tilewise.engines.mpi.spread import Spread, make_spread
from tilewise.engines.streaming import Call
from tilewise.engines.targets import Target
from tilewise.engines.threads import Follow, ThreadsEngine
from tilewise.plans.layout import EVERYBODY, Layout
from tilewise.plans.parts import Part, keep_part
from tilewise.plans.sharing import Pool, Sharing
from tilewise.plans.traffic import Arrivals, Traffic
from tilewise.plans.work import Product
from tilewise.tensors import BlockTensor
from tilewise.tensors.storage import Arena, Result, block_offsets, checked_norms

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Counts:
    """What a rank did."""

    work: Ints = field(default_factory=lambda: np.zeros(3, np.int64))
    """Tasks, dense products and flops."""
    read_bytes: int = 0
    """Bytes of operand blocks that it read, and that another rank of its node owned or brought."""
    tickets: int = 0
    """Draws from counters."""
    moved: Moved = field(default_factory=Moved)
    """What came to it in exchanges."""
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    """What it did when, begin and end: ``compute``, ``fetch`` (wait for blocks), ``wait`` (for its node) or ``add``."""

    @property
    def inside_bytes(self) -> int:
        """Bytes that it read of other ranks of its node, or that another rank of it brought."""
        return self.read_bytes + self.moved.inside_bytes


class NodeFetcher:
    """Brings what a node lacks of the operands to memory that its ranks share: a stage ahead of the computation."""

    def __init__(self, node: Node, traffic: Traffic, operands: Sequence[BlockTensor], counts: Counts) -> None:
        self._node, self._traffic, self._operands, self._counts = node, traffic, operands, counts
        largest = [traffic.largest_stage(number, node.world.node) for number in range(len(operands))]
        self._buffers = [[node.heap.take(size) for size in largest] for _ in range(min(traffic.stage_count, 2))]
        self._context = contextvars.copy_context()
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="tilewise-fetch")

    def close(self) -> None:
        """Give up what is under way."""
        self._ahead.shutdown(wait=False, cancel_futures=True)

    def start(self, stage: int) -> Future[list[BlockTensor]]:
        """Fetch what a stage needs, in a thread of its own and in the context of the run; at once if nothing comes."""
        if any(arrivals.count(stage) for arrivals in self._traffic.arrivals):
            return self._ahead.submit(self._context.run, self._fetch, stage)
        there: Future[list[BlockTensor]] = Future()
        there.set_result(self._fetch(stage))
        return there

    def _fetch(self, stage: int) -> list[BlockTensor]:
        buffers = self._buffers[stage % len(self._buffers)]
        return [self._fetch_operand(stage, number, buffer) for number, buffer in enumerate(buffers)]

    def _fetch_operand(self, stage: int, number: int, buffer: Bytes) -> BlockTensor:
        """An operand with the blocks that the stage needs in memory that this rank sees."""
        operand, size = self._operands[number], self._traffic.block_bytes(number)
        arrivals = self._traffic.arrivals[number]
        here = arrivals.at(stage, self._node.world.node)
        begin = np.full(len(size), -1)
        begin[here.block] = np.cumsum(size[here.block]) - size[here.block] + self._node.heap.place(buffer)
        if isinstance(operand.storage, Spread):
            source = Places.of(operand.storage)
            exchange = arrivals.exchange(stage, size)
            self._counts.moved.add(move_blocks(self._node, exchange, source, Places(source.data, begin), size))
            begin = np.where(begin < 0, source.begin, begin)
        elif isinstance(operand.storage, Arena):
            return operand
        else:
            self._make(operand, here, begin)
        dtype = self._traffic.plan.dtype
        # Panels are packed whole, with blocks that no cell of this rank multiplies: any memory does for these.
        offsets = np.maximum(begin, 0) // dtype.itemsize
        return BlockTensor(operand.pattern, Arena(self._node.heap.whole(dtype), offsets), operand.engine)

    def _make(self, operand: BlockTensor, here: Arrivals, begin: Ints) -> None:
        """Make or read the blocks that this rank is charged with, without other ranks."""
        values = self._node.heap.whole(self._traffic.plan.dtype)
        for block in here.block[here.rank == self._node.world.rank].tolist():
            first = int(begin[block]) // values.itemsize
            with using(None):
                operand.storage.read(block, values[first : first + int(operand.pattern.block_sizes[block])])


class SharedRun:
    """One run of a step on all ranks.

    Parameters
    ----------
    node : Node
        The ranks and their memory.
    host : ThreadsEngine
        The workers of this rank.
    sharing : Sharing
        Who does what, and what crosses.
    parts : sequence of Part
        What this rank does in each stage.
    call : Call
        What is asked for.
    follow : callable, optional
        May see how far this rank is.
    """

    def __init__(
        self,
        node: Node,
        host: ThreadsEngine,
        sharing: Sharing,
        parts: Sequence[Part | None],
        call: Call,
        follow: Follow | None = None,
    ) -> None:
        self.node, self.host, self.parts, self.call, self.follow = node, host, parts, call, follow
        self.traffic, self.shares, self.pool, self.plan = sharing.traffic, sharing.shares, sharing.pool, call.plan
        self.fetched_bytes = sharing.buffer_share(node.world.rank) + sharing.request.made_bytes
        self.counts = Counts()
        self.block_seconds = np.zeros(self.plan.result.nnz_blocks) if sharing.request.balancer == "measured" else None
        """What each result block took on this rank, if that is asked for."""

    @property
    def every(self) -> Ints:
        """The numbers of all result blocks."""
        return np.arange(self.plan.result.nnz_blocks)

    def target(self, arena: Arena, *, fresh: bool) -> Target:
        """Memory for all result blocks as what a run adds to."""
        return Target(BlockTensor(self.plan.result, arena, self.host), self.every, fresh, self.plan.result.norms)

    def sum_groups(self) -> tuple[Spread, Floats]:
        """Compute the sums of all groups of k; their total with the ranks of the first group, and its squares."""
        totals = [self.new(self.shares.layout(group)) for group in range(self.shares.groups)]
        # With several groups, some may have nothing to add to a block.
        fresh = self.traffic.stage_count == self.shares.groups == 1 and self.plan.kernel != "loops"
        if not fresh:
            for total in totals:
                total.own[...] = 0
        squares = self.compute([self.target(total, fresh=fresh) for total in totals])
        for group, other in self.shares.additions:
            self._timed("add", partial(self._add_sums, totals[group], totals[other]))
        return totals[0], squares if self.shares.groups == 1 else own_squares(totals[0])

    def draw(self, pool: Pool, target: Target) -> tuple[Layout, Floats]:
        """Have ranks draw and compute result blocks; who drew each, and the squares of those of this rank."""
        world, node_of = self.node.world, self.traffic.node_of_block
        assert node_of is not None
        part, first_task = by_block(self.plan, (node_of == EVERYBODY) | (node_of == world.node))
        with world.calling:
            counter = Counter(world.everyone)
        drawing = Drawing(pool, counter, world, self.host.workers, first_task)
        with self._fetching() as fetcher:
            operands = self._timed("fetch", fetcher.start(0).result)
            self._timed("wait", world.meet)
            squares, self.counts.work = self._timed(
                "compute",
                lambda: self.host.add(
                    part, operands, target, self.call.alpha, self.call.account, self.follow, drawing.run
                ),
            )
            self._timed("wait", world.meet)
        with world.calling:
            counter.close()
        self.counts.tickets = drawing.tickets
        owner = np.zeros(len(squares), np.int64)
        owner[drawing.blocks] = world.rank
        layout = Layout(self.shares.ranks, world.sum(owner))
        assert isinstance(self.plan.work, Product)
        self._count_reads(keep_part(self.plan, self.plan.work, layout.owner == world.rank), 0)
        return layout, squares

    def take_room(self) -> Arena:
        """Memory of the node for all blocks of the result."""
        if self.call.account is not None:
            share = -(-self.plan.result_bytes // self.node.world.neighbours.size)
            self.call.account.take(share, "What the ranks of a node draw")
        room = self.node.heap.take(self.plan.result_bytes).view(self.plan.dtype)
        return Arena(room, block_offsets(self.plan.result))

    def new(self, layout: Layout) -> Spread:
        """Memory for the sums of each rank."""
        if self.call.account is not None:
            self.call.account.take(self._own_bytes(layout), "Sums of this rank")
        return make_spread(self.node, self.plan.result, layout, self.plan.dtype, zero=False)

    @contextmanager
    def holding(self, layout: Layout) -> Iterator[Spread]:
        """Memory for the sums of each rank during a ``with`` block."""
        made = self.new(layout)
        try:
            yield made
        finally:
            if self.call.account is not None:
                self.call.account.give(self._own_bytes(layout))

    def _own_bytes(self, layout: Layout) -> int:
        sizes = self.plan.result.block_sizes[layout.blocks_of(self.node.world.rank)]
        return int(sizes.sum()) * self.plan.dtype.itemsize

    def compute(self, targets: Sequence[Target]) -> Floats:
        """Compute every stage while the next one is fetched; the sum of squares of each block that this rank summed."""
        world = self.node.world
        squares, stages = np.zeros(self.plan.result.nnz_blocks), self.traffic.stages
        if not self.parts:
            self._timed("wait", world.meet)
            return squares
        with self._fetching() as fetcher:
            coming = fetcher.start(0)
            for stage, part in enumerate(self.parts):
                operands = self._timed("fetch", coming.result)
                # The node has what it needs, and what comes next overwrites what nobody reads.
                self._timed("wait", world.meet)
                if stage + 1 < len(self.parts):
                    coming = fetcher.start(stage + 1)
                if part is not None:
                    group = int(self.shares.group[np.argmax(stages == stage)])
                    found = self._compute_part(part, operands, targets[group])
                    self._count_reads(part, stage)
                    squares[part.slots] = np.where(found > 0, found, squares[part.slots])
            # The sums may be read, what was fetched is not needed any more.
            self._timed("wait", world.meet)
        return squares

    @contextmanager
    def _fetching(self) -> Iterator[NodeFetcher]:
        """Somebody who fetches, with the memory for it counted."""
        account = self.call.account
        with (
            nullcontext() if account is None else account.holding(self.fetched_bytes, "What a node fetches"),
            closing(NodeFetcher(self.node, self.traffic, self.call.operands, self.counts)) as fetcher,
        ):
            yield fetcher

    def _compute_part(self, part: Part, operands: Sequence[BlockTensor], target: Target) -> Floats:
        assert target.slots is not None
        placed = Target(target.tensor, target.slots[part.slots], target.fresh, target.norms)
        timing = Timing(self.host.workers)
        run_tasks = None if self.block_seconds is None else timing.run
        squares, counts = self._timed(
            "compute",
            lambda: self.host.add(
                part.plan, operands, placed, self.call.alpha, self.call.account, self.follow, run_tasks
            ),
        )
        self.counts.work += counts
        if self.block_seconds is not None and isinstance(part.plan.work, Product):
            self.block_seconds[part.slots] += timing.by_block(part.plan)
        return squares

    def _count_reads(self, part: Part, stage: int) -> None:
        """Count the blocks that a part reads, and that other ranks of the node own or brought."""
        rank, node = self.node.world.rank, self.node.world.node
        for number, stored in enumerate(part.stored_blocks):
            owner, here = self.traffic.owners[number][stored], self.traffic.arrivals[number].at(stage, node)
            brought = np.isin(stored, here.block[here.rank == rank])
            others = (owner != EVERYBODY) & (owner != rank) & ~brought
            self.counts.read_bytes += int(self.traffic.block_bytes(number)[stored[others]].sum())

    def _timed(self, what: str, work: Callable[[], Result]) -> Result:
        """Do something, and note when."""
        begin = time.perf_counter()
        try:
            return work()
        finally:
            self.counts.spans.append((what, begin, time.perf_counter()))

    def _add_sums(self, total: Spread, other: Spread) -> None:
        """Add the sums of a group to those of another."""
        with self.holding(other.layout) as brought:
            self.counts.moved.add(change_layout(self.node, total, brought))
            other.own[...] += brought.own
        self.node.world.meet()  # the next addition may read what this one wrote

    def norms(self, squares: Floats, arena: Arena, mine: Ints, slots: Ints) -> Floats:
        """Norm bounds of all result blocks, each from the rank that computed it."""
        own = np.zeros(len(squares))
        own[mine] = checked_norms(squares[mine], arena, slots[mine])
        return self.node.world.sum(own)


def own_squares(total: Spread) -> Floats:
    """The sum of squares of each block of this rank."""
    squares = np.zeros(len(total.sizes))
    squares[total.held] = block_squares(total.own, total.own_offsets, total.sizes[total.held])
    return squares
