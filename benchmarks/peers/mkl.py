"""MKL through ctypes: its BSR times BSR product and its dgemm."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from ctypes import byref, c_double, c_int, c_void_p
from pathlib import Path

import numpy as np

from peers.contender import Contender, NotInstalled, equal_block_size
from peers.stacks import Stack, stacked
from problems import Floats, Problem, checksum_stack

ROW_MAJOR, NO_TRANSPOSE = 101, 111
SPARSE_NO_TRANSPOSE, ZERO_BASED = 10, 0


def mkl_path() -> Path | None:
    """MKL's single library: in the folder MKL_LIB names, else where `pip install mkl` puts it."""
    folders = [Path(os.environ["MKL_LIB"])] if "MKL_LIB" in os.environ else []
    for folder in [*folders, Path(sys.prefix) / "lib"]:
        if found := sorted(folder.glob("libmkl_rt.so*")):
            return found[-1]
    return None


def mkl_library() -> ctypes.CDLL:
    """Load MKL."""
    path = mkl_path()
    if path is None:
        raise NotInstalled("libmkl_rt not found: pip install mkl, or set MKL_LIB to its folder")
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def dgemm(a: Floats, b: Floats, c: Floats, threads: int) -> Callable[[], None]:
    """C = A B of square matrices, as a call without arguments."""
    library, size = mkl_library(), len(a)
    library.MKL_Set_Num_Threads(c_int(threads))
    modes, sizes = (ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE), (size, size, size)

    def call() -> None:
        left, right, out = (c_void_p(x.ctypes.data) for x in (a, b, c))
        library.cblas_dgemm(*modes, *sizes, c_double(1.0), left, size, right, size, c_double(0.0), out, size)

    return call


class SparseMatrix:
    """A handle of MKL's sparse matrices, destroyed with the object."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.handle = c_void_p()

    def __del__(self) -> None:
        if self.handle:
            self.library.mkl_sparse_destroy(self.handle)


class StoredMatrix(SparseMatrix):
    """An operand in BSR; MKL borrows the arrays, so the object keeps them."""

    def __init__(self, library: ctypes.CDLL, stack: Stack, tiles: tuple[int, int]) -> None:
        super().__init__(library)
        self.data = stack.data
        self.indices, self.starts = stack.indices.astype(np.int32), stack.starts.astype(np.int32)
        start = self.starts.ctypes.data
        status = library.mkl_sparse_d_create_bsr(
            byref(self.handle),
            *(c_int(v) for v in (ZERO_BASED, ROW_MAJOR, *tiles, self.data.shape[1])),
            *(c_void_p(v) for v in (start, start + self.starts.itemsize)),
            *(c_void_p(v.ctypes.data) for v in (self.indices, self.data)),
        )
        if status:
            raise RuntimeError(f"mkl_sparse_d_create_bsr returned status {status}")


def multiply(a: StoredMatrix, b: StoredMatrix) -> SparseMatrix:
    """A B with MKL's inspector and executor in one call."""
    result = SparseMatrix(a.library)
    status = a.library.mkl_sparse_spmm(c_int(SPARSE_NO_TRANSPOSE), a.handle, b.handle, byref(result.handle))
    if status:
        raise RuntimeError(f"mkl_sparse_spmm returned status {status}")
    return result


def checksum(problem: Problem, matrix: SparseMatrix) -> float:
    """Checksum of a result, read from MKL's own arrays."""
    base, layout, rows, cols, size = (c_int() for _ in range(5))
    start, end, column, value = (c_void_p() for _ in range(4))
    fields = (base, layout, rows, cols, size, start, end, column, value)
    matrix.library.mkl_sparse_d_export_bsr(matrix.handle, *(byref(field) for field in fields))

    def ints(address: c_void_p, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        pointer = ctypes.cast(address, ctypes.POINTER(c_int))
        return np.ctypeslib.as_array(pointer, (count,)).astype(np.int64)

    first, last, b = ints(start, rows.value), ints(end, rows.value), size.value
    count = int(last[-1])
    data = np.ctypeslib.as_array(ctypes.cast(value, ctypes.POINTER(c_double)), (count * b * b,))
    tile_rows = np.repeat(np.arange(rows.value), last - first)
    return checksum_stack(problem, tile_rows, ints(column, count), data.reshape(count, b, b))


def mkl_bsr(problem: Problem, threads: int) -> Contender:
    """MKL's BSR times BSR (mkl_sparse_spmm)."""
    equal_block_size(problem)
    library = mkl_library()
    library.MKL_Set_Num_Threads(c_int(threads))
    a = StoredMatrix(library, stacked(problem.a), (len(problem.m), len(problem.k)))
    b = StoredMatrix(library, stacked(problem.b), (len(problem.k), len(problem.n)))
    actions = {"run": lambda: multiply(a, b)}
    return Contender(actions, problem.flops, lambda c: checksum(problem, c))
