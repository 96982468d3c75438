"""Give every peer a BLAS that knows the processor.

OpenBLAS releases older than a processor fall back to kernels several times slower than it can run.
A win against such a BLAS says nothing, so the core type is named where that happens.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FALLBACK_CORES = frozenset({"prescott", "core2", "nehalem", "generic", "unknown"})


@dataclass(frozen=True, slots=True)
class SystemBlas:
    """The system's OpenBLAS, which DBCSR calls."""

    detected: str
    """Core type the library chose by itself; empty where it is not installed."""
    core: str
    """Core type it runs with here."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that make it run with `core`."""
        return {"OPENBLAS_CORETYPE": self.core} if self.core and self.core != self.detected else {}


def system_blas() -> SystemBlas:
    """Ask the system's OpenBLAS for its core type; mend it where the processor can do more."""
    try:
        library = ctypes.CDLL("libopenblas.so.0")
        library.openblas_get_corename.restype = ctypes.c_char_p
        detected = library.openblas_get_corename().decode()
    except (OSError, AttributeError):
        return SystemBlas("", "")
    if "OPENBLAS_CORETYPE" in os.environ or detected.lower() not in FALLBACK_CORES:
        return SystemBlas(detected, detected)
    flags = processor_flags()
    better = "SkylakeX" if "avx512f" in flags else "Haswell" if "avx2" in flags else detected
    return SystemBlas(detected, better)


def processor_flags() -> frozenset[str]:
    """Instruction sets of the processor, as Linux names them."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^flags\s*:(.*)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return frozenset(found.group(1).split()) if found else frozenset()
