"""Transforms of molecules and of the command that are stopped and go on from their checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tilewise as tw
from chemistry.molecules import WATER, mean_field
from engines.test_transform_checkpoint import KINDS, Stopped
from references import stored_bytes
from tilewise.chemistry import Transform, transform
from tilewise.cli import main
from tilewise.engines.threads import ThreadsEngine
from tilewise.errors import InputError, MemoryBudgetError

# Molecules and arrays


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field(WATER, "6-31g")


class Saying:
    """Takes lines of progress, and ends the run after some of them."""

    def __init__(self, most: int = 10**9) -> None:
        self.lines: list[str] = []
        self.most = most

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        if len(self.lines) >= self.most:
            raise Stopped


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told all the time."""
    monkeypatch.setattr("tilewise.chemistry.four_index.INTERVAL", 0.0)


def interrupt(path: Path, given: Any, coeffs: Any, schedule: str) -> tw.BlockTensor:
    """Stop a run shortly before its end; the result of an unbroken one."""
    whole = transform(given, coeffs, tile=4, schedule=schedule, progress=(said := Saying()))
    stop = Saying(len(said.lines) - 2)
    with pytest.raises(Stopped):
        transform(given, coeffs, tile=4, schedule=schedule, progress=stop, checkpoint=path)
    assert path.exists()
    return whole


@pytest.mark.parametrize("schedule", KINDS)
@pytest.mark.usefixtures("eager")
def test_a_molecule_goes_on_by_the_schedule_it_was_begun_with(water: Any, tmp_path: Path, schedule: str) -> None:
    path, coeffs = tmp_path / "c", water.mo_coeff
    whole = interrupt(path, water.mol, coeffs, schedule)
    job = Transform(water.mol, coeffs, checkpoint=path, tile=4, progress=(said := Saying()))
    plan = job.plan()
    assert plan.schedule == schedule
    assert [candidate.variant.schedule for candidate in plan.others] == [kind for kind in KINDS if kind != schedule]
    assert stored_bytes(job.kernel()) == stored_bytes(whole)
    assert list(tmp_path.iterdir()) == []
    if len(plan.variant.parts) != 1:
        assert any("goes on from" in line for line in said.lines)
        assert plan.runs[-1].flops < plan.flops


@pytest.mark.usefixtures("eager")
def test_what_is_another_transform_of_a_molecule(water: Any, tmp_path: Path) -> None:
    path, coeffs = tmp_path / "c", water.mo_coeff
    interrupt(path, water.mol, coeffs, "fused12-34")
    content = path.read_bytes()
    moved = water.mol.copy()
    moved.set_geom_(moved.atom_coords() * 1.001, unit="Bohr")
    others: list[dict[str, Any]] = [
        {"mol_or_mf": moved},
        {"mol_or_mf": water.mol.intor("int2e")},
        {"coeffs": -coeffs},
        {"coeffs": coeffs[:, 1:]},
        {"tol": 1.0},
        {"tile": 8},
    ]
    for other in others:
        with pytest.raises(InputError, match=r"c belongs to another transform .* Remove the file, or name another"):
            Transform(**{"mol_or_mf": water.mol, "coeffs": coeffs, "tile": 4, "checkpoint": path} | other).plan()
    with pytest.raises(InputError, match=r"schedule='unfused' was given, and .* begun with 'fused12-34'\. Expected"):
        Transform(water.mol, coeffs, checkpoint=path, tile=4, schedule="unfused").plan()
    assert path.read_bytes() == content


@pytest.mark.usefixtures("eager")
def test_a_budget_that_has_become_too_small(water: Any, tmp_path: Path) -> None:
    path = tmp_path / "c"
    interrupt(path, water.mol, water.mo_coeff, "unfused")
    need = Transform(water.mol, water.mo_coeff, checkpoint=path, tile=4).plan().peak_bytes
    text = (
        rf"begun with unfused \(.*needs {need} bytes .* The budget is {need - 1} bytes .*Give memory={need}, or remove"
    )
    with pytest.raises(MemoryBudgetError, match=text) as caught:
        Transform(water.mol, water.mo_coeff, checkpoint=path, tile=4, memory=need - 1).plan()
    assert (caught.value.budget, caught.value.least_bytes) == (need - 1, need)
    assert transform(water.mol, water.mo_coeff, checkpoint=path, tile=4, memory=need).norm() > 0


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("whole", [0, 1 << 22])
def test_arrays_are_known_by_their_elements(
    water: Any, tmp_path: Path, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewise.chemistry.four_index.WHOLE", whole)
    path, given = tmp_path / "c", water.mol.intor("int2e", aosym="s8")
    unbroken = interrupt(path, given, water.mo_coeff, "fused12-34")
    with pytest.raises(InputError, match="belongs to another transform"):
        Transform(given * 1.001, water.mo_coeff, checkpoint=path, tile=4).plan()
    found = transform(given, water.mo_coeff, checkpoint=path, tile=4)
    assert stored_bytes(found) == stored_bytes(unbroken)


def test_fitted_integrals_and_several_ranks_have_no_checkpoint(
    water: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"c' was given with fitted integrals\. Expected .* Leave it away"):
        Transform(water.density_fit(), water.mo_coeff, checkpoint=tmp_path / "c")
    several = ThreadsEngine(1)
    monkeypatch.setattr(ThreadsEngine, "ranks", 3)
    with pytest.raises(InputError, match=r"c' was given with 3 ranks\. Expected one process.*engine='threads'"):
        Transform(water.mol, water.mo_coeff, checkpoint=tmp_path / "c", engine=several)


# The command


def command(tmp_path: Path, *more: str) -> list[str]:
    (tmp_path / "water.xyz").write_text("3\n\nO 0 0 0\nH 0 0 0.96\nH 0.9 0 -0.3\n")
    options = [
        "--basis",
        "6-31g",
        "--tile",
        "4",
        "--out",
        str(tmp_path / "out.h5"),
        "--checkpoint",
        str(tmp_path / "c"),
    ]
    return ["transform", str(tmp_path / "water.xyz"), *options, *more]


@pytest.mark.usefixtures("eager")
def test_the_command_goes_on_with_the_orbitals_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = command(tmp_path, "--schedule", "fused12-34")
    monkeypatch.setattr("tilewise.cli.transform.say", said := Saying())
    assert main(arguments) == 0
    (tmp_path / "out.h5").unlink()
    monkeypatch.setattr("tilewise.cli.transform.say", Saying(len(said.lines) - 2))
    with pytest.raises(Stopped):
        main(arguments)
    assert {path.name for path in tmp_path.iterdir()} == {"water.xyz", "c", "c.orbitals"}
    monkeypatch.setattr("tilewise.cli.transform.say", said := Saying())
    assert main(arguments) == 0
    assert any("orbitals from" in line for line in said.lines)
    assert any("goes on from" in line for line in said.lines)
    assert {path.name for path in tmp_path.iterdir()} == {"water.xyz", "out.h5"}


def test_orbitals_of_another_molecule_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("tilewise.cli.transform.say", Saying(2))
        with pytest.raises(Stopped):
            main(command(tmp_path))
    kept = tmp_path / "c.orbitals"
    assert main(command(tmp_path, "--charge", "2")) == 2
    assert "c.orbitals has the orbitals of another molecule or basis. Expected" in capsys.readouterr().err
    kept.write_bytes(kept.read_bytes()[:-30])
    assert main(command(tmp_path)) == 2
    assert "c.orbitals cannot be read: " in capsys.readouterr().err
