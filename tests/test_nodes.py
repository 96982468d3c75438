"""What crosses between two nodes, in small: the benchmark runs, keeps its promises and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.processes import source_environment

pytest.importorskip("mpi4py")
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "nodes.py"
SMALL = [sys.executable, str(SCRIPT), "--gflop", "0.5", "--only", "large_n", "--limit", "200"]
NOT_ALLOWED = 77
PATIENCE = 300


def skip_if_not_allowed(code: int, why: str) -> None:
    if code == NOT_ALLOWED:
        pytest.skip(why.strip())


def namespaces_of(process: int) -> list[str]:
    """The namespaces that a run of the script has."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"tilewise-{process}-")]


def processes_in(namespace: str) -> list[str]:
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return done.stdout.split()


def started(script: subprocess.Popen[str]) -> list[str]:
    """The processes of a run, as soon as there are ranks on both nodes; none if it ends before."""
    end = time.monotonic() + PATIENCE
    while script.poll() is None and time.monotonic() < end:
        found = [processes_in(name) for name in namespaces_of(script.pid)]
        if len(found) == 2 and all(len(each) > 2 for each in found):
            return [process for each in found for process in each]
        time.sleep(0.05)
    return []


def gone(process: str) -> bool:
    """Whether a process ended, at the latest soon: somebody has to see that it did."""
    end = time.monotonic() + 10
    while Path("/proc", process).exists() and time.monotonic() < end:
        time.sleep(0.05)
    return not Path("/proc", process).exists()


def test_the_interface_carries_what_was_planned_and_a_node_aware_grid_no_more() -> None:
    done = subprocess.run(
        SMALL, env=source_environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    skip_if_not_allowed(done.returncode, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if "|" in line]
    header, _, *rows = cells
    found = [dict(zip(header, row, strict=True)) for row in rows]
    assert [each["grid"] for each in found] == ["row by row", "mapped", "chosen"]
    assert all(1 < float(each["interface / planned"]) < 1.1 for each in found)
    assert all(float(each["planned / V"]) == 1 for each in found[:2])
    assert float(found[1]["row by row / this"]) > 5
    assert done.stdout.endswith(": met\n")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A background job is started with Ctrl-C ignored, and so is what it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(shutil.which("ip") is None, reason="there is no `ip`")
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_run_that_is_ended(how: signal.Signals) -> None:
    script = subprocess.Popen(
        SMALL, env=source_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    running = started(script)
    script.send_signal(how)
    _, errors = script.communicate(timeout=PATIENCE)
    skip_if_not_allowed(script.returncode, errors)
    assert running
    assert script.returncode == 128 + how
    assert not namespaces_of(script.pid)
    assert all(map(gone, running))


def test_a_computer_without_namespaces_is_told_apart_from_a_failure() -> None:
    environment = source_environment() | {"PATH": os.devnull}
    done = subprocess.run(SMALL, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == NOT_ALLOWED
    assert done.stderr.startswith("Two nodes cannot be made here: ")
    assert not done.stdout
