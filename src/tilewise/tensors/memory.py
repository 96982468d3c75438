"""Memory for elements that is kept for the next tensor of about the same size.

The first touch of fresh memory costs as much as several passes over it, and contractions that are repeated
ask for the same sizes again and again.  What a dead tensor leaves is therefore kept, up to a limit, and
handed out again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count as counting
from typing import Any

import numpy as np
import numpy.typing as npt

LEAST_BYTES = 1 << 20
"""Smaller arrays come from NumPy: its own allocator keeps what is small."""

M_TRIM_THRESHOLD = -1
"""Number of this setting in the C library: bytes that may stay at the end of a heap."""

M_MMAP_THRESHOLD = -3
"""Number of this setting in the C library: bytes from which on memory has pages of its own."""

WASTE = 1.25
"""A kept piece serves a request if it is at most this much larger."""


def trim_heap() -> None:
    """Give back to the system what the C library keeps of memory that was freed, and have it keep little from now on.

    GNU's gives each thread a heap of its own, in which it puts what is smaller than the largest array that was freed so
    far, up to 32 MB, and it keeps as much again at the end of each.  With fixed limits large arrays have pages of their
    own, as those of `Memory` have.  Nothing happens where the C library has no such calls.
    """
    if os.name != "posix":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_TRIM_THRESHOLD, LEAST_BYTES)
        library.mallopt(M_MMAP_THRESHOLD, LEAST_BYTES)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def default_limit() -> int:
    """Bytes that may be kept: a sixteenth of the machine's memory, a gigabyte at the most."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        total = 1 << 32
    return min(total // 16, 1 << 30)


@dataclass(slots=True, eq=False)
class Piece:
    """One stretch of memory, in use or not."""

    number: int
    """Larger for those that were handed out later."""
    size: int
    """Its length in bytes."""
    memory: mmap.mmap | None
    """Held to be handed out again; None if the system takes it back together with the array."""
    reference: weakref.ref[npt.NDArray[Any]] | None = None
    """To the array in it; keeps the callback alive that tells of its death."""


class Memory:
    """Hands out uninitialised arrays and keeps what they leave.

    What happens when an array dies was decided when it or a later one was made: the most recent pieces are held, up to
    the limit, and the system takes back the others.  So an array's death runs no Python code, in which a Ctrl-C that
    came meanwhile would be lost.

    Parameters
    ----------
    limit : int, optional
        Most bytes that are kept while nobody uses them.  Arrays in use count if they are to be kept after them.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limits = [default_limit() if limit is None else limit]
        self._ceilings: list[int] = []
        self._numbers = counting()
        self._used_bytes = 0
        self._used: dict[int, Piece] = {}  # by the identity of the reference
        self._held: dict[int, Piece] = {}  # those of them that would be kept, the oldest first
        self._kept: list[Piece] = []  # the oldest first
        self._died: deque[weakref.ref[npt.NDArray[Any]]] = deque()
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """Most bytes that are kept at the moment."""
        return min(self._limits)

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept and not in use."""
        with self._lock:
            self._settle()
            return _total(self._kept)

    def empty(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of that many elements; what it holds is undefined."""
        size = count * np.dtype(dtype).itemsize
        if size < LEAST_BYTES:
            return np.empty(count, dtype)
        piece = self._take(size)
        assert piece.memory is not None
        # Slices of the array hold the array, because its own memory belongs to something else than an array;
        # so it dies only after the last of them is gone.
        array = np.frombuffer(piece.memory, dtype, count)
        piece.reference = weakref.ref(array, self._died.append)
        with self._lock:
            self._used[id(piece.reference)] = piece
            if piece.size <= self.limit:
                self._held[id(piece.reference)] = piece
            else:
                piece.memory = None
            self._settle()
        return array

    @contextmanager
    def keeping(self, limit: int, growth: int | None = None) -> Iterator[None]:
        """Keep at most that many bytes during a ``with`` block: those that a budget leaves.

        With `growth`, what is handed out during the block and what is kept come to that many bytes at the most, unless
        more is asked for: what a plan says.
        """
        own = max(limit, 0)
        with self._lock:
            self._limits.append(own)
            self._settle()
            ceilings = [] if growth is None else [self._used_bytes + growth]
            self._ceilings += ceilings
            self._settle()
        try:
            yield
        finally:
            with self._lock:
                self._limits.remove(own)
                for ceiling in ceilings:
                    self._ceilings.remove(ceiling)
                self._hold_newest()

    def clear(self) -> None:
        """Return everything that is kept to the system."""
        with self._lock:
            self._settle()
            self._kept.clear()

    def _take(self, size: int) -> Piece:
        with self._lock:
            self._settle()
            fitting = [piece for piece in self._kept if size <= piece.size <= WASTE * size]
            if fitting:
                found = min(fitting, key=lambda piece: piece.size)
                self._kept.remove(found)
                found.number = next(self._numbers)
            else:
                found = Piece(next(self._numbers), size, None)
            self._used_bytes += found.size
            self._settle()
        if found.memory is None:
            try:
                found.memory = _map(size)
            except MemoryError:
                with self._lock:
                    self._used_bytes -= size
                raise
        return found

    def _settle(self) -> None:
        """Keep what dead arrays left, and let go of the oldest pieces where there is too much."""
        while self._died:
            # In an order in which an interrupt leaves nothing that no later call would find.
            identity = id(self._died[0])
            piece = self._used.get(identity)
            if piece is not None:
                if self._held.pop(identity, None) is not None:
                    insort(self._kept, piece, key=lambda kept: kept.number)
                del self._used[identity]
                self._used_bytes -= piece.size
            self._died.popleft()
        kept, held = _total(self._kept), _total(self._held.values())
        room = min((ceiling - self._used_bytes for ceiling in self._ceilings), default=kept)
        while self._kept and kept > room:
            kept -= self._kept.pop(0).size
        self._forget_oldest(kept + held - self.limit)

    def _forget_oldest(self, excess: int) -> None:
        """Hold so many bytes less; what is in use goes to the system with its array."""
        while excess > 0:
            identity = next(iter(self._held), None)
            if identity is None or (self._kept and self._kept[0].number < self._held[identity].number):
                piece = self._kept.pop(0)
            else:
                piece = self._held.pop(identity)
                piece.memory = None
            excess -= piece.size

    def _hold_newest(self) -> None:
        """Hold again what is in use, as far as the limit, which rose, allows."""
        self._settle()
        room = self.limit - _total(self._kept) - _total(self._held.values())
        for piece in reversed(self._used.values()):
            array = None if piece.reference is None else piece.reference()
            if piece.memory is None and piece.size <= room and array is not None:
                base: Any = array.base  # a view of the memory
                piece.memory = base.obj
                room -= piece.size
        self._held = {identity: piece for identity, piece in self._used.items() if piece.memory is not None}


def _total(pieces: Iterable[Piece]) -> int:
    return sum(piece.size for piece in pieces)


def _map(size: int) -> mmap.mmap:
    """Fresh private memory, in huge pages where the system has them."""
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):
            return mmap.mmap(-1, size)
        piece = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(
            f"The system gives no {size} bytes of memory for a result or a buffer ({error}). Expected that much to be "
            "free. Ask tw.plan(...).explain() for what a contraction needs, and use smaller or sparser tensors."
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        piece.madvise(mmap.MADV_HUGEPAGE)
    return piece
