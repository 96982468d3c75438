"""A product of over 8 GB within a budget of 1 GB: resident memory, and time against products in memory.

    python benchmarks/out_of_core.py [--threads 2] [--scale 1.0] [--memory 1GB] [--folder DIR] [--only generated]

M << N = K, tiles of 256 to 768, all blocks there. The large operand is made by a function or lies in a file. Each
case runs in a fresh process, after a small product of the same kind. "Work alone" is the time that the same
products take with everything in memory, at the rate measured in the same process on a part that fits, plus the time
that making (or reading) the blocks takes as often as the plan says, by the same number of threads. Where the system
lets us, the run is put into a control group that may grow by 1.1 times the budget and no more. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tilewise as tw
from memory import growth_of
from problems import tiling
from tables import markdown

ROWS, INNER = 700, 31_500
CASES = ("generated", "on disk")
MOST_GROWTH = 1.1
MOST_TIME = 1.3
SAMPLE_BLOCKS = 64

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one process measured."""

    total_bytes: int
    """Operands and result."""
    budget_bytes: int
    """What the run was given."""
    projected_bytes: int
    """The plan's peak."""
    measured_bytes: int
    """Growth of the peak of resident memory."""
    limit: str
    """Whether the system was told to end the process should it grow by more."""
    phases: int
    """Phases of the plan."""
    times_fetched: float
    """How often the large operand was made or read."""
    seconds: float
    """Wall time of the run."""
    product_seconds: float
    """The same products in memory."""
    fetch_seconds: float
    """Making or reading the blocks, alone."""
    error: float
    """Largest difference from NumPy on the blocks that were compared, relative to the largest element."""


def wave(index: tuple[int, ...], spaces: tuple[tw.Space, ...]) -> Array:
    """A block with elements that depend on where they stand, cheap to make."""
    rows, cols = (np.arange(int(s.offsets[t]), int(s.offsets[t + 1])) for s, t in zip(spaces, index, strict=True))
    return np.asarray(np.sin(0.01 * rows)[:, None] * np.cos(0.02 * cols) + 0.5)


def made(spaces: tuple[tw.Space, ...]) -> tw.BlockTensor:
    """A tensor of waves."""
    return tw.from_function(lambda index: wave(index, spaces), spaces)


def operands(case: str, scale: float, folder: Path) -> tuple[tw.BlockTensor, tw.BlockTensor]:
    """The small and the large operand."""
    rng = np.random.default_rng(1)
    row = tw.Space(tiling(int(ROWS * scale), 128, 256, rng), name="i")
    inner, col = (tw.Space(tiling(int(INNER * scale), 256, 768, rng), name=name) for name in "kj")
    large = made((inner, col))
    if case == "on disk":
        large.save(folder / "large.h5")
        large = tw.load(folder / "large.h5", on_disk=True)
    return made((row, inner)), large


def fetch_seconds(tensor: tw.BlockTensor, times: float, threads: int) -> float:
    """Seconds to make or read all blocks so many times, from a sample of them."""
    pattern = tensor.pattern
    rows = np.linspace(0, pattern.nnz_blocks - 1, min(SAMPLE_BLOCKS, pattern.nnz_blocks)).astype(int).tolist()
    sizes = pattern.block_sizes

    def read(row: int) -> None:
        tensor.storage.read(row, np.empty(int(sizes[row]), tensor.dtype))

    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        list(pool.map(read, rows))
        seconds = time.perf_counter() - start
    return float(seconds / sizes[rows].sum() * sizes.sum() * times)


def product_seconds(plan: tw.Plan, left: tw.BlockTensor, right: tw.BlockTensor) -> float:
    """Seconds of the plan's flops at the rate of a part of the product in memory: all rows, some columns."""
    inner, col = right.spaces
    few = tw.Space(col.sizes[: max(1, col.ntiles // 40)], name=col.name)
    a, b = left.copy(), made((inner, few)).copy()
    part = tw.plan("ik,kj->ij", a, b)
    assert isinstance(part, tw.Plan)
    best = min(_seconds(lambda: tw.execute(part, a, b)) for _ in range(3))
    return best * plan.flops / part.flops


def _seconds(action: Any) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def error_of(result: tw.BlockTensor, left: tw.BlockTensor, right: tw.BlockTensor) -> float:
    """Compare the first and the last result block with NumPy's."""
    worst = 0.0
    for index in (result.pattern.index[0].tolist(), result.pattern.index[-1].tolist()):
        i, j = index
        tiles = range(left.spaces[1].ntiles)
        expected = sum(left.block((i, k)) @ right.block((k, j)) for k in tiles)
        worst = max(worst, float(np.abs(result.block((i, j)) - expected).max() / np.abs(expected).max()))
    return worst


@contextmanager
def limited(size: int) -> Iterator[str]:
    """A control group in which this process is ended should it grow by more bytes; says whether there is one."""
    for root, limit, used in (
        (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        group = root / f"tilewise-{os.getpid()}"
        try:
            if not (root / "cgroup.procs").exists():
                continue
            group.mkdir()
            (group / "cgroup.procs").write_text(str(os.getpid()))
            (group / limit).write_text(str(int((group / used).read_text()) + size))
        except OSError:
            continue
        try:
            yield "kept"
        finally:
            (root / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()
        return
    yield "none can be set"


def measure(case: str, threads: int, scale: float, memory: str, folder: Path) -> Figures:
    """Run one case; called in a process of its own."""
    with tw.engine("threads", workers=threads):
        small = operands("generated", 0.05 * scale, folder)
        tw.einsum("ik,kj->ij", *small, memory=memory)
        left, right = operands(case, scale, folder)
        plan = tw.plan("ik,kj->ij", left, right, memory=memory)
        assert isinstance(plan, tw.Plan)
        assert plan.phases is not None
        results: list[tw.BlockTensor] = []
        seconds = 0.0

        def run() -> None:
            nonlocal seconds
            seconds = _seconds(lambda: results.append(tw.execute(plan, left, right)))

        with limited(int(MOST_GROWTH * plan.phases.budget)) as limit:
            measured = growth_of(run)
        times = plan.phases.fetched_bytes[1] / right.nbytes
        return Figures(
            total_bytes=left.nbytes + right.nbytes + plan.result_bytes,
            budget_bytes=plan.phases.budget,
            projected_bytes=plan.peak_bytes,
            measured_bytes=measured,
            limit=limit,
            phases=len(plan.phases.sequence),
            times_fetched=times,
            seconds=seconds,
            product_seconds=product_seconds(plan, left, right),
            fetch_seconds=fetch_seconds(right, times, threads)
            + fetch_seconds(left, plan.phases.fetched_bytes[0] / left.nbytes, threads),
            error=error_of(results[0], left, right),
        )


def row(name: str, figures: Figures) -> tuple[str, ...]:
    """One line of the table."""
    growth = figures.measured_bytes / figures.budget_bytes
    ratio = figures.seconds / (figures.product_seconds + figures.fetch_seconds)
    return (
        name,
        f"{figures.total_bytes * 1e-9:.2f}",
        f"{figures.projected_bytes * 1e-6:.0f}",
        f"{figures.measured_bytes * 1e-6:.0f}",
        f"{growth:.2f} ({'met' if growth <= MOST_GROWTH else 'NOT MET'})",
        figures.limit,
        str(figures.phases),
        f"{figures.times_fetched:.2f}",
        f"{figures.seconds:.1f}",
        f"{figures.product_seconds:.1f} + {figures.fetch_seconds:.1f}",
        f"{ratio:.2f} ({'met' if ratio <= MOST_TIME else 'NOT MET'})",
        f"{figures.error:.1e}",
    )


HEADINGS = (
    "large operand",
    "total GB",
    "projected MB",
    "measured MB",
    "growth / budget",
    "control group",
    "phases",
    "times fetched",
    "seconds",
    "work alone: products + fetching",
    "ratio",
    "error",
)


def in_new_process(name: str, args: argparse.Namespace) -> Figures:
    """The figures of one case, measured in a fresh process."""
    options = [f"--{key}={getattr(args, key)}" for key in ("threads", "scale", "memory", "folder")]
    command = [sys.executable, __file__, "--case", name, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr.strip()[-600:]}")
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure every case and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--case", choices=CASES, help="measure one case in this process, print JSON")
    parser.add_argument("--only", choices=CASES, help="one case only")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the extents")
    parser.add_argument("--memory", default="1GB", help="the budget")
    parser.add_argument("--folder", default=None, help="where the file goes; the system's temporary folder by default")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(asdict(measure(args.case, args.threads, args.scale, args.memory, Path(args.folder)))))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        args.folder = folder
        rows = [row(name, in_new_process(name, args)) for name in CASES if args.only in (None, name)]
    print(markdown(HEADINGS, rows))


if __name__ == "__main__":
    main()
