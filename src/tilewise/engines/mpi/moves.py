"""Blocks that go from rank to rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.mpi.node import Node
from tilewise.engines.mpi.spread import Spread
from tilewise.engines.mpi.world import load_mpi, parts_of
from tilewise.plans.layout import Exchange, Layout, plan_exchange
from tilewise.tensors.storage import Arena

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Moved:
    """What came to a rank."""

    inside_bytes: int = 0
    """Bytes from ranks of its own node."""
    between_bytes: int = 0
    """Bytes from other nodes."""
    messages: int = 0
    """Messages from other nodes."""

    def add(self, other: Moved) -> None:
        """Count more."""
        self.inside_bytes += other.inside_bytes
        self.between_bytes += other.between_bytes
        self.messages += other.messages


@dataclass(frozen=True, slots=True)
class Places:
    """Where blocks lie."""

    data: Bytes
    """The memory."""
    begin: Ints
    """First byte of each block in it; negative if it is not there."""

    @classmethod
    def of(cls, arena: Arena) -> Places:
        """Those of an arena."""
        return cls(arena.data.view(np.uint8), np.where(arena.offsets < 0, -1, arena.offsets * arena.dtype.itemsize))

    def taken(self, blocks: Ints) -> Places:
        """Those of some blocks."""
        return Places(self.data, self.begin[blocks])

    def elements(self, block: int, size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The elements of a block of so many bytes."""
        begin = self.begin[block]
        return self.data[begin : begin + size].view(dtype)


def move_blocks(node: Node, exchange: Exchange, source: Places, target: Places, sizes: Ints) -> Moved:
    """Carry out an exchange of blocks; every rank has to call it.

    Between ranks of one node both places must be in the memory that they share; the receiver copies.

    Parameters
    ----------
    node : Node
        The ranks and their memory.
    exchange : Exchange
        Who sends which blocks to whom.
    source, target : Places
        Where the blocks lie, and where they go.
    sizes : array of int
        Bytes of each block.
    """
    world, moved = node.world, Moved()
    near = world.node_of(exchange.source) == world.node_of(exchange.target)
    with world.calling, parts_of(source.data) as sent, parts_of(target.data) as received:
        requests: list[Any] = []
        for message in np.flatnonzero(~near & (exchange.target == world.rank)).tolist():
            blocks = exchange.blocks(message)
            place = received(target.begin[blocks], sizes[blocks])
            requests.append(world.everyone.Irecv(place, int(exchange.source[message])))
            moved.between_bytes += int(sizes[blocks].sum())
            moved.messages += 1
        for message in np.flatnonzero(~near & (exchange.source == world.rank)).tolist():
            blocks = exchange.blocks(message)
            place = sent(source.begin[blocks], sizes[blocks])
            requests.append(world.everyone.Isend(place, int(exchange.target[message])))
        for message in np.flatnonzero(near & (exchange.target == world.rank)).tolist():
            blocks = exchange.blocks(message)
            copy_own(source, target, blocks, sizes)
            moved.inside_bytes += int(sizes[blocks].sum())
        load_mpi().Request.Waitall(requests)
    return moved


def copy_own(source: Places, target: Places, blocks: Ints, sizes: Ints) -> None:
    """Copy blocks in memory that this rank sees."""
    begins = zip(source.begin[blocks].tolist(), target.begin[blocks].tolist(), sizes[blocks].tolist(), strict=True)
    for begin, place, size in begins:
        target.data[place : place + size] = source.data[begin : begin + size]


def carry_blocks(node: Node, old: Layout, new: Layout, source: Places, target: Places, sizes: Ints) -> Moved:
    """Bring blocks from one layout to another; afterwards every rank may read them."""
    rank = node.world.rank
    copy_own(source, target, np.flatnonzero((old.owner == rank) & (new.owner == rank)), sizes)
    moved = move_blocks(node, plan_exchange(old, new, sizes), source, target, sizes)
    node.world.meet(everywhere=True)
    return moved


def change_layout(node: Node, source: Spread, target: Spread) -> Moved:
    """Bring all blocks of a tensor to other owners."""
    sizes = source.sizes * source.dtype.itemsize
    return carry_blocks(node, source.layout, target.layout, Places.of(source), Places.of(target), sizes)
