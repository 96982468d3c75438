"""DBCSR through the C++ driver that build.sh makes: settings, command lines, results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from peers.fair_blas import SystemBlas
from peers.mkl import mkl_path

TIMEOUT_SECONDS = 1200
# DBCSR's own memory pools, and a C library that keeps freed memory instead of returning it.
MEMORY_SETTINGS: Mapping[str, str] = {
    "DBCSR_USE_MEMPOOLS_CPU": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "MALLOC_ARENA_MAX": "1",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run DBCSR."""

    label: str
    """Name in the tables."""
    executable: Path
    """The driver."""
    ranks: int
    """MPI ranks."""
    threads: int
    """OpenMP threads per rank."""
    packaged: bool
    """DBCSR as Debian packages it, with the BLAS it depends on."""
    preload: Path | None = None
    """A BLAS to use instead of the system's."""

    def command(self, problem: Path, reps: int, budget: float) -> list[str]:
        """Arguments that run this setting on a problem file."""
        launch = [launcher(), "--oversubscribe", "--bind-to", "none", "-n", str(self.ranks)]
        if os.geteuid() == 0:
            launch.insert(1, "--allow-run-as-root")
        if self.preload:
            launch += ["-x", f"LD_PRELOAD={self.preload}"]
        return [*launch, str(self.executable), str(problem), f"--reps={reps}", f"--budget={budget}"]

    def environment(self, blas: SystemBlas) -> dict[str, str]:
        """Variables of this setting; the BLAS below DBCSR's threads stays on one thread."""
        single = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MKL_THREADING_LAYER": "SEQUENTIAL"}
        return {"OMP_NUM_THREADS": str(self.threads), **single, **MEMORY_SETTINGS, **blas.environment}


def settings(build: Path, threads: int) -> Iterator[Setting]:
    """The settings this machine can run."""
    plain, wrapped, mkl = build / "dbcsr_multiply", build / "dbcsr_multiply_xsmm", mkl_path()
    if plain.exists():
        yield Setting(f"dbcsr r1t{threads}", plain, 1, threads, packaged=True)
        if threads > 1:
            yield Setting(f"dbcsr r{threads}t1", plain, threads, 1, packaged=True)
        if mkl:
            yield Setting(f"dbcsr+mkl r1t{threads}", plain, 1, threads, packaged=False, preload=mkl)
    if wrapped.exists():
        yield Setting(f"dbcsr+xsmm r1t{threads}", wrapped, 1, threads, packaged=False)


def launcher() -> str:
    """Open MPI's mpirun, which the drivers need; a virtual environment may hold another MPI's."""
    return shutil.which("mpirun.openmpi") or shutil.which("mpirun") or ""


def missing(build: Path) -> str:
    """Why no setting can run; empty where some can."""
    if not launcher():
        return "mpirun is not installed"
    if not (build / "dbcsr_multiply").exists():
        return f"no driver in {build}: run benchmarks/peers/build.sh"
    return ""


class DriverFailed(Exception):
    """The driver gave no result; the text is the end of its error output."""


def run(setting: Setting, problem: Path, blas: SystemBlas, reps: int, budget: float) -> dict[str, Any]:
    """Times in seconds and the checksum, as the driver's JSON line gives them."""
    environment = {**os.environ, **setting.environment(blas)}
    command = setting.command(problem, reps, budget)
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DriverFailed(f"over {TIMEOUT_SECONDS} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise DriverFailed(f"exit {done.returncode}: {done.stderr.strip()[-200:]}")
    return cast("dict[str, Any]", json.loads(lines[-1]))
