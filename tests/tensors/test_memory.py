"""Memory that is kept for the next tensor: reuse, limits, and the garbage collector."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading

import numpy as np
import pytest

from tilewise.tensors.memory import LEAST_BYTES, Memory

COUNT = LEAST_BYTES // 8


def test_what_a_dead_array_leaves_serves_the_next_one() -> None:
    memory = Memory()
    first = memory.empty(COUNT, np.float64)
    place = first.ctypes.data
    del first
    assert memory.kept_bytes == LEAST_BYTES
    assert memory.empty(COUNT, np.float64).ctypes.data == place


def test_a_slice_keeps_the_memory_in_use() -> None:
    memory = Memory()
    part = memory.empty(COUNT, np.float64)[1:]
    assert memory.kept_bytes == 0
    part[...] = 1.0
    del part
    assert memory.kept_bytes == LEAST_BYTES


def test_the_oldest_pieces_go_beyond_the_limit() -> None:
    memory = Memory(limit=2 * LEAST_BYTES)
    arrays = [memory.empty(COUNT, np.float64) for _ in range(4)]
    arrays.clear()
    assert memory.kept_bytes == 2 * LEAST_BYTES


def test_the_oldest_arrays_in_use_are_not_kept_beyond_the_limit() -> None:
    memory = Memory(limit=2 * LEAST_BYTES)
    arrays = [memory.empty(COUNT, np.float64) for _ in range(4)]
    del arrays[:2]
    assert memory.kept_bytes == 0
    arrays.clear()
    assert memory.kept_bytes == 2 * LEAST_BYTES


def test_an_array_beyond_the_limit_leaves_what_is_kept() -> None:
    memory = Memory(limit=2 * LEAST_BYTES)
    small = memory.empty(COUNT, np.float64)
    del small
    large = memory.empty(3 * COUNT, np.float64)
    assert memory.kept_bytes == LEAST_BYTES
    del large
    assert memory.kept_bytes == LEAST_BYTES


def test_a_lower_limit_lets_go_of_what_is_in_use() -> None:
    memory = Memory()
    array = memory.empty(COUNT, np.float64)
    with memory.keeping(0):
        del array
        assert memory.kept_bytes == 0


def test_what_outlives_a_lower_limit_is_kept_again() -> None:
    memory = Memory(limit=2 * LEAST_BYTES)
    arrays = [memory.empty(COUNT, np.float64) for _ in range(2)]
    with memory.keeping(0):
        arrays.append(memory.empty(COUNT, np.float64))
    oldest = arrays.pop(0)
    del oldest
    assert memory.kept_bytes == 0
    places = {array.ctypes.data for array in arrays}
    arrays.clear()
    assert memory.kept_bytes == 2 * LEAST_BYTES
    assert {memory.empty(COUNT, np.float64).ctypes.data} <= places


def test_no_python_code_runs_when_an_array_dies() -> None:
    """A Ctrl-C that came while it was in use would be raised there, and lost."""
    memory = Memory()
    arrays = [memory.empty(COUNT, np.float64) for _ in range(4)]
    entered: list[str] = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        arrays.clear()
    finally:
        sys.setprofile(None)
    assert not entered
    assert memory.kept_bytes == 4 * LEAST_BYTES


def test_what_is_kept_and_what_is_used_stay_below_what_was_planned() -> None:
    memory = Memory()
    before = memory.empty(COUNT, np.float64)
    with memory.keeping(100 * LEAST_BYTES, 3 * LEAST_BYTES):
        small, large = memory.empty(COUNT, np.float64), memory.empty(2 * COUNT, np.float64)
        del small, large
        assert memory.kept_bytes == 3 * LEAST_BYTES
        other = memory.empty(2 * COUNT, np.float64)  # what the large one left
        assert memory.kept_bytes == LEAST_BYTES
        more = memory.empty(4 * COUNT, np.float64)
        assert memory.kept_bytes == 0
        del more, other, before
    assert memory.kept_bytes > 0


def test_the_garbage_collector_may_return_memory_while_the_lock_is_held() -> None:
    """It runs at any allocation, also at one inside the pool's own methods."""
    memory = Memory()
    array = memory.empty(COUNT, np.float64)

    def free_while_locked() -> None:
        nonlocal array
        with memory._lock:
            del array

    thread = threading.Thread(target=free_while_locked, daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert memory.kept_bytes == LEAST_BYTES


def test_memory_that_the_system_does_not_give_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match=r"gives no \d+ bytes.*Expected.*smaller or sparser"):
        Memory().empty(1 << 57, np.dtype(np.float64))


HEAPS = """
import ctypes, re, threading
from pathlib import Path
import numpy as np
from tilewise.tensors.memory import trim_heap

def kept():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

def fill():
    pieces = [np.ones(250_000) for _ in range(10)]
    del pieces

def grown():
    before = kept()
    threads = [threading.Thread(target=fill) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return kept() - before

large = np.ones(4_000_000)  # after it was freed, arrays of its size no longer have pages of their own
del large
{first}
print(grown())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other heaps")
def test_heaps_of_threads_are_given_back() -> None:
    """Each thread has a heap; what it frees stays there unless the C library was told."""
    grown = {}
    for first in ("", "trim_heap()"):
        script = HEAPS.format(first=first)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        grown[first] = int(done.stdout)
    assert grown["trim_heap()"] < 8e6 < grown[""]
