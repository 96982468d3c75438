"""Ranks that fail under ``mpiexec``: the job ends soon and with a message, and leaves neither processes nor files."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines.processes import MPIEXEC, source_environment

pytestmark = pytest.mark.skipif(
    MPIEXEC is None or not Path("/proc/self/maps").exists(), reason="needs mpiexec, and Linux to see what is left"
)
SOON = 10.0
"""Seconds that a job has to end after its engine was made."""
PATIENCE = 100
"""Seconds after which a job is taken to hang; starting Python on all ranks is part of them."""
SETTLING = 3.0
"""Seconds that the launcher's own processes have to go away after it."""

BEGIN = """
import os, re, resource, signal, threading
from pathlib import Path

import numpy as np
import tilewise as tw

space = tw.Space([30] * 4)
with tw.engine("mpi") as engine:
    rank = engine.world.rank
    tensor = tw.random((space, space))
    tw.einsum("ij,jk->ik", tensor, tensor)  # compiles what is not compiled yet: the clock starts after it
    if rank == 0:
        found = re.findall("/dev/shm/mpich_[a-z]+_[0-9a-f_]+", Path("/proc/self/maps").read_text())
        Path(os.environ["TILEWISE_TEST_NOTES"]).write_text(" ".join(sorted(set(found))))
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that is over."""

    code: int
    """What the launcher returned."""
    out: str
    """What its ranks printed."""
    err: str
    """What they and the launcher complained about."""
    seconds: float
    """From when the first rank had its engine to the end."""
    processes: list[int]
    """Those of the job that are still there."""
    files: list[str]
    """Shared memory of the job that still has a name."""


def marked(mark: str) -> list[int]:
    """Processes that have the mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def remaining(mark: str) -> list[int]:
    """Processes with the mark after those that are about to go have gone."""
    end = time.monotonic() + SETTLING
    while (found := marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def ended_for_good(mark: str) -> Iterator[None]:
    """Whatever a test finds, its job does not outlive it."""
    try:
        yield
    finally:
        for process in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def run(count: int, script: str, notes: Path) -> Ended:
    """A script on so many ranks, and what it left behind."""
    mark = f"TILEWISE_TEST_MARK={uuid.uuid4().hex}"
    name, value = mark.split("=")
    environment = source_environment() | {name: value, "TILEWISE_TEST_NOTES": str(notes)}
    command = [str(MPIEXEC), "-n", str(count), sys.executable, "-c", BEGIN + script]
    with ended_for_good(mark):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        seconds = time.time() - notes.stat().st_mtime
        files = [file for file in notes.read_text().split() if Path(file).exists()]
        return Ended(done.returncode, done.stdout, done.stderr, seconds, remaining(mark), files)


def check_failed(done: Ended) -> None:
    """The job said so, did not take long, and left nothing."""
    assert done.code != 0, done
    assert done.seconds < SOON, done
    assert not done.processes, done
    assert not done.files, done


LOOP = """
    if rank == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.{signal})).start()
    for _ in range(1_000_000):
        tw.einsum("ij,jk->ik", tensor, tensor)
"""
MESSAGES = {
    "SIGKILL": "Killed (signal 9)",
    "SIGTERM": "signal 15",
    "SIGINT": "KeyboardInterrupt",
}


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("count", [2, 3])
def test_a_rank_that_gets_a_signal_ends_the_job(count: int, name: str, tmp_path: Path) -> None:
    done = run(count, LOOP.format(signal=name), tmp_path / "notes")
    check_failed(done)
    assert MESSAGES[name] in done.out + done.err
    assert name != "SIGINT" or f"Rank 1 of {count} failed" in done.err


GENERATOR = """
    def make(block):
        if rank == {rank}:  # ranks share the blocks that are made
            {fault}
        return np.ones((30, 30))

    lazy = tw.from_function(make, (space, space))
    for _ in range(1_000_000):
        tw.einsum("ij,jk->ik", lazy, tensor)
"""


@pytest.mark.parametrize(("count", "rank"), [(2, 0), (2, 1), (3, 2)])
def test_a_generator_that_raises_is_named_with_rank_and_block(count: int, rank: int, tmp_path: Path) -> None:
    done = run(count, GENERATOR.format(rank=rank, fault='raise ValueError("no such integral")'), tmp_path / "notes")
    check_failed(done)
    assert f"Rank {rank} of {count} failed" in done.err
    assert re.search(r"raised ValueError for block \(\d, \d\): no such integral", done.err)


LIMIT = """
    if rank == 1:
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (1 << 28), resource.RLIM_INFINITY))
"""


@pytest.mark.parametrize("count", [2, 3])
def test_a_rank_without_memory_is_named(count: int, tmp_path: Path) -> None:
    script = LIMIT + GENERATOR.format(rank=1, fault="np.ones(1 << 27)")
    done = run(count, script, tmp_path / "notes")
    check_failed(done)
    assert f"Rank 1 of {count} failed" in done.err
    assert re.search(r"for block \(\d, \d\)", done.err)
    assert "MemoryError" in done.err


BUDGET = """
    tw.einsum("ij,jk->ik", tensor, tensor, memory=1000)
"""


@pytest.mark.parametrize("count", [2, 3])
def test_a_budget_that_is_too_small_ends_all_ranks(count: int, tmp_path: Path) -> None:
    done = run(count, BUDGET, tmp_path / "notes")
    check_failed(done)
    assert f"of {count} failed" in done.err
    assert "MemoryBudgetError" in done.err


CAUGHT = """
    try:
        tw.einsum("ij,jk->ik", tensor, tensor, memory=1000)
    except tw.MemoryBudgetError as error:
        product = tw.einsum("ij,jk->ik", tensor, tensor)
        print(f"refused-{error.budget}-then-{product.pattern.nnz_blocks}")
"""


@pytest.mark.parametrize("count", [2, 3])
def test_a_budget_is_refused_on_all_ranks_alike_and_they_can_go_on(count: int, tmp_path: Path) -> None:
    done = run(count, CAUGHT, tmp_path / "notes")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("refused-1000-then-16") == count
    assert not done.processes
    assert not done.files


GOOD = """
    product = tw.einsum("ij,jk->ik", tensor, tensor)
    print(f"blocks-{product.pattern.nnz_blocks}")
"""


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_job_that_ends_well_says_nothing(count: int, tmp_path: Path) -> None:
    done = run(count, GOOD, tmp_path / "notes")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("blocks-16") == count
    assert not done.processes
    assert not done.files


def test_ranks_that_were_started_one_by_one_are_refused(tmp_path: Path) -> None:
    environment = source_environment() | {"PMI_SIZE": "4", "TILEWISE_TEST_NOTES": str(tmp_path / "notes")}
    command = [sys.executable, "-c", BEGIN]
    with contextlib.ExitStack() as stack:
        each = [
            stack.enter_context(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
            for _ in range(2)
        ]
        for process in each:
            _, err = process.communicate(timeout=PATIENCE)
            assert process.returncode != 0
            assert "The launcher says that it started 4 ranks (PMI_SIZE), but MPI sees one." in err
    assert not (tmp_path / "notes").exists()
