"""Tensors that are spread over ranks: each block has an owner, and lies in the memory that the owner's node shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.mpi.node import Node
from tilewise.patterns import Pattern
from tilewise.plans.layout import Layout
from tilewise.tensors.storage import Arena, Result, frobenius_norm, frobenius_norms

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spread(Arena):
    """Blocks on the nodes of their owners; a rank answers for its own, and sees all of its node."""

    node: Node
    """The ranks and their memory."""
    layout: Layout
    """The owner of each block."""
    sizes: Ints
    """Elements of each block."""
    piece: Array
    """The elements of this node."""
    within: Ints
    """First element of each block in its node's piece."""
    bases: Ints
    """Where the piece of each node begins in the node's memory, in bytes."""
    held: Ints
    """The blocks that this rank owns."""

    @property
    def rows(self) -> Ints:
        """The blocks that this rank owns."""
        return self.held

    @property
    def own(self) -> Array:
        """The elements of these blocks: the blocks of a rank lie one after the other."""
        if not len(self.held):
            return self.piece[:0]
        begin = self.within[self.held[0]]
        return self.piece[begin : self.within[self.held[-1]] + self.sizes[self.held[-1]]]

    @property
    def own_offsets(self) -> Ints:
        """First of its own elements of each block that this rank owns."""
        sizes = self.sizes[self.held]
        return np.cumsum(sizes) - sizes

    @property
    def owner(self) -> Ints | None:
        """The rank that owns each block."""
        return self.layout.owner

    @property
    def complete(self) -> bool:
        """Whether all blocks are on this node."""
        return not len(self.offsets) or int(self.offsets.min()) >= 0

    def like(self, own: Array) -> Spread:
        """The same layout with other elements."""
        made = allocate_spread(self.node, self.layout, self.sizes, own.dtype)
        made.own[...] = own
        self.node.world.meet(everywhere=True)  # from here on all may read it
        return made

    def matches(self, other: Arena) -> bool:
        """Whether another one has the same owners."""
        return isinstance(other, Spread) and np.array_equal(self.layout.owner, other.layout.owner)

    def gather(self, value: Any) -> list[Any]:
        """What each rank has to say, on every rank."""
        return self.node.world.gather(value)

    def agree(self, work: Callable[[], Result], *, once: bool = False) -> Result | None:
        """Have every rank do something, or the first one; if one fails, all raise its error."""
        return self.node.world.agree(work, once=once)

    def frobenius_norms(self) -> npt.NDArray[np.float64]:
        """Frobenius norms of all blocks, from their owners."""
        own = np.zeros(len(self.sizes))
        own[self.held] = frobenius_norms(self.own, self.own_offsets)
        return self.node.world.sum(own)

    def norms_of(self, blocks: Ints) -> npt.NDArray[np.float64]:
        """Norms of some blocks of this node."""
        begins = zip(self.within[blocks].tolist(), self.sizes[blocks].tolist(), strict=True)
        return np.array([frobenius_norm(self.piece[begin : begin + size]) for begin, size in begins])

    def view(self, row: int, size: int) -> Array | None:
        """The elements of a block of this node."""
        if self.offsets[row] < 0:
            return None
        begin = self.within[row]
        return self.piece[begin : begin + size]

    def read(self, row: int, out: Array) -> None:
        """Copy the elements of a block, from another node if need be."""
        found = self.view(row, len(out))
        if found is None:
            found = np.empty(self.sizes[row], self.dtype)
            owner = int(self.layout.owner[row])
            begin = self.bases[self.node.world.node_of(owner)] + self.within[row] * self.dtype.itemsize
            self.node.get(owner, int(begin), found)
        out[...] = found

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process has all blocks to itself."""
        offsets = np.cumsum(self.sizes) - self.sizes
        data = np.empty(int(self.sizes.sum()), self.dtype)
        for row, (begin, size) in enumerate(zip(offsets.tolist(), self.sizes.tolist(), strict=True)):
            self.read(row, data[begin : begin + size])
        return Arena, (data, offsets)

    def __deepcopy__(self, memo: dict[int, Any]) -> Spread:
        return self.like(self.own)


def make_spread(node: Node, pattern: Pattern, layout: Layout, dtype: npt.DTypeLike, *, zero: bool) -> Spread:
    """Storage for a pattern's blocks on the nodes of their owners; `zero=False` leaves them uninitialised."""
    made = allocate_spread(node, layout, pattern.block_sizes, np.dtype(dtype))
    if zero:
        made.own[...] = 0
        node.world.meet(everywhere=True)
    return made


def allocate_spread(node: Node, layout: Layout, sizes: Ints, dtype: np.dtype[Any]) -> Spread:
    """Storage for blocks of some sizes: on each node rank after rank, of each rank block after block."""
    world = node.world
    order = np.argsort(layout.owner, kind="stable")
    node_of = world.node_of(layout.owner)
    ordered = sizes[order]
    before = np.cumsum(ordered) - ordered
    totals = np.bincount(node_of, sizes, world.nodes).astype(np.int64)
    within = np.empty_like(sizes)
    within[order] = before - (np.cumsum(totals) - totals)[node_of[order]]
    if world.nodes > 1:
        world.meet(everywhere=True)  # nobody reads any more what is not needed here
    piece = node.heap.take(int(totals[world.node]) * dtype.itemsize)
    place = node.heap.place(piece)
    bases = np.array(world.gather(place))[:: world.ranks_per_node] if world.nodes > 1 else np.array([place])
    offsets = np.where(node_of == world.node, within + place // dtype.itemsize, -1)
    held = layout.blocks_of(world.rank)
    return Spread(
        data=node.heap.whole(dtype),
        offsets=offsets,
        node=node,
        layout=layout,
        sizes=sizes,
        piece=piece.view(dtype),
        within=within,
        bases=bases,
        held=held,
    )
