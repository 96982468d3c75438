"""Calibration: the rates of this computer, measured through the kernels that plans run on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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

LARGE_EDGE = 1024
"""Edge of the blocks on which BLAS libraries are compared and the peak is measured."""

LARGE_BLOCKS = 25
"""Such blocks, at the least, of a measured product: so many that a plan leaves it to BLAS."""

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
    """Measure this computer; takes about half a minute once the kernels are compiled.

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


def best_seconds(*actions: Callable[[], object]) -> list[float]:
    """For each action, the shortest of some repetitions after one that is not counted; they take turns.

    Others on the computer only slow an action down, and while they do, all of them.
    """
    for action in actions:
        action()
    samples: list[list[float]] = [[] for _ in actions]
    end = time.perf_counter() + SECONDS_EACH * len(actions)
    while len(samples[0]) < 3 or (time.perf_counter() < end and len(samples[0]) < 25):
        for action, own in zip(actions, samples, strict=True):
            begin = time.perf_counter()
            action()
            own.append(time.perf_counter() - begin)
    return [min(own) for own in samples]


def _copy_rate(workers: int) -> float:
    """GB/s of copies by all workers, into memory that was touched before."""
    source, target = np.ones(COPIED_WORDS), np.zeros(COPIED_WORDS)
    edges = np.linspace(0, COPIED_WORDS, workers + 1).astype(int).tolist()
    pieces = [slice(low, high) for low, high in pairwise(edges)]
    with ThreadPoolExecutor(workers) as pool:
        (seconds,) = best_seconds(lambda: list(pool.map(lambda p: np.copyto(target[p], source[p]), pieces)))
    return 2e-9 * source.nbytes / seconds


def _permute_rate(engine: ThreadsEngine) -> float:
    """GB/s of the permutation that reverses four modes."""
    space = Space.uniform(PERMUTED_EXTENT, tile=16)
    tensor = _random(Pattern.dense((space,) * 4), engine)
    modes = ("p", "q", "r", "s")
    plan = inspect_reduction(Reduction(modes, modes[::-1]), tensor.pattern, np.float64, workers=engine.workers)
    (seconds,) = best_seconds(lambda: engine.run(plan, [tensor]))
    return 2e-9 * tensor.nbytes / seconds


def _fastest(engine: ThreadsEngine, progress: Progress) -> tuple[Blas, float]:
    """The BLAS that is faster on large blocks, left in use, and its GF/s per core."""
    # As many for every worker, so that no core waits.
    rows, one = Space([LARGE_EDGE] * (engine.workers * -(-LARGE_BLOCKS // engine.workers))), Space([LARGE_EDGE])
    plan, tensors = _product(Pattern.dense((rows, one)), Pattern.dense((one, one)), engine)
    assert plan.kernel == "gemm", "no library would be called"
    engines = [ThreadsEngine(engine.workers, library) for library in libraries()]
    times = best_seconds(*(partial(each.run, plan, tensors) for each in engines))
    rates = [plan.flops * 1e-9 / seconds / engine.workers for seconds in times]
    for each, rate in zip(engines, rates, strict=True):
        progress(f"{each.blas.name}: {rate:.1f} GF/s per core on blocks of {LARGE_EDGE}")
    engine.blas = engines[int(np.argmax(rates))].blas
    return engine.blas, max(rates)


def _block_rate(engine: ThreadsEngine, edge: int, start_seconds: float, permute_rate: float) -> float:
    """GF/s per core of a product of blocks with one edge; the start and the packing of rows are left out."""
    space = Space([edge] * max(min(TILES, LARGEST_EXTENT // edge), 2))
    left, right = (Pattern.random((space, space), DENSITY, seed) for seed in (0, 1))
    plan, tensors = _product(left, right, engine)
    (seconds,) = best_seconds(lambda: engine.run(plan, tensors))
    other = start_seconds + 2e-9 * plan.packed_bytes / permute_rate
    return plan.flops * 1e-9 / max(seconds - other, 0.5 * seconds) / engine.workers


def _start_seconds(engine: ThreadsEngine) -> float:
    """Seconds of a product that does next to nothing."""
    space = Space([4, 4])
    plan, tensors = _product(Pattern.dense((space, space)), Pattern.dense((space, space)), engine)
    (seconds,) = best_seconds(lambda: engine.run(plan, tensors))
    return seconds


def _product(left: Pattern, right: Pattern, engine: ThreadsEngine) -> tuple[Plan, list[BlockTensor]]:
    contraction = Contraction.of(("i", "k"), ("k", "j"), ("i", "j"))
    plan = inspect_product(contraction, left, right, np.float64, workers=engine.workers)
    return plan, [_random(left, engine), _random(right, engine)]


def _random(pattern: Pattern, engine: ThreadsEngine) -> BlockTensor:
    return make_random(pattern, np.float64, 0, engine)
