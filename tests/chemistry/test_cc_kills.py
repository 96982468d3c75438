"""CCSD that is killed on some ranks and goes on with others ends with the bits of a run that never stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chemistry.molecules import WATER, mean_field
from engines.processes import MPIEXEC, PATIENCE, TESTS, source_environment

pytest.importorskip("mpi4py")
JOB = str(Path(__file__).parent / "killed_job.py")
LONGEST_SECONDS = {1: 1.0, 2: 1.5, 3: 3.0, 4: 4.0}
"""From the start of the solver to a kill on so many ranks, at first: about what a whole run takes."""
MOST_JOBS = 60
"""Jobs in which enough have to be killed; how long they live is fitted to this computer."""


def start(folder: Path, ranks: int, kind: str = "checkpoint") -> subprocess.Popen[bytes]:
    if MPIEXEC is None:
        pytest.skip("there is no mpiexec")
    environment = source_environment()
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(TESTS)])
    for each in [*folder.glob("pid.*"), *folder.glob("solving")]:
        each.unlink()
    command = [MPIEXEC, "-n", str(ranks), sys.executable, JOB, str(folder), kind]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def kill_after(job: subprocess.Popen[bytes], folder: Path, seconds: float) -> bool:
    """Kill all processes of a job at some time after its solver began; whether it was still running."""
    patience = time.monotonic() + PATIENCE
    while not (folder / "solving").exists() and job.poll() is None:
        assert time.monotonic() < patience, "the job did not begin"
        time.sleep(0.01)
    time.sleep(seconds)
    running = job.poll() is None and not (folder / "result.npz").exists()
    for each in folder.glob("pid.*"):
        try:
            os.kill(int(each.suffix[1:]), signal.SIGKILL)
        except ProcessLookupError:
            continue
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
    job.wait(PATIENCE)
    return running and not (folder / "result.npz").exists()


def finish(folder: Path, ranks: int, kind: str = "checkpoint") -> dict[str, Any]:
    """Run to the end; the result."""
    assert start(folder, ranks, kind).wait(PATIENCE) == 0
    with np.load(folder / "result.npz") as found:
        return {name: found[name].tobytes() for name in ("e_corr", "t1", "t2")} | {"cycles": int(found["cycles"])}


@pytest.fixture(scope="module")
def orbitals() -> dict[str, Any]:
    mf = mean_field(WATER, "6-31g")
    return {name: getattr(mf, name) for name in ("mo_coeff", "mo_energy", "mo_occ", "e_tot")}


def cycles_in(folder: Path) -> list[int]:
    """Numbers of the cycles that were finished, in the order in which that was written down."""
    diary = folder / "diary"
    return [int(line) for line in diary.read_text().split()] if diary.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_killed_and_continued_on_other_ranks(seed: int, tmp_path: Path, orbitals: dict[str, Any]) -> None:
    """Four kills or more, each on another number of ranks than the one before, and some in the midst of the cycles."""
    chance, counts, folder, kills, late = random.Random(seed), [1, 2, 3, 4], tmp_path / "killed", 0, 0
    longest = dict(LONGEST_SECONDS)
    chance.shuffle(counts)
    (tmp_path / "whole").mkdir()
    folder.mkdir()
    for name in ("whole", "killed"):
        np.savez(tmp_path / name / "orbitals.npz", **orbitals)
    whole = finish(tmp_path / "whole", 1, "alone")
    for _ in range(MOST_JOBS):
        count, before = counts[kills % 4], len(cycles_in(folder))
        if kill_after(start(folder, count), folder, chance.uniform(0, longest[count])):
            kills += 1
            if len(cycles_in(folder)) > before:
                late += 1
            else:
                longest[count] *= 1.2
        else:
            longest[count] *= 0.8
            check_end(folder, count, whole)
            for each in folder.iterdir():
                if each.name != "orbitals.npz":
                    each.unlink()
        if kills >= 4 and late >= 2:
            break
    else:
        pytest.fail(f"of {MOST_JOBS} jobs {kills} were killed, {late} of them in the midst of their cycles")
    check_end(folder, counts[kills % 4], whole)


def check_end(folder: Path, ranks: int, whole: dict[str, Any]) -> None:
    """Run to the end: the result is that of a run that never stopped, and no cycle was finished twice."""
    assert finish(folder, ranks) == whole
    cycles = cycles_in(folder)
    assert cycles == sorted(set(cycles))
