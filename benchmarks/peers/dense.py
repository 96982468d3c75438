"""The dense GEMM peak of the libraries tilewise can call, sampled between the other runs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from peers import mkl
from peers.contender import Contender
from problems import Floats, Problem
from timing import seconds_of

SAMPLE_SECONDS = 0.3
PROBE = 1024
# Smaller products do not reach the peak, which would flatter every ratio to it.
SMALLEST, LARGEST, STEP = 2048, 4096, 64

Gemm = Callable[[], object]
MakeGemm = Callable[[Floats, Floats, Floats, int], Gemm]


def numpy_dgemm(a: Floats, b: Floats, c: Floats, threads: int) -> Gemm:
    """C = A B with NumPy's BLAS; its threads are fixed by the environment of the process."""
    return lambda: np.matmul(a, b, out=c)


def square_gemm(make: MakeGemm, size: int, threads: int) -> Gemm:
    """One dgemm of the given size on fixed random operands."""
    rng = np.random.default_rng(0)
    return make(rng.random((size, size)), rng.random((size, size)), np.zeros((size, size)), threads)


def sample_size(make: MakeGemm, threads: int) -> int:
    """The size whose dgemm takes about `SAMPLE_SECONDS`, from the time of a smaller one."""
    call = square_gemm(make, PROBE, threads)
    call()
    rate = 2 * PROBE**3 / seconds_of(call)
    extent = math.cbrt(rate * SAMPLE_SECONDS / 2)
    size = STEP * round(extent / STEP)
    return min(max(size, SMALLEST), LARGEST)


def _dense(make: MakeGemm, threads: int) -> Contender:
    size = sample_size(make, threads)
    return Contender({"run": square_gemm(make, size, threads)}, 2 * size**3)


def dense_mkl(problem: Problem, threads: int) -> Contender:
    """Peak of MKL's dgemm."""
    return _dense(mkl.dgemm, threads)


def dense_openblas(problem: Problem, threads: int) -> Contender:
    """Peak of the dgemm under NumPy, which is OpenBLAS in its wheels."""
    return _dense(numpy_dgemm, threads)
