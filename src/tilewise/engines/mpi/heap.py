"""Memory that the ranks of a node share, handed out in pieces.

It is one unnamed file in memory that every rank of the node maps once: what one rank writes the others see, nothing is
copied, and nothing is left of it when the last rank ends, however that ends.  Pages are taken when they are first
touched, so that it may be as large as the computer's memory.
"""

from __future__ import annotations

import bisect
import mmap
import os
import weakref
from contextlib import AbstractContextManager
from functools import partial
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import TilewiseError
from tilewise.tensors.memory import default_limit

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.uint8]

PAGE = mmap.PAGESIZE
"""Pieces begin at pages."""

SLOTS = 1 << 16
"""Pieces that can be in use at once."""

SAY_TRUE = Struct("?").pack_into
"""``SAY_TRUE(memory, place, reference)`` writes a one; no Python code, in which a signal that came would be lost."""


class Heap:
    """The shared memory of a node; all of its ranks ask for the same pieces in the same order.

    Parameters
    ----------
    neighbours : communicator
        The ranks of the node.
    capacity : int
        Most bytes that can be in use at once.
    calling : context manager
        Held during calls of MPI.
    """

    def __init__(self, neighbours: Any, capacity: int, calling: AbstractContextManager[Any]) -> None:
        self._neighbours, self._calling = neighbours, calling
        table = _round_up(SLOTS * neighbours.size)
        self.capacity = _round_up(capacity)
        self.memory = share_memory(neighbours, table + self.capacity)
        self._dropped: Flags = np.frombuffer(self.memory, np.uint8, SLOTS * neighbours.size).reshape(SLOTS, -1)
        self._watched: dict[int, weakref.ref[Array]] = {}
        self._pieces = Pieces(table, table + self.capacity) if neighbours.rank == 0 else None

    def take(self, size: int) -> Array:
        """A piece of so many bytes, uninitialised; it is handed out again when no rank has a view of it any more."""
        if size == 0:
            return np.zeros(0, np.uint8)
        place = np.zeros(3, np.int64)
        if self._pieces is not None:
            self._reclaim(self._pieces)
            place[:] = *self._pieces.take(_round_up(size)), size
        with self._calling:
            self._neighbours.Bcast(place)
        slot, begin, asked = place.tolist()
        if asked != size:
            raise TilewiseError(
                f"Ranks do not agree on a tensor: one needs {size} bytes for it on its node, another {asked}. Expected "
                "the same calls on every rank. Give every rank the same seeds, patterns and options."
            )
        if slot < 0:
            raise MemoryError(
                f"The ranks of a node share {self.capacity} bytes, and {begin} of them are in use: a piece of {size} "
                "bytes has no place. Expected as much to be free. Use more nodes, or smaller or sparser tensors."
            )
        # Slices of the array hold the array, because its own memory belongs to something else than an array.
        piece = np.frombuffer(self.memory, np.uint8, size, begin)
        self._watched[slot] = weakref.ref(piece, partial(SAY_TRUE, self.memory, self._flag(slot)))
        return piece

    def whole(self, dtype: npt.DTypeLike) -> Array:
        """All of it as elements of a type: pieces begin at a multiple of their size."""
        return np.frombuffer(self.memory, dtype)

    def place(self, piece: Array) -> int:
        """Where a piece begins, in bytes."""
        return piece.ctypes.data - self._dropped.ctypes.data if len(piece) else 0

    def _flag(self, slot: int) -> int:
        """Where this rank says that it dropped a piece, in bytes."""
        return slot * self._neighbours.size + self._neighbours.rank

    def _reclaim(self, pieces: Pieces) -> None:
        """Take back what no rank uses."""
        used = np.fromiter(pieces.slots, np.int64, len(pieces.slots))
        for slot in used[self._dropped[used].all(axis=1)].tolist():
            self._dropped[slot] = 0
            pieces.give(slot)
        if pieces.warm > default_limit():
            for begin, end in pieces.free:
                self.memory.madvise(mmap.MADV_REMOVE, begin, end - begin)
            pieces.warm = 0


class Pieces:
    """Which parts of a range of bytes are in use."""

    def __init__(self, begin: int, end: int) -> None:
        self.free: list[tuple[int, int]] = [(begin, end)]
        """What is not in use, in order: begin and end, never adjoining."""
        self.slots: dict[int, tuple[int, int]] = {}
        """Begin and end of each piece in use."""
        self.warm = 0
        """Bytes that were in use before, and not since."""
        self._next = 0

    def take(self, size: int) -> tuple[int, int]:
        """The slot and the begin of a new piece; -1 and the bytes in use if there is no place for it."""
        at = next((i for i, (begin, end) in enumerate(self.free) if end - begin >= size), -1)
        if at < 0 or len(self.slots) == SLOTS:
            return -1, sum(end - begin for begin, end in self.slots.values())
        begin, end = self.free.pop(at)
        if end - begin > size:
            self.free.insert(at, (begin + size, end))
        while self._next in self.slots:
            self._next = (self._next + 1) % SLOTS
        self.slots[self._next] = begin, begin + size
        self.warm = max(self.warm - size, 0)
        return self._next, begin

    def give(self, slot: int) -> None:
        """A piece is not in use any more."""
        begin, end = self.slots.pop(slot)
        self.warm += end - begin
        at = bisect.bisect(self.free, (begin, end))
        if at < len(self.free) and self.free[at][0] == end:
            end = self.free.pop(at)[1]
        if at and self.free[at - 1][1] == begin:
            at -= 1
            begin = self.free.pop(at)[0]
        self.free.insert(at, (begin, end))


def share_memory(neighbours: Any, size: int) -> mmap.mmap:
    """Bytes, all zero, that all ranks of a node see; every rank of the node has to ask for them.

    The first rank makes an unnamed file, the others open it through the system's view of that process.
    """
    if not hasattr(os, "memfd_create"):
        raise TilewiseError(
            "This system has no unnamed files in memory, which ranks share tensors in. Expected Linux. Run one rank."
        )
    leads = neighbours.rank == 0
    descriptor = -1
    if leads:
        descriptor = os.memfd_create("tilewise", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size)
    process, number = neighbours.bcast((os.getpid(), descriptor))
    if not leads:
        descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    try:
        made = mmap.mmap(descriptor, size)
        neighbours.Barrier()  # until all have it
    finally:
        os.close(descriptor)
    return made


def _round_up(size: int) -> int:
    return -(-size // PAGE) * PAGE
