"""Give every peer a BLAS that knows the processor.

OpenBLAS releases older than a processor fall back to kernels several times slower than it can run. A win against such
a BLAS says nothing, so core types that the processor can run are timed, and the fastest is named.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

CORES = (("SkylakeX", "avx512f"), ("Haswell", "avx2"))
"""Core types worth a try, and the instructions they need."""

VARIABLE = "OPENBLAS_CORETYPE"
"""Names a core type to OpenBLAS."""

LIBRARY = "libopenblas.so.0"
SAMPLE = """
import ctypes, sys, time
import numpy as np
dgemm = ctypes.CDLL(sys.argv[1]).cblas_dgemm
n, one = 1200, ctypes.c_double(1.0)
a, b, c = (np.ones((n, n)) for _ in range(3))
def seconds():
    begin = time.perf_counter()
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, c)]
    dgemm(101, 111, 111, n, n, n, one, pointers[0], n, pointers[1], n, one, pointers[2], n)
    return time.perf_counter() - begin
print(min(seconds() for _ in range(6)))
"""
"""A process that times products of the library, with the core type of its environment."""


@dataclass(frozen=True, slots=True)
class SystemBlas:
    """The system's OpenBLAS, which DBCSR calls."""

    detected: str
    """Core type the library chooses by itself; empty where it is not installed."""
    core: str
    """Core type it runs with here."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that make it run with `core`."""
        return {VARIABLE: self.core} if self.core and self.core != self.detected else {}


def let_libraries_choose() -> None:
    """Take away a core type that the environment names for every OpenBLAS, ours and that of the dense peak too.

    To be called before a library is loaded, in this process or in those it starts.
    """
    os.environ.pop(VARIABLE, None)


@lru_cache(maxsize=1)
def system_blas() -> SystemBlas:
    """Ask the system's OpenBLAS for its core type, and find the one it is fastest with here."""
    try:
        library = ctypes.CDLL(LIBRARY)
        library.openblas_get_corename.restype = ctypes.c_char_p
        detected = library.openblas_get_corename().decode()
    except (OSError, AttributeError):
        return SystemBlas("", "")
    flags = processor_flags()
    choices = {detected, *(core for core, needed in CORES if needed in flags)}
    return SystemBlas(detected, min(sorted(choices), key=_seconds))


def _seconds(core: str) -> float:
    """Shortest time of a product with this core type, on one thread; never, where the library cannot run it."""
    environment = {**os.environ, VARIABLE: core, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SAMPLE, LIBRARY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else math.inf


def processor_flags() -> frozenset[str]:
    """Instruction sets of the processor, as Linux names them."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^flags\s*:(.*)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return frozenset(found.group(1).split()) if found else frozenset()
