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
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
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


class Memory:
    """Hands out uninitialised arrays and keeps what they leave.

    Parameters
    ----------
    limit : int, optional
        Most bytes that are kept while nobody uses them.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limits = [default_limit() if limit is None else limit]
        self._ceilings: list[int] = []
        self._used_bytes = 0
        self._kept: list[mmap.mmap] = []
        self._returned: deque[mmap.mmap] = deque()
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """Most bytes that are kept at the moment."""
        return min(self._limits)

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept and not in use."""
        with self._lock:
            self._sort_in()
            return sum(len(piece) for piece in self._kept)

    def empty(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of that many elements; what it holds is undefined."""
        size = count * np.dtype(dtype).itemsize
        if size < LEAST_BYTES:
            return np.empty(count, dtype)
        piece = self._take(size)
        # Slices of the array hold the array, because its own memory belongs to something else than an array;
        # so the piece comes back only after the last of them is gone.
        array = np.frombuffer(piece, dtype, count)
        weakref.finalize(array, self._give_back, piece).atexit = False
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
            self._sort_in()
            ceilings = [] if growth is None else [self._used_bytes + growth]
            self._ceilings += ceilings
            self._sort_in()
        try:
            yield
        finally:
            with self._lock:
                self._limits.remove(own)
                for ceiling in ceilings:
                    self._ceilings.remove(ceiling)

    def clear(self) -> None:
        """Return everything that is kept to the system."""
        with self._lock:
            self._sort_in()
            self._kept.clear()

    def _take(self, size: int) -> mmap.mmap:
        with self._lock:
            self._sort_in()
            fitting = [i for i, piece in enumerate(self._kept) if size <= len(piece) <= WASTE * size]
            found = self._kept.pop(min(fitting, key=lambda i: len(self._kept[i]))) if fitting else None
            self._used_bytes += size if found is None else len(found)
            if found is not None:
                return found
            self._sort_in()
        try:
            return _map(size)
        except MemoryError:
            with self._lock:
                self._used_bytes -= size
            raise

    def _give_back(self, piece: mmap.mmap) -> None:
        """Keep a piece.  Called by the garbage collector, perhaps in the middle of a call that holds the lock."""
        self._returned.append(piece)
        if self._lock.acquire(blocking=False):
            try:
                self._sort_in()
            finally:
                self._lock.release()

    def _sort_in(self) -> None:
        """Keep what was returned; the oldest pieces go once there is too much."""
        while self._returned:
            self._kept.append(self._returned.popleft())
            self._used_bytes -= len(self._kept[-1])
        most = min([self.limit, *(ceiling - self._used_bytes for ceiling in self._ceilings)])
        kept = sum(len(piece) for piece in self._kept)
        while self._kept and kept > most:
            kept -= len(self._kept.pop(0))


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
