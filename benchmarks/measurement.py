"""Measure one problem: every contender in turns, samples and checksums side by side."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from peers import dbcsr
from peers.fair_blas import SystemBlas
from peers.process import Worker, WorkerFailed
from problems import Problem, save
from timing import wait_quiet

OURS = "tilewise"
DENSE = ("dense_openblas", "dense_mkl")
PYTHON_PEERS = ("numpy_blocks", "numpy_batched", "torch_blocks", "torch_batched", "scipy_bsr", "mkl_bsr")
DBCSR = "dbcsr"
LEAST_SAMPLES = 3
# Idle threads of a BLAS spin for a while after a call. They are told to give up sooner, which no contender feels
# within a call, and the next contender starts when all have.
SPIN_MILLISECONDS = "20"
SPIN_LOG2_CYCLES = "24"
PAUSE_SECONDS = 0.05
CHECKSUM_TOLERANCE = 1e-8


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run measures."""

    peers: tuple[str, ...]
    """Which of `PYTHON_PEERS` and `DBCSR` take part."""
    threads: int
    """Threads of every contender, or ranks of DBCSR."""
    reps: int
    """Samples per contender and problem."""
    budget_seconds: float
    """A contender that used more on one problem stops after `LEAST_SAMPLES` samples, and after its first run if that
    alone took longer."""
    wait_seconds: float
    """How long to wait for a quiet machine, twice per problem."""
    build: Path
    """Where the DBCSR drivers are."""
    folder: Path
    """Where problem files are written."""
    blas: SystemBlas
    """The system's BLAS with the core type it is given."""


@dataclass(slots=True)
class Record:
    """All samples of one problem."""

    problem: str
    """Name of the problem."""
    flops: int
    """Operations of the block products."""
    products: int
    """Number of block products."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Samples by contender; ours are `tilewise.plan`, `tilewise.execute` and `tilewise.einsum`."""
    dense_flops: dict[str, int] = field(default_factory=dict)
    """Operations of one sample of each dense contender."""
    packaged: list[str] = field(default_factory=list)
    """The DBCSR settings that count as Debian's."""
    checksums: dict[str, list[float]] = field(default_factory=dict)
    """Checksums by contender, one per action and one after the last sample."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a contender did not take part."""
    foreign_cores: list[float] = field(default_factory=list)
    """Processors that others used when the machine was found quiet, or waiting was given up."""

    def add(self, label: str, seconds: float) -> None:
        """Keep one sample."""
        self.seconds.setdefault(label, []).append(seconds)

    def add_checksum(self, label: str, checksum: float | None) -> None:
        """Keep a checksum, where there is one."""
        if checksum is not None:
            self.checksums.setdefault(label, []).append(checksum)

    def mismatches(self) -> list[str]:
        """Contenders whose checksum is not the median of all."""
        everything = sorted(value for values in self.checksums.values() for value in values)
        if not everything:
            return []
        middle = everything[len(everything) // 2]
        limit = CHECKSUM_TOLERANCE * max(1.0, abs(middle))
        return [
            f"{self.problem}: checksum of {label} is {value!r}, of most {middle!r}"
            for label, values in self.checksums.items()
            for value in values
            if not abs(value - middle) <= limit
        ]

    def as_json(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self)


@dataclass(slots=True)
class Runner:
    """One worker and what it has used so far."""

    worker: Worker
    """The process."""
    spent: float = 0.0
    """Seconds its samples took."""
    samples: int = 0
    """How many rounds it took part in."""

    def label(self, action: str) -> str:
        """Name of an action's samples."""
        return f"{OURS}.{action}" if self.worker.name == OURS else self.worker.name

    def warm_up(self, record: Record, budget: float) -> None:
        """Run each action once and keep the checksums; the times only where there will be no others."""
        for action in self.worker.actions:
            seconds = self.worker.seconds(action)
            self.spent += seconds
            record.add_checksum(self.label(action), self.worker.checksum())
            if seconds > budget and self.worker.name != OURS:  # ours compiles in its first run
                record.add(self.label(action), seconds)
                self.samples = LEAST_SAMPLES

    def sample(self, record: Record, budget: float) -> None:
        """Run each action once, unless the budget is spent."""
        if self.samples >= LEAST_SAMPLES and self.spent > budget:
            return
        for action in self.worker.actions:
            time.sleep(PAUSE_SECONDS)
            seconds = self.worker.seconds(action)
            record.add(self.label(action), seconds)
            self.spent += seconds
        self.samples += 1


def measure(problem: Problem, settings: Settings) -> Record:
    """Time all contenders on one problem.

    Twice: half of the rounds, then half of the samples of DBCSR, whose driver is a process that times itself.
    """
    record = Record(problem.name, problem.flops, problem.products)
    path = save(problem, settings.folder)
    with ExitStack() as stack:
        runners = list(_start(path, settings, record, stack))
        for reps in (settings.reps - settings.reps // 2, settings.reps // 2):
            record.foreign_cores.append(wait_quiet(settings.wait_seconds))
            _rounds(runners, reps, record, settings)
            if DBCSR in settings.peers and reps:
                _run_dbcsr(path, settings, record, reps)
        for runner in runners:
            record.add_checksum(runner.label(runner.worker.actions[-1]), runner.worker.checksum())
    path.unlink()
    return record


def _environment(name: str, settings: Settings) -> Mapping[str, str]:
    """Threads of the libraries; ours sets its own."""
    if name == OURS:
        return {}
    threads = str(settings.threads)
    variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        **dict.fromkeys(variables, threads),
        "KMP_BLOCKTIME": SPIN_MILLISECONDS,
        "OPENBLAS_THREAD_TIMEOUT": SPIN_LOG2_CYCLES,
    }


def _start(path: Path, settings: Settings, record: Record, stack: ExitStack) -> Iterator[Runner]:
    """Workers of all contenders that can take the problem, warmed up."""
    for name in (*DENSE, OURS, *(peer for peer in PYTHON_PEERS if peer in settings.peers)):
        try:
            worker = stack.enter_context(Worker(name, path, settings.threads, _environment(name, settings)))
            if worker.skipped:
                record.skipped[name] = worker.skipped
                continue
            runner = Runner(worker)
            runner.warm_up(record, settings.budget_seconds)
        except WorkerFailed as failure:
            if name == OURS:
                raise
            record.skipped[name] = str(failure)
            continue
        if name in DENSE:
            record.dense_flops[name] = worker.flops
        yield runner


def _rounds(runners: Iterable[Runner], count: int, record: Record, settings: Settings) -> None:
    for _ in range(count):
        for runner in runners:
            runner.sample(record, settings.budget_seconds)


def _run_dbcsr(path: Path, settings: Settings, record: Record, reps: int) -> None:
    if why := dbcsr.missing(settings.build):
        record.skipped[DBCSR] = why
        return
    for setting in dbcsr.settings(settings.build, settings.threads):
        time.sleep(PAUSE_SECONDS)
        try:
            result = dbcsr.run(setting, path, settings.blas, reps, settings.budget_seconds / 2)
        except dbcsr.DriverFailed as failure:
            record.skipped[setting.label] = str(failure)
            continue
        record.seconds.setdefault(setting.label, []).extend(result["seconds"])
        record.add_checksum(setting.label, result["checksum"])
        if setting.packaged and setting.label not in record.packaged:
            record.packaged.append(setting.label)
