"""Calibration: the rates of this computer, measured through the kernels that plans run on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from tilewise.engines.blas import Blas, libraries
from tilewise.engines.threads import ThreadsEngine
from tilewise.expressions import Contraction, Reduction
from tilewise.machine import Machine, cpu_model, host_caches, host_cores, host_memory
from tilewise.patterns import Pattern
from tilewise.plans import Plan, inspect_product, inspect_reduction
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor
from tilewise.tensors.create import make_random

Progress = Callable[[str], None]

EDGES = (4, 8, 16, 24, 32, 48, 64, 128, 256)
"""Block edges at which products are measured."""

LARGE_EDGE = 768
"""Edge of the blocks on which BLAS libraries are compared and the peak is measured."""

TILES = 96
"""Tiles per mode of a measured product, if that is not too large."""

LARGEST_EXTENT = 1536
"""Elements per mode of a measured product."""

DENSITY = 0.4
"""Of the operands of a measured product: few k blocks are neighbours, as in real patterns."""

PERMUTED_EXTENT = 48
"""Elements per mode of the permuted tensor."""

COPIED_WORDS = 1 << 22
"""Words of the copied array."""

SECONDS_EACH = 0.6
"""Time that repetitions of one measurement may take."""


def calibrate(progress: Progress = lambda line: None, workers: int | None = None) -> Machine:
    """Measure this computer; takes less than half a minute once the kernels are compiled.

    Parameters
    ----------
    progress : callable
        Called with a line of text before and after each measurement.
    workers : int, optional
        Threads to measure with; all cores this process may use by default. Rates are per core.
    """
    engine = ThreadsEngine(host_cores() if workers is None else workers)
    progress("compiling the kernels, if this is their first use")
    start = _start_seconds(engine)
    copy = _copy_rate(engine.workers)
    progress(f"copy: {copy:.1f} GB/s")
    permute = _permute_rate(engine)
    progress(f"permutation of four modes: {permute:.1f} GB/s")
    blas, peak = _fastest(engine, progress)
    rates = []
    for edge in EDGES:
        rates.append((edge, _block_rate(engine, edge, start, permute)))
        progress(f"blocks of {edge}: {rates[-1][1]:.1f} GF/s per core")
    return Machine(
        name=cpu_model(),
        cores=engine.workers,
        gemm_rates=(*rates, (LARGE_EDGE, peak)),
        copy_rate=copy,
        permute_rate=permute,
        peak_rate=peak,
        start_seconds=start,
        memory_bytes=host_memory(),
        cache_bytes=host_caches(),
        blas=blas.name,
        is_measured=True,
    )


def best_seconds(action: Callable[[], object]) -> float:
    """Shortest of some repetitions after one that is not counted: others on the computer only slow it down."""
    action()
    samples: list[float] = []
    end = time.perf_counter() + SECONDS_EACH
    while len(samples) < 3 or (time.perf_counter() < end and len(samples) < 25):
        begin = time.perf_counter()
        action()
        samples.append(time.perf_counter() - begin)
    return min(samples)


def _copy_rate(workers: int) -> float:
    """GB/s of copies by all workers, into memory that was touched before."""
    source, target = np.ones(COPIED_WORDS), np.zeros(COPIED_WORDS)
    edges = np.linspace(0, COPIED_WORDS, workers + 1).astype(int).tolist()
    pieces = [slice(low, high) for low, high in pairwise(edges)]
    with ThreadPoolExecutor(workers) as pool:
        seconds = best_seconds(lambda: list(pool.map(lambda p: np.copyto(target[p], source[p]), pieces)))
    return 2e-9 * source.nbytes / seconds


def _permute_rate(engine: ThreadsEngine) -> float:
    """GB/s of the permutation that reverses four modes."""
    space = Space.uniform(PERMUTED_EXTENT, tile=16)
    tensor = _random(Pattern.dense((space,) * 4), engine)
    modes = ("p", "q", "r", "s")
    plan = inspect_reduction(Reduction(modes, modes[::-1]), tensor.pattern, np.float64, workers=engine.workers)
    return 2e-9 * tensor.nbytes / best_seconds(lambda: engine.run(plan, [tensor]))


def _fastest(engine: ThreadsEngine, progress: Progress) -> tuple[Blas, float]:
    """The BLAS that is faster on large blocks, left in use, and its GF/s per core."""
    # One task per worker at the least, so that no core waits.
    rows, cols = Space([LARGE_EDGE] * engine.workers), Space([LARGE_EDGE])
    plan, tensors = _product(Pattern.dense((rows, cols)), Pattern.dense((cols, cols)), engine)
    found = []
    for library in libraries():
        engine.blas = library
        rate = plan.flops * 1e-9 / best_seconds(lambda: engine.run(plan, tensors)) / engine.workers
        progress(f"{library.name}: {rate:.1f} GF/s per core on blocks of {LARGE_EDGE}")
        found.append((library, rate))
    engine.blas, peak = max(found, key=lambda pair: pair[1])
    return engine.blas, peak


def _block_rate(engine: ThreadsEngine, edge: int, start_seconds: float, permute_rate: float) -> float:
    """GF/s per core of a product of blocks with one edge; the start and the packing of rows are left out."""
    space = Space([edge] * max(min(TILES, LARGEST_EXTENT // edge), 2))
    left, right = (Pattern.random((space, space), DENSITY, seed) for seed in (0, 1))
    plan, tensors = _product(left, right, engine)
    seconds = best_seconds(lambda: engine.run(plan, tensors))
    other = start_seconds + 2e-9 * plan.packed_bytes / permute_rate
    return plan.flops * 1e-9 / max(seconds - other, 0.5 * seconds) / engine.workers


def _start_seconds(engine: ThreadsEngine) -> float:
    """Seconds of a product that does next to nothing."""
    space = Space([4, 4])
    plan, tensors = _product(Pattern.dense((space, space)), Pattern.dense((space, space)), engine)
    return best_seconds(lambda: engine.run(plan, tensors))


def _product(left: Pattern, right: Pattern, engine: ThreadsEngine) -> tuple[Plan, list[BlockTensor]]:
    contraction = Contraction.of(("i", "k"), ("k", "j"), ("i", "j"))
    plan = inspect_product(contraction, left, right, np.float64, workers=engine.workers)
    return plan, [_random(left, engine), _random(right, engine)]


def _random(pattern: Pattern, engine: ThreadsEngine) -> BlockTensor:
    return make_random(pattern, np.float64, 0, engine)
