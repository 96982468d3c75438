"""Projected peak memory against measured growth of resident memory, on problems over 1 GB.

    python benchmarks/memory.py [--threads 2] [--scale 1.0]

Each problem runs in a fresh process: a tiny problem of the same kind first, so that libraries and thread
stacks are resident, then the growth of the peak while a plan is executed. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import tilewise as tw
from problems import tiling
from tables import markdown
from tilewise.tensors import BlockTensor

TOLERANCE = 0.10
SMALLEST_BYTES = 1_000_000_000
WARM_UP_SCALE = 0.05
RESET_PEAK = "5"  # see proc_pid_clear_refs(5)
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")

Operands = tuple[BlockTensor, BlockTensor]


@dataclass(frozen=True, slots=True)
class Case:
    """A contraction whose result takes over 1 GB at scale 1."""

    expression: str
    """The einsum."""
    operands: Callable[[float], Operands]
    """Makes the operands; the argument scales the result's extents."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What one process measured."""

    projected_bytes: int
    """The plan's peak."""
    measured_bytes: int
    """Growth of the peak of resident memory."""

    @property
    def ratio(self) -> float:
        """Projected over measured."""
        return self.projected_bytes / self.measured_bytes


def irregular(scale: float) -> Operands:
    """Matrices with tiles of 64 to 256."""
    rng = np.random.default_rng(1)
    row, inner, col = (
        tw.Space(tiling(extent, 64, 256, rng), name=name)
        for name, extent in (("i", int(14_000 * scale)), ("k", 1_000), ("j", int(14_000 * scale)))
    )
    return tw.random((row, inner), density=0.5, seed=1), tw.random((inner, col), density=0.5, seed=2)


def small_blocks(scale: float) -> Operands:
    """Matrices with tiles of 23."""
    tiles = max(2, int(523 * scale))
    counts = (("i", tiles), ("k", 100), ("j", tiles))
    row, inner, col = (tw.Space([23] * count, name=name) for name, count in counts)
    return tw.random((row, inner), density=0.2, seed=1), tw.random((inner, col), density=0.2, seed=2)


def fitted_integrals(scale: float) -> Operands:
    """Three-index integrals whose modes stand in another order than the result's."""
    occ = tw.Space.uniform(max(2, int(40 * scale)), tile=8, name="occ")
    vir = tw.Space.uniform(max(4, int(290 * scale)), tile=24, name="vir")
    aux = tw.Space.uniform(600, tile=60, name="aux")
    return tw.random((vir, aux, occ), density=0.7, seed=1), tw.random((aux, vir, occ), density=0.7, seed=2)


CASES: Mapping[str, Case] = {
    "irregular_64-256": Case("ik,kj->ij", irregular),
    "uniform_b23": Case("ik,kj->ij", small_blocks),
    "fitted_integrals": Case("api,pbj->ijab", fitted_integrals),
}


def status_bytes(field: str) -> int:
    """A field of the process's status that is given in kB."""
    found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if not found:
        raise SystemExit(f"{STATUS} has no field {field}: memory can be measured on Linux only")
    return 1024 * int(found.group(1))


def growth_of(action: Callable[[], object]) -> int:
    """Growth of the peak of resident memory while `action` runs."""
    ctypes.CDLL(None).malloc_trim(0)  # memory freed earlier but still resident would hide growth
    before = status_bytes("VmRSS")
    CLEAR_REFS.write_text(RESET_PEAK)
    result = action()
    peak = status_bytes("VmHWM")
    del result
    return peak - before


def measure(case: Case, threads: int, scale: float) -> Growth:
    """Warm up, plan, and measure the run; called in a process of its own."""
    with tw.engine("threads", workers=threads):
        small = case.operands(WARM_UP_SCALE)
        tw.execute(tw.plan(case.expression, *small), *small)
        a, b = case.operands(scale)
        plan = tw.plan(case.expression, a, b)
        measured = growth_of(lambda: tw.execute(plan, a, b))
    return Growth(int(plan.peak_bytes), measured)


def in_new_process(name: str, threads: int, scale: float) -> Growth:
    """The growth of one case, measured in a fresh process."""
    options = ["--case", name, "--threads", str(threads), "--scale", str(scale)]
    done = subprocess.run([sys.executable, __file__, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr.strip()[-400:]}")
    return Growth(**json.loads(done.stdout.splitlines()[-1]))


def row(name: str, growth: Growth) -> tuple[str, ...]:
    """One line of the table."""
    met = "met" if abs(growth.ratio - 1) <= TOLERANCE else "NOT MET"
    large = "" if growth.measured_bytes >= SMALLEST_BYTES else " (under 1 GB)"
    return (
        name,
        f"{growth.projected_bytes * 1e-6:.1f}",
        f"{growth.measured_bytes * 1e-6:.1f}",
        f"{growth.ratio:.3f}",
        met + large,
    )


def main() -> None:
    """Measure every case and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--case", choices=sorted(CASES), help="measure one case in this process, print JSON")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the result's extents")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(asdict(measure(CASES[args.case], args.threads, args.scale))))
        return
    rows = [row(name, in_new_process(name, args.threads, args.scale)) for name in CASES]
    print(markdown(("problem", "projected MB", "measured MB", "ratio", "within 10 %"), rows))


if __name__ == "__main__":
    main()
