"""BLAS libraries whose GEMM can be called by address: SciPy's own, and MKL where its wheel is installed."""

from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewise.machine import Machine

PREFIXES = (("float32", "s"), ("float64", "d"), ("complex64", "c"), ("complex128", "z"))
"""BLAS's letter for each element type."""


@dataclass(frozen=True, slots=True)
class Blas:
    """A library and the addresses of its four GEMMs."""

    name: str
    """What explain and doctor print."""
    addresses: tuple[tuple[str, int], ...]
    """Address of ``?gemm`` for each element type."""
    mkl: bool
    """Whether threads are limited by MKL's own call instead of threadpoolctl."""

    def gemm(self, dtype: np.dtype[Any]) -> int:
        """Address of the GEMM for an element type."""
        return dict(self.addresses)[dtype.name]

    def single_threaded(self) -> AbstractContextManager[Any]:
        """A context in which each call runs on the calling thread alone."""
        return nullcontext() if self.mkl else limit_blas()


class _Limit:
    """One limit for all threads of the process: the first in sets it, the last out lifts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limited: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limited = _controller().limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limited.restore_original_limits()


@lru_cache(maxsize=1)
def limit_blas() -> AbstractContextManager[None]:
    """A context in which every BLAS that is loaded runs each call on the calling thread alone."""
    return _Limit()


@lru_cache(maxsize=1)
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@lru_cache(maxsize=1)
def scipy_blas() -> Blas:
    """The BLAS inside SciPy, which is always there."""
    from scipy.linalg import cython_blas

    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    addresses = []
    for dtype, letter in PREFIXES:
        capsule = cython_blas.__pyx_capi__[letter + "gemm"]
        addresses.append((dtype, int(get_pointer(capsule, get_name(capsule)))))
    return Blas(_scipy_name(), tuple(addresses), mkl=False)


def _scipy_name() -> str:
    import scipy

    for library in _controller().info():
        if library["user_api"] == "blas" and "scipy.libs" in Path(library["filepath"]).as_posix():
            kernels = library.get("architecture") or "unknown kernels"
            return f"{library['internal_api']} {library['version']} ({kernels}, from SciPy {scipy.__version__})"
    return f"SciPy {scipy.__version__}"


@lru_cache(maxsize=1)
def mkl_blas() -> Blas | None:
    """MKL from its wheel, None if it is not installed."""
    found = sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))
    if not found:
        return None
    library = ctypes.CDLL(str(found[-1]))
    # Our threads are outside; MKL's own would only compete with them.
    library.MKL_Set_Threading_Layer(ctypes.c_int(1))
    version = ctypes.create_string_buffer(200)
    library.MKL_Get_Version_String(version, ctypes.c_int(200))
    addresses = tuple(
        (dtype, ctypes.cast(getattr(library, letter + "gemm_"), ctypes.c_void_p).value or 0)
        for dtype, letter in PREFIXES
    )
    words = version.value.decode().replace("Intel(R) oneAPI Math Kernel Library Version", "").split()
    return Blas(f"MKL {words[0] if words else ''}".strip(), addresses, mkl=True)


def libraries() -> tuple[Blas, ...]:
    """Every BLAS that can be called."""
    mkl = mkl_blas()
    return (scipy_blas(),) if mkl is None else (scipy_blas(), mkl)


def preferred_blas(machine: Machine) -> Blas:
    """The library that calibration found faster on large blocks, in whatever version it is there now; else SciPy's."""
    if machine.is_measured and machine.blas.startswith("MKL"):
        return mkl_blas() or scipy_blas()
    return scipy_blas()
