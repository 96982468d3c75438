"""What crosses between ranks in a step that they share, piece by piece along k.

A block that ranks of a node need and that none of its ranks has comes to the node once: one of those that need it is
charged with it and brings it to memory that they share.  Blocks that a function makes or that lie in a file have no
owner; they are made or read once for each node that needs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tilewise.plans.balance import over_mean
from tilewise.plans.grids import total_by
from tilewise.plans.layout import EVERYBODY, Exchange, list_messages, plan_exchange
from tilewise.plans.pairs import list_pairs
from tilewise.plans.plan import Plan
from tilewise.plans.shares import Shares
from tilewise.plans.work import Sum

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NOBODY = -2
"""The owner of a block that is made or read where it is needed."""


@dataclass(frozen=True, slots=True)
class Uses:
    """Every use of operand blocks in a step: its block products, or the sources of its sums."""

    blocks: tuple[Ints, ...]
    """Stored block of each operand."""
    target: Ints
    """Result block."""
    segment: Ints
    """Segment of k; 0 in sums."""
    flops: Floats
    """Floating-point operations of each."""


def list_uses(plan: Plan) -> Uses:
    """The uses of a plan, one by one."""
    work = plan.work
    if isinstance(work, Sum):
        target = np.repeat(np.arange(plan.result.nnz_blocks), np.diff(work.ptr))
        stored = plan.operands[0].blocks.source[work.source]
        share = (work.elements / np.maximum(np.diff(work.ptr), 1))[target] if work.summed else np.zeros(len(target))
        return Uses((stored,), target, np.zeros(len(target), np.int64), share)
    pairs = list_pairs(plan)
    return Uses((pairs.left, pairs.right), pairs.target, pairs.segment, pairs.flops)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Blocks of one operand that come to nodes, ordered by stage, node and number; each charged to one rank there."""

    stage: Ints
    """When each comes."""
    node: Ints
    """Where to."""
    block: Ints
    """The blocks."""
    rank: Ints
    """Who brings each."""
    source: Ints
    """Who has it; `NOBODY` if it is made or read."""
    ranks: int
    """How many ranks there are."""

    def at(self, stage: int, node: int) -> Arrivals:
        """Those that come to a node in a stage."""
        low, high = np.searchsorted(self.stage, [stage, stage + 1])
        begin, end = low + np.searchsorted(self.node[low:high], [node, node + 1])
        return self._part(slice(int(begin), int(end)))

    def count(self, stage: int) -> int:
        """How many come in a stage, to all nodes."""
        low, high = np.searchsorted(self.stage, [stage, stage + 1])
        return int(high - low)

    def exchange(self, stage: int, block_bytes: Ints) -> Exchange:
        """The messages of a stage between all ranks."""
        low, high = np.searchsorted(self.stage, [stage, stage + 1])
        sent = self._part(np.flatnonzero(self.source[low:high] != NOBODY) + low)
        return list_messages(sent.source, sent.rank, sent.block, self.ranks, block_bytes)

    def _part(self, which: slice | Ints) -> Arrivals:
        stage, node, block, rank, source = self.stage, self.node, self.block, self.rank, self.source
        return Arrivals(stage[which], node[which], block[which], rank[which], source[which], self.ranks)


@dataclass(frozen=True)
class Traffic:
    """What a shared step moves.

    Where a pool settles during the run who does what, `node_of_block` says on which nodes each result block may be
    computed: they all get what that takes.
    """

    plan: Plan
    """The step."""
    shares: Shares
    """Who does what."""
    owners: tuple[Ints, ...]
    """Owner of each stored block of the operands; `EVERYBODY`, or `NOBODY`."""
    stages: Ints
    """Stage of each k segment: what is fetched together.  A stage lies in one group."""
    node_of_block: Ints | None = None
    """Of a pool: the node of each result block, `EVERYBODY` if any node may compute it; None if it is settled who."""
    known_uses: Uses | None = None
    """The uses of operand blocks, if they are known already."""

    @property
    def stage_count(self) -> int:
        """How many stages there are."""
        return int(self.stages.max(initial=-1)) + 1

    @cached_property
    def uses(self) -> Uses:
        """The uses of operand blocks."""
        return list_uses(self.plan) if self.known_uses is None else self.known_uses

    @cached_property
    def rank(self) -> Ints:
        """Who does each of them."""
        return self.shares.chain[self.uses.target, self.shares.group[self.uses.segment]]

    @property
    def rank_flops(self) -> Floats:
        """Floating-point operations of each rank."""
        return total_by(self.rank, self.uses.flops, self.shares.ranks)

    @property
    def imbalance(self) -> float:
        """The busiest rank's flops over the mean."""
        return over_mean(self.rank_flops)

    def block_bytes(self, operand: int) -> Ints:
        """Bytes of the stored blocks of an operand."""
        return self.plan.operands[operand].pattern.block_sizes * self.plan.dtype.itemsize

    @cached_property
    def needs(self) -> tuple[tuple[Ints, Ints, Ints], ...]:
        """For each operand, who needs which block when: stage, rank and block, each once, without a rank's own."""
        stage = self.stages[self.uses.segment]
        if self.node_of_block is not None:
            return tuple(
                self._pool_needs(block, stage, owner)
                for block, owner in zip(self.uses.blocks, self.owners, strict=True)
            )
        return tuple(
            _needs(block, stage, self.rank, owner, self.shares.ranks)
            for block, owner in zip(self.uses.blocks, self.owners, strict=True)
        )

    def _pool_needs(self, block: Ints, stage: Ints, owner: Ints) -> tuple[Ints, Ints, Ints]:
        """What every node that may compute a result block has to have; its ranks take turns to bring it."""
        assert self.node_of_block is not None
        node = self.node_of_block[self.uses.target]
        nodes, per_node = int(self.shares.node(self.shares.ranks - 1)) + 1, self.shares.ranks_per_node
        found = []
        for here in range(nodes):
            used = (node == here) | (node == EVERYBODY)
            count = min(per_node, self.shares.ranks - here * per_node)
            rank = here * per_node + block[used] % count
            found.append(_needs(block[used], stage[used], rank, owner, self.shares.ranks))
        when, who, what = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort((what, who, when))
        return when[order], who[order], what[order]

    @cached_property
    def arrivals(self) -> tuple[Arrivals, ...]:
        """What comes to nodes of each operand."""
        return tuple(
            _arrivals(*needs, owner, self.shares) for needs, owner in zip(self.needs, self.owners, strict=True)
        )

    @cached_property
    def sums(self) -> tuple[Exchange, ...]:
        """What goes to where the sums of a group of k segments are added to another's; see `Shares.additions`."""
        size = self.plan.result.block_sizes * self.plan.dtype.itemsize
        layout = self.shares.layout
        return tuple(plan_exchange(layout(group), layout(other), size) for group, other in self.shares.additions)

    @property
    def between_bytes(self) -> Ints:
        """Bytes that each rank gets from other nodes."""
        total = self._sum_bytes(near=False)
        for operand, arrivals in enumerate(self.arrivals):
            sent = arrivals.source != NOBODY
            size = self.block_bytes(operand)[arrivals.block[sent]]
            total += total_by(arrivals.rank[sent], size, self.shares.ranks)
        return total.astype(np.int64)

    @property
    def inside_bytes(self) -> Ints:
        """Bytes that each rank reads of other ranks of its node, or that another rank of it brought."""
        total = self._sum_bytes(near=True)
        for operand, ((_, rank, block), arrivals) in enumerate(zip(self.needs, self.arrivals, strict=True)):
            size = self.block_bytes(operand)
            total += total_by(rank, size[block], self.shares.ranks)
            total -= total_by(arrivals.rank, size[arrivals.block], self.shares.ranks)
        return total.astype(np.int64)

    def _sum_bytes(self, *, near: bool) -> Floats:
        """Bytes of partial sums that each rank gets, from its own node or from others."""
        total = np.zeros(self.shares.ranks)
        for exchange in self.sums:
            chosen = (self.shares.node(exchange.source) == self.shares.node(exchange.target)) == near
            total += total_by(exchange.target[chosen], exchange.message_bytes[chosen], self.shares.ranks)
        return total

    @property
    def messages(self) -> Ints:
        """Messages that each rank gets from ranks of other nodes."""
        count = np.zeros(self.shares.ranks, np.int64)
        for exchange in self.sums:
            far = self.shares.node(exchange.source) != self.shares.node(exchange.target)
            count += np.bincount(exchange.target[far], minlength=self.shares.ranks)
        for arrivals in self.arrivals:
            sent = arrivals.source != NOBODY
            ranks = self.shares.ranks
            message = (arrivals.stage[sent] * ranks + arrivals.source[sent]) * ranks + arrivals.rank[sent]
            count += np.bincount(np.unique(message) % ranks, minlength=ranks)
        return count

    def largest_stage(self, operand: int, node: int) -> int:
        """Most bytes of an operand that come to a node in one stage."""
        if operand >= len(self.arrivals):
            return 0
        arrivals = self.arrivals[operand]
        here = arrivals.node == node
        size = self.block_bytes(operand)[arrivals.block[here]]
        return int(np.bincount(arrivals.stage[here], size, 1).max())

    def stage_bytes(self, node: int) -> Ints:
        """Bytes that come to a node in each stage."""
        total = np.zeros(self.stage_count)
        for operand, arrivals in enumerate(self.arrivals):
            here = arrivals.node == node
            total += np.bincount(
                arrivals.stage[here], self.block_bytes(operand)[arrivals.block[here]], minlength=len(total)
            )
        return total.astype(np.int64)


def _needs(block: Ints, stage: Ints, rank: Ints, owner: Ints, ranks: int) -> tuple[Ints, Ints, Ints]:
    """Stage, rank and block of what a rank does not have itself, in that order."""
    count = max(len(owner), 1)
    other = (owner[block] != EVERYBODY) & (owner[block] != rank)
    key = np.sort((stage[other] * ranks + rank[other]) * count + block[other])
    early, found = np.divmod(key[np.diff(key, prepend=-1) != 0], count)
    when, who = np.divmod(early, ranks)
    return when, who, found


def _arrivals(stage: Ints, rank: Ints, block: Ints, owner: Ints, shares: Shares) -> Arrivals:
    """What a node lacks, once for each stage; of the ranks that need it, the one whose turn it is by its number."""
    node = shares.node(rank)
    far = (owner[block] == NOBODY) | (shares.node(owner[block]) != node)
    stage, rank, block, node = stage[far], rank[far], block[far], node[far]
    count, nodes = max(len(owner), 1), shares.node(shares.ranks - 1) + 1
    key = (stage * nodes + node) * count + block
    order = np.argsort(key, kind="stable")
    _, first, readers = np.unique(key[order], return_index=True, return_counts=True)
    chosen = order[first + block[order][first] % readers]
    return Arrivals(stage[chosen], node[chosen], block[chosen], rank[chosen], owner[block[chosen]], shares.ranks)
