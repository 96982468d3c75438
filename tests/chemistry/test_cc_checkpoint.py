"""Checkpoints of amplitudes: damaged and continued runs end with the bits of one that never stopped."""

from __future__ import annotations

import errno
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewise as tw
from chemistry.solver_cases import DIGEST, Waves, bits
from tilewise.chemistry.checkpoint import Checkpoint
from tilewise.chemistry.diis import Amplitudes
from tilewise.chemistry.solver import Check, Options, Outcome, solve
from tilewise.errors import InputError, StorageError
from tilewise.tensors.files import Header


@pytest.fixture(scope="module")
def expected() -> Outcome:
    found = Waves().solve()
    assert found.converged
    assert found.cycles > 15
    return found


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the disk: what a killed process has written is there without."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.h5"


def tensor_files(path: Path) -> dict[int, set[str]]:
    """The amplitudes there are: iterations, and their names."""
    found: dict[int, set[str]] = {}
    for each in path.parent.iterdir():
        match = re.fullmatch(rf"{re.escape(path.name)}\.(\d{{6}})\.(\w+)\.h5", each.name)
        if match:
            found.setdefault(int(match[1]), set()).add(match[2])
        else:
            assert each.name in (path.name, f"{path.name}.previous")
    return found


# Going on


@pytest.mark.parametrize("stops", [[1], [2, 3], [5, 6, 7, 11], list(range(1, 12))], ids=str)
def test_a_run_that_was_stopped_ends_with_the_same_bits(path: Path, expected: Outcome, stops: list[int]) -> None:
    done = 0
    for most in stops:
        waves = Waves()
        found = waves.solve(path, most)
        assert found.cycles == most
        assert len(waves.updates) == most - done
        done = most
    waves = Waves()
    assert bits(waves.solve(path)) == bits(expected)
    assert len(waves.updates) == expected.cycles - done


@pytest.mark.parametrize(
    "more",
    [
        {"space": 0},
        {"space": 1},
        {"space": 2},
        {"space": 9},
        {"diis_on_disk": True},
        {"diis_start_cycle": 5},
        {"iterative_damping": 0.8},
    ],
    ids=str,
)
def test_every_kind_of_iteration_goes_on(path: Path, more: dict[str, Any]) -> None:
    options = {"diis_space": more.get("space", 4)} | {key: value for key, value in more.items() if key != "space"}
    waves = Waves()

    def run(most: int, checkpoint: Checkpoint | None) -> Outcome:
        chosen = Options(max_cycle=most, conv_tol=1e-9, conv_tol_normt=1e-8, **options)
        return solve(waves.start(), waves.energy, waves.update, chosen, checkpoint=checkpoint)

    whole = run(17, None)
    for most in (3, 4, 11, 17):
        found = run(most, Checkpoint(path, DIGEST))
    assert bits(found) == bits(whole)


def test_a_run_that_has_converged_is_not_repeated_and_goes_on_to_tighter_limits(path: Path, expected: Outcome) -> None:
    waves = Waves()
    loose = Options(conv_tol=1e-4, conv_tol_normt=1e-3, diis_space=4)
    first = solve(waves.start(), waves.energy, waves.update, loose, checkpoint=Checkpoint(path, DIGEST))
    assert first.converged
    again = Waves()
    found = solve(again.start(), again.energy, again.update, loose, checkpoint=Checkpoint(path, DIGEST))
    assert not again.updates
    assert bits(found) == bits(first)
    tight = Waves()
    assert bits(tight.solve(path)) == bits(expected)
    assert len(tight.updates) == expected.cycles - first.cycles


def test_diis_can_have_less_or_more_space_than_before(path: Path, expected: Outcome) -> None:
    for space, most in ((4, 5), (2, 8), (0, 10), (6, 200)):
        found = Waves().solve(path, most, space=space)
    assert found.converged
    assert found.e_corr == pytest.approx(expected.e_corr, abs=1e-7)


def test_amplitudes_that_no_generation_names_are_removed(path: Path) -> None:
    (path.parent / "run.h5.notes").write_text("of the user")
    (path.parent / "run.h5.000001.t2.h5x").write_text("too")
    Waves().solve(path, 15)
    for name in ("run.h5.notes", "run.h5.000001.t2.h5x"):
        (path.parent / name).unlink()
    found = tensor_files(path)
    # DIIS combines 4: three are remembered, and their steps need three before the oldest of these.
    assert set(found) == set(range(15 - 7, 16))
    assert all(names == {"t1", "t2"} for names in found.values())


def test_what_is_written_for_an_iteration_is_its_amplitudes_and_little_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, save = [], tw.BlockTensor.save

    def noted(self: tw.BlockTensor, where: Path) -> None:
        saved.append(where.name)
        save(self, where)

    monkeypatch.setattr(tw.BlockTensor, "save", noted)
    Waves().solve(path, 9)
    assert saved == [f"run.h5.{cycle:06d}.{name}.h5" for cycle in range(10) for name in ("t1", "t2")]


def test_remove_leaves_nothing(path: Path) -> None:
    checkpoint = Checkpoint(path, DIGEST)
    for _ in range(2):
        Waves().solve(path, 9)
        checkpoint.remove()
        assert list(path.parent.iterdir()) == []
        assert checkpoint.read(Waves().start()) is None
    checkpoint.remove()
    path.write_text("of the user")
    with pytest.raises(StorageError, match=r"run\.h5 is no checkpoint of amplitudes"):
        checkpoint.remove()
    assert path.read_text() == "of the user"


def test_without_its_manifest_a_run_begins_anew(path: Path, expected: Outcome) -> None:
    Waves().solve(path, 9)
    path.unlink()
    waves = Waves()
    assert bits(waves.solve(path)) == bits(expected)
    assert len(waves.updates) == expected.cycles
    assert min(tensor_files(path)) > 9


# What does not belong to the problem


def test_another_problem_is_refused(path: Path) -> None:
    Waves().solve(path, 3)
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    with pytest.raises(
        InputError, match=r"run\.h5 belongs to another calculation \(.*Remove the file to begin anew, or name another"
    ):
        Checkpoint(path, b"another").read(Waves().start())
    with pytest.raises(InputError, match=r"has amplitudes of CCSD\. Expected those of CCD\. Remove"):
        Waves().solve(path, name="CCD")
    with pytest.raises(InputError, match=r"has amplitudes t1, t2\. Expected t2\. Remove"):
        Checkpoint(path, DIGEST).read({"t2": Waves().start()["t2"]})
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before


@pytest.mark.parametrize("what", ["tiles", "irreps", "order", "type", "blocks"])
def test_amplitudes_of_another_structure_are_refused(path: Path, what: str) -> None:
    Waves().solve(path, 3)
    start = Waves().start()
    rows, cols = start["t1"].spaces
    dense = start["t1"].to_dense()
    if what == "tiles":
        cols = tw.Space([4, 3], irrep=[0, 1])
    elif what == "irreps":
        cols = tw.Space([3, 4], irrep=[1, 0])
    elif what == "order":
        cols = tw.Space.reordered(cols, [1, 0, 2, 3, 4, 5, 6])
    elif what == "type":
        dense = dense.astype(np.float32)
    elif what == "blocks":
        dense[:2, :3] = 0
    like = start | {"t1": tw.from_dense(dense, (rows, cols))}
    with pytest.raises(
        InputError, match=r"The amplitudes t1 of the checkpoint .*run\.h5 are .* Expected those of this"
    ):
        Checkpoint(path, DIGEST).read(like)


@pytest.mark.parametrize("content", [b"", b"something else", b"\x89HDF\r\n\x1a\n" * 100])
def test_a_file_of_something_else_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"run\.h5 is no checkpoint of amplitudes\. Expected .* Check the name"):
        Waves().solve(path)
    assert path.read_bytes() == content
    with pytest.raises(StorageError, match="in use by another job"):
        Checkpoint(path, DIGEST).write(None, Waves().start())  # type: ignore[arg-type]
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_wrong_arguments(tmp_path: Path) -> None:
    for digest in (b"", "text"):
        with pytest.raises(InputError, match="identifies no problem"):
            Checkpoint(tmp_path / "run.h5", digest)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="in a folder that does not exist"):
        Checkpoint(tmp_path / "no" / "run.h5", DIGEST)
    checkpoint = Checkpoint(tmp_path / "run.h5", DIGEST)
    with pytest.raises(InputError, match=r"Amplitudes are called '\.\./t', which goes into the name of a file"):
        checkpoint.write(None, {"../t": Waves().start()["t1"]})  # type: ignore[arg-type]


def test_two_jobs_cannot_use_one_checkpoint(path: Path) -> None:
    def second(_: Any) -> None:
        with pytest.raises(StorageError, match=r"run\.h5 is in use by another job\. Expected one job for each"):
            Checkpoint(path, DIGEST).read(Waves().start())

    first = Waves().solve(path, 4, callback=second)
    assert first.cycles == 4
    Waves().solve(path, 5)  # the first has let go


def test_a_job_does_not_write_over_one_that_began_in_the_meantime(path: Path) -> None:
    waves = Waves()
    late = Checkpoint(path, DIGEST)
    assert late.read(waves.start()) is None
    Waves().solve(path, 4)
    content = path.read_bytes()
    with pytest.raises(StorageError, match="in use by another job"):
        late.write(None, waves.start())  # type: ignore[arg-type]
    assert path.read_bytes() == content


# Damage


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1 << (at % 8)
    path.write_bytes(content)


def flip_element(path: Path, at: int) -> None:
    """Change an element of a tensor."""
    with path.open("rb") as file:
        header = Header.read(file.fileno(), path)
    flip(path, header.data_begin + at % header.data_bytes)


def cut(path: Path, at: int) -> None:
    os.truncate(path, at % path.stat().st_size)


def lose(path: Path, at: int) -> None:
    path.unlink()


def swap(path: Path, at: int) -> None:
    """Put a file of another kind there, whole."""
    tw.random((tw.Space([3]),), seed=at).save(path)


DAMAGES: tuple[Callable[[Path, int], None], ...] = (flip, cut, lose, swap)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("run.h5", damage) for damage in DAMAGES if damage is not lose),  # without it a run begins anew
        *((f"run.h5.000009.{name}.h5", damage) for name in ("t1", "t2") for damage in (*DAMAGES, flip_element)),
    ],
)
def test_a_damaged_newest_generation_falls_back_to_the_one_before(
    path: Path, expected: Outcome, name: str, damage: Callable[[Path, int], None]
) -> None:
    Waves().solve(path, 9)
    damage(path.parent / name, 700)
    waves = Waves()
    with pytest.warns(RuntimeWarning, match=r"The newest generation of the checkpoint .*goes on after iteration 8\."):
        found = waves.solve(path, 10)
    assert len(waves.updates) == 2
    assert bits(Waves().solve(path)) == bits(expected)  # without a warning
    assert found.cycles == 10


@pytest.mark.parametrize("damage", [*DAMAGES, flip_element])
@pytest.mark.parametrize(("number", "cycle"), [(7, 9), (9, 8)])
def test_what_an_iteration_has_made_is_left_if_both_generations_are_damaged(
    path: Path, number: int, cycle: int, damage: Callable[[Path, int], None]
) -> None:
    """Both need what DIIS remembers: without it fewer iterations are repeated than from the start."""
    Waves().solve(path, 9)
    damage(path.parent / "run.h5.000007.t1.h5", 700)
    if number == 9:
        damage(path.parent / "run.h5.000009.t2.h5", 700)
    waves = Waves()
    text = rf"Neither generation of the checkpoint .*run\.h5 is whole\. .* What iteration {cycle} has made is: the run"
    with pytest.warns(RuntimeWarning, match=text):
        found = waves.solve(path)
    assert found.converged
    assert len(waves.updates) == found.cycles - cycle
    for name, tensor in Waves().solve(path.with_name("new.h5")).amplitudes.items():
        np.testing.assert_allclose(found.amplitudes[name].to_dense(), tensor.to_dense(), rtol=0, atol=1e-8)


def test_damage_to_all_amplitudes_is_an_error(path: Path) -> None:
    Waves().solve(path, 9)
    for each in path.parent.glob("run.h5.0*.t2.h5"):
        cut(each, 700)
    text = r"Neither generation of the checkpoint .*run\.h5 is whole\. .* Remove run\.h5 to begin anew"
    with pytest.raises(StorageError, match=text):
        Waves().solve(path)
    path.unlink()  # as it says
    assert Waves().solve(path).converged


def test_damage_to_both_manifests_is_an_error(path: Path) -> None:
    Waves().solve(path, 9)
    flip(path, 2000)
    flip(path.with_name("run.h5.previous"), 2000)
    with pytest.raises(StorageError, match=r"run\.h5 does not match its checksum\. .*previous does not match its"):
        Waves().solve(path)


def test_after_falling_back_the_good_generation_is_kept_until_a_better_one_is_there(path: Path) -> None:
    Waves().solve(path, 9)
    good = path.with_name("run.h5.previous").read_bytes()
    flip(path, 1000)

    def kill(amplitudes: Amplitudes, check: Check) -> Amplitudes:
        raise KeyboardInterrupt

    waves = Waves()
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="after iteration 8"), pytest.raises(KeyboardInterrupt):
            solve(waves.start(), waves.energy, kill, waves.options, checkpoint=Checkpoint(path, DIGEST))
        assert path.with_name("run.h5.previous").read_bytes() == good


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files after some cycles."""
    folder = tmp_path_factory.mktemp("snapshot")
    Waves().solve(folder / "run.h5", 16)
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_noticed_or_does_no_harm(
    snapshot: dict[str, bytes], expected: Outcome, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    for name, content in snapshot.items():
        (folder / name).write_bytes(content)
    victim = folder / data.draw(st.sampled_from(sorted(snapshot)))
    data.draw(st.sampled_from(DAMAGES[:2]))(victim, data.draw(st.integers(0, 10**5)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = Waves().solve(folder / "run.h5")
    old = re.fullmatch(r"run\.h5\.(\d+)\.t\d\.h5", victim.name)  # which both generations need
    if old is None or int(old[1]) == 16:
        assert bits(found) == bits(expected)
    for name, tensor in Waves().solve(folder / "new.h5").amplitudes.items():
        np.testing.assert_allclose(found.amplitudes[name].to_dense(), tensor.to_dense(), rtol=0, atol=1e-7)


# Disks that fail


@pytest.mark.parametrize("call", [1, 3, 5, 7, 15])
@pytest.mark.parametrize("name", ["pwrite", "write", "fsync", "replace"])
def test_a_full_disk_leaves_the_generations_as_they_were(
    path: Path, expected: Outcome, name: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Waves().solve(path, 6)
    before, count, function = path.read_bytes(), [0], getattr(os, name)

    def failing(*arguments: Any) -> Any:
        count[0] += 1
        if count[0] == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return function(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing)
        with pytest.raises(StorageError, match=r"cannot be written: No space left on device\. .* Free space"):
            Waves().solve(path)
    assert not list(path.parent.glob(".*draft"))
    if call == 1:
        assert path.read_bytes() == before
    assert bits(Waves().solve(path)) == bits(expected)
