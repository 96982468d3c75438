"""The solver stopped by signals, killed, and on ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from chemistry.solver_cases import TIGHT, Toy, bits
from engines.processes import ranks
from tilewise.chemistry.checkpoint import Checkpoint
from tilewise.chemistry.diis import Amplitudes
from tilewise.chemistry.solver import Check, Options, Outcome, solve
from tilewise.errors import Interrupted

MOST_JOBS = 40
"""Jobs in which enough have to be killed; how long they live is fitted to this computer."""

# Signals


def test_a_signal_drops_the_iteration_it_comes_in(tmp_path: Path) -> None:
    expected = bits(Toy().solve())
    toy = Toy()

    def interrupted(amplitudes: Amplitudes, check: Check) -> Amplitudes:
        if toy.updates == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return toy.update(amplitudes, check)

    checkpoint = Checkpoint(tmp_path / "run.h5", b"toy")
    with pytest.raises(
        Interrupted, match=r"CCSD was stopped by SIGTERM after 4 cycles\. They are in .*run\.h5\. Run the same"
    ) as caught:
        solve(toy.start(), toy.energy, interrupted, TIGHT, checkpoint=checkpoint)
    assert caught.value.signal == "SIGTERM"
    again = Toy()
    found = again.solve(checkpoint=checkpoint)
    assert bits(found) == expected
    assert again.updates == found.cycles - 4


def test_before_the_first_iteration_is_done_the_start_is_written(tmp_path: Path) -> None:
    def stop(amplitudes: Amplitudes, check: Check) -> Amplitudes:
        raise Interrupted("", "SIGUSR1")

    toy, checkpoint = Toy(), Checkpoint(tmp_path / "run.h5", b"toy")
    with pytest.raises(Interrupted, match="stopped by SIGUSR1 after 0 cycles"):
        solve(toy.start(), toy.energy, stop, TIGHT, checkpoint=checkpoint)
    lines: list[str] = []
    other = toy.start() | {"t2": 0.5 * toy.start()["t2"]}
    found = solve(other, toy.energy, toy.update, TIGHT, checkpoint=checkpoint, log=lines.append)
    assert lines[0].startswith(f"CCSD goes on after cycle 0 from {tmp_path / 'run.h5'}  E_corr(CCSD) = ")
    assert bits(found) == bits(Toy().solve())


def test_an_interruption_without_a_checkpoint_is_passed_on() -> None:
    def stop(amplitudes: Amplitudes, check: Check) -> Amplitudes:
        raise Interrupted("mine")

    with pytest.raises(Interrupted, match="mine"):
        solve(Toy().start(), Toy().energy, stop)


# Ranks

ON_RANKS = """
import sys
from chemistry.test_solver_stops import report_on_ranks

report_on_ranks(*sys.argv[1:])
"""


def report_on_ranks(path: str, most: str, vectors: str, per_node: str, seconds: str = "") -> None:
    """Solve the toy on the ranks of this job, at most so many cycles, and print what came out.

    Blocks of the start have other owners than those of what an iteration makes. The last rank dies after some seconds
    if there are any. The first one notes in a diary beside the checkpoint which cycles are done.
    """
    from tilewise.plans import sharing

    nodes = None if per_node == "all" else int(per_node)
    with pytest.MonkeyPatch.context() as patch, tw.engine("mpi", workers=1, ranks_per_node=nodes) as engine:
        patch.setattr(sharing, "LEAST_BYTES", 0)
        patch.setattr(sharing, "LEAST_FLOPS", 0)
        if seconds and engine.rank == engine.ranks - 1:
            timer = threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True  # a job that is done does not wait for it
            timer.start()

        def note(facts: dict[str, Any]) -> None:
            if engine.rank == 0 and path != "none":
                with diary_of(Path(path)).open("a") as diary:
                    diary.write(f"{facts['cycle']}\n")

        toy = Toy()
        options = Options(int(most), 1e-12, 1e-11, diis_on_disk=vectors == "disk")
        checkpoint = None if path == "none" else Checkpoint(path, b"toy")
        start = {name: tw.redistribute(tensor, "column") for name, tensor in toy.start().items()}
        found = solve(start, toy.energy, toy.update, options, checkpoint=checkpoint, callback=note)
        assert engine.of_first(bits(found)) == bits(found)
        spread = found.amplitudes["t2"].arena.owner is not None
        if engine.rank == 0:
            print(json.dumps([bits(found), found.cycles, toy.updates, spread]))


def diary_of(path: Path) -> Path:
    return path.with_name("diary")


def cycles_done(path: Path) -> list[int]:
    """Numbers of the cycles that were finished, in the order in which that was written down."""
    diary = diary_of(path)
    return [int(line) for line in diary.read_text().split()] if diary.exists() else []


def on_ranks(count: int, path: Path | str, most: int, vectors: str = "memory", per_node: str = "all") -> Any:
    pytest.importorskip("mpi4py")
    return reported(count, ranks(count, "-c", ON_RANKS, str(path), str(most), vectors, per_node))


def reported(count: int, done: subprocess.CompletedProcess[str]) -> Any:
    """What a job on ranks has printed."""
    assert done.returncode == 0, done.stderr
    made, cycles, updates, spread = json.loads(done.stdout)
    assert spread == (count > 1)
    return made, cycles, updates


@pytest.mark.parametrize(
    ("count", "vectors", "per_node"),
    [
        (2, "disk", "all"),
        pytest.param(2, "disk", "1", marks=pytest.mark.slow),
        pytest.param(1, "disk", "all", marks=pytest.mark.slow),
        pytest.param(3, "memory", "all", marks=pytest.mark.slow),
        pytest.param(4, "memory", "2", marks=pytest.mark.slow),
        pytest.param(4, "disk", "all", marks=pytest.mark.slow),
    ],
)
def test_ranks_give_the_same_bits(count: int, vectors: str, per_node: str) -> None:
    expected = Toy().solve()
    assert on_ranks(count, "none", 100, vectors, per_node)[:2] == (bits(expected), expected.cycles)


@pytest.mark.parametrize(
    "sequence",
    [pytest.param((2, 1), id="two-one"), pytest.param((1, 4, 2, 3), id="several", marks=pytest.mark.slow)],
)
def test_a_run_goes_on_with_another_number_of_ranks(sequence: tuple[int, ...], tmp_path: Path) -> None:
    expected, path, before = Toy().solve(), tmp_path / "run.h5", 0
    for number, count in enumerate(sequence):
        most = 100 if number == len(sequence) - 1 else 7 * (number + 1)
        made, cycles, updates = on_ranks(count, path, most, ("memory", "disk")[number % 2], ("all", "1")[number // 2])
        assert updates == cycles - before
        before = cycles
    assert (made, cycles) == (bits(expected), expected.cycles)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_ranks_go_on_with_another_number_of_ranks(seed: int, tmp_path: Path) -> None:
    """Three kills or more at random moments, two of them or more in the midst of the cycles."""
    pytest.importorskip("mpi4py")
    chance, path, expected = np.random.default_rng(seed), tmp_path / "run.h5", Toy().solve()
    kills, inside, longest, jobs = 0, 0, 1.0, 0
    while kills < 3 or inside < 2:
        jobs += 1
        assert jobs <= MOST_JOBS, f"{kills} kills, {inside} of them in the midst of the cycles"
        before, count = cycles_done(path), int(chance.integers(1, 5))
        life = str(chance.uniform(0, longest))
        done = ranks(count, "-c", ON_RANKS, str(path), "100", "memory", "all", life)
        if done.returncode == 0:
            check_end(reported(count, done), path, before, expected)
            for each in tmp_path.iterdir():
                each.unlink()
            longest *= 0.7
            continue
        assert "Traceback" not in done.stderr, done.stderr
        kills += 1
        cycles = len(cycles_done(path))
        inside += len(before) < cycles < expected.cycles
        longest *= 1.0 if cycles > len(before) else 1.3
    before = cycles_done(path)
    check_end(on_ranks(int(chance.integers(1, 5)), path, 100), path, before, expected)


def check_end(told: Any, path: Path, before: list[int], expected: Outcome) -> None:
    """A job has ended as one that never stopped, and repeated no cycle that an earlier one had finished."""
    made, cycles, updates = told
    assert (made, cycles) == (bits(expected), expected.cycles)
    assert updates <= cycles - max(before, default=0)
    done = cycles_done(path)
    assert done == sorted(set(done))


POISONED_RANKS = """
import numpy as np
import tilewise as tw
from chemistry.solver_cases import Toy
from tilewise.chemistry.solver import check_finite, solve
from tilewise.errors import NonFiniteError
from tilewise.plans import sharing

sharing.LEAST_BYTES = sharing.LEAST_FLOPS = 0
with tw.engine("mpi", workers=1) as engine:
    toy = Toy()
    def poisoned(amplitudes, check):
        new = toy.update(amplitudes, check)
        if toy.updates == 3 and engine.rank == 1:
            new["t2"].arena.own[0] = np.nan
        return new | {"t2": tw.einsum("iajb->iajb", new["t2"])}
    try:
        solve(toy.start(), toy.energy, poisoned)
    except NonFiniteError as error:
        print(f"{toy.updates} {error.tensor} {error.block}\\n", end="", flush=True)
"""


def test_ranks_find_numbers_that_are_not_finite_together() -> None:
    pytest.importorskip("mpi4py")
    done = ranks(2, "-c", POISONED_RANKS)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.startswith("3 t2 (")
