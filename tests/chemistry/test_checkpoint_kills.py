"""Runs that are killed, at any moment, go on from their checkpoint and end with the bits of one that never stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chemistry.solver_cases import DIGEST, Waves, bits
from engines.processes import TESTS, source_environment
from tilewise.chemistry.checkpoint import Checkpoint
from tilewise.chemistry.diis import Amplitudes
from tilewise.chemistry.solver import Check, Outcome, solve

KILLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from chemistry.test_checkpoint_kills import die_at_calls, die_at_random

os.fsync = lambda handle: None  # what a killed process has written is there without
kind, path, count, seed = sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
(die_at_calls if kind == "calls" else die_at_random)(path, count, seed)
"""


def run_kills(kind: str, path: Path, count: int, seed: int = 0) -> str:
    """Kill so many runs, each a fork of one process in which all is imported and no thread was started."""
    arguments = [sys.executable, "-c", KILLED, str(TESTS), kind, str(path), str(count), str(seed)]
    environment = source_environment() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def forked(work: Callable[[], object]) -> Iterator[int]:
    """Run something in a process of its own: its number first, then, if asked again, how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
    yield child
    yield os.waitpid(child, 0)[1]


def solve_with_diary(path: Path) -> None:
    """Go on, and note in a file what is begun and what is done; each note is there before anything else happens."""
    diary = os.open(path.with_name("diary"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    waves = Waves()

    def update(amplitudes: Amplitudes, check: Check) -> Amplitudes:
        os.write(diary, b"begin\n")
        return waves.update(amplitudes, check)

    def note(facts: dict[str, Any]) -> None:
        os.write(diary, f"done {facts['cycle']}\n".encode())

    checkpoint = Checkpoint(path, DIGEST)
    found = solve(waves.start(), waves.energy, update, waves.options, checkpoint=checkpoint, callback=note)
    path.with_name("bits").write_text(bits(found))


def check_diary(path: Path, kills: int, cycles: int) -> None:
    """No iteration that was done is begun again: all beginnings but those that a kill cut off are of another one."""
    lines = path.with_name("diary").read_text().splitlines()
    numbers = [int(line.split()[1]) for line in lines if line.startswith("done")]
    assert numbers == sorted(set(numbers)), "a cycle was done twice"
    begun = lines.count("begin")
    assert begun <= cycles + kills, f"{begun} cycles were begun"


def finish(path: Path, kills: int, whole: Outcome) -> None:
    """Go on to the end, without a kill, and compare with a run that was never stopped."""
    *_, code = forked(lambda: solve_with_diary(path))
    assert code == 0
    assert path.with_name("bits").read_text() == bits(whole), "other bits"
    check_diary(path, kills, whole.cycles)
    path.with_name("diary").unlink()


def die_at_random(path: Path, count: int, seed: int) -> None:
    """Kill runs at random moments, a few in each run's life."""
    chance, kills, whole = random.Random(seed), 0, Waves().solve()
    begin = time.monotonic()
    *_, code = forked(lambda: solve_with_diary(path))
    assert code == 0
    seconds = time.monotonic() - begin
    while kills < count:
        for each in (*path.parent.glob("run*"), *path.parent.glob("diary")):
            each.unlink()
        here = 0
        while here < 5:
            life = forked(lambda: solve_with_diary(path))
            child = next(life)
            time.sleep(chance.uniform(0, 0.3 * seconds))
            os.kill(child, signal.SIGKILL)
            code = next(life)
            if os.WIFEXITED(code):
                assert os.WEXITSTATUS(code) == 0
                break  # it was faster
            here += 1
        finish(path, here, whole)
        kills += here
    print(f"{kills} kills")


def die_at_calls(path: Path, count: int, stride: int) -> None:
    """End the process at the n-th call that changes files after a run's middle, for so many n."""
    whole, calls = Waves().solve(), ("open", "write", "pwrite", "fsync", "replace", "unlink")
    *_, code = forked(lambda: Waves().solve(path, 8))
    assert code == 0
    folder = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    for number in range(0, count * stride, stride):
        for each in path.parent.iterdir():
            each.unlink()
        for name, content in folder.items():
            (path.parent / name).write_bytes(content)

        def die(number: int = number) -> None:
            left = [number]

            def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
                def call(*arguments: Any, **named: Any) -> Any:
                    if left[0] == 0:
                        os._exit(9)
                    left[0] -= 1
                    return function(*arguments, **named)

                return call

            for name in calls:
                setattr(os, name, mortal(getattr(os, name)))
            solve_with_diary(path)

        *_, code = forked(die)
        assert os.WEXITSTATUS(code) == 9
        finish(path, 1, whole)
    print(f"{count} ends")


def test_killed_at_random_moments(tmp_path: Path) -> None:
    assert int(run_kills("random", tmp_path / "run.h5", 12).split()[0]) >= 12


@pytest.mark.parametrize(
    ("count", "stride"), [(10, 7), pytest.param(100, 1, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_ended_at_calls_that_change_files(tmp_path: Path, count: int, stride: int) -> None:
    """Two iterations make fewer than 100."""
    assert run_kills("calls", tmp_path / "run.h5", count, stride) == f"{count} ends\n"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_at_many_random_moments(tmp_path: Path, seed: int) -> None:
    assert int(run_kills("random", tmp_path / "run.h5", 60, seed).split()[0]) >= 60
