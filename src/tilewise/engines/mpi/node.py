"""What a rank shares with others: the memory of its node, and a way to read that of other nodes."""

from __future__ import annotations

import atexit
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.mpi.heap import Heap
from tilewise.engines.mpi.world import World, load_mpi
from tilewise.machine import host_memory

Array = npt.NDArray[Any]

ATTENTION = 1e-3
"""Seconds between two looks at what other nodes ask of this rank."""


MOST_BYTES = 1 << 40
"""What a node may share where the system does not say how much memory it has; only what is touched is taken."""


@dataclass(frozen=True, slots=True)
class Node:
    """The ranks of a run and the memory of this rank's node."""

    world: World
    """The ranks."""
    heap: Heap
    """The memory that the ranks of this node share."""
    window: Window | None
    """How other nodes read it; None if there are none."""

    def get(self, rank: int, begin: int, out: Array) -> None:
        """Copy bytes from the memory of a rank's node; that rank need not take part."""
        assert self.window is not None
        self.window.get(rank, begin, out)


class Window:
    """One-sided reading of the memory of other nodes.

    MPI libraries answer for a rank only while it is in one of their calls, so a thread calls them now and then.
    """

    def __init__(self, world: World, heap: Heap) -> None:
        self._world = world
        self._open = load_mpi().Win.Create(heap.memory, 1, comm=world.everyone)
        self._open.Lock_all()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="tilewise-attend", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def get(self, rank: int, begin: int, out: Array) -> None:
        """Copy bytes of a rank's memory."""
        flat = out.view(np.uint8)
        with self._world.calling:
            self._open.Get([flat, len(flat), load_mpi().BYTE], rank, [begin, len(flat), load_mpi().BYTE])
            self._open.Flush(rank)

    def close(self) -> None:
        """End it; every rank has to."""
        with self._world.calling:
            self._world.everyone.Barrier()  # until nobody asks any more
        self._closing.set()
        self._thread.join()
        self._open.Unlock_all()
        self._open.Free()

    def _attend(self) -> None:
        while not self._closing.wait(ATTENTION):
            if self._world.calling.acquire(blocking=False):  # else another thread sees to it
                self._world.everyone.Iprobe()
                self._world.calling.release()


@lru_cache(maxsize=16)
def make_node(world: World) -> Node:
    """The shared memory of a rank's node, made once by all ranks together."""
    heap = Heap(world.neighbours, host_memory() or MOST_BYTES, world.calling)
    return Node(world, heap, Window(world, heap) if world.nodes > 1 else None)
