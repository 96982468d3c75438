"""The command: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.processes import source_environment
from tilewise.cli import main
from tilewise.cli.running import with_options
from tilewise.errors import InputError
from tilewise.machine import Machine

BOX = Machine("box", 2, ((4, 1.0), (64, 16.0)), 12.0, 6.0, blas="some BLAS", is_measured=True)
PLAN = ["plan", "ijcd,cdab->ijab", "--space", "ij=4,6,5", "--space", "abcd=uniform:40:8"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tilewise"


def test_python_runs_the_package_as_a_command() -> None:
    command = [sys.executable, "-m", "tilewise", "--version"]
    made = subprocess.run(command, capture_output=True, text=True, env=source_environment(), check=False)
    assert made.returncode == 0
    assert made.stdout.startswith("tilewise ")


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("tilewise ")


@pytest.mark.parametrize("arguments", [[], ["dance"], ["plan"], ["energy"]])
def test_unknown_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("tilewise: ")
    assert told.count("\n") == 1
    assert "--help` for what is expected" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Give memory=100 or more", "Give --memory=100 or more"),
        ("memory='8XB' is no amount", "--memory='8XB' is no amount"),
        ("below conv_tol_normt=1e-05, conv_tol=1e-07.", "below --conv-tol-normt=1e-05, --conv-tol=1e-07."),
        ("raise max_cycle to 12", "raise --max-cycle to 12"),
        ("pass scratch= a folder", "pass --scratch a folder"),
        ("correct --memory=8 and --max-cycle", "correct --memory=8 and --max-cycle"),
        ("spin=2 asks. Leave spin= out.", "--spin=2 asks. Leave --spin out."),
        ("a.chk has spin=2. Expected spin=0.", "a.chk has spin=2. Expected spin=0."),
        ("files in max_cycle/run.h5 and max_cycle.h5", "files in max_cycle/run.h5 and max_cycle.h5"),
        ("the memory of the basis and its charge", "the memory of the basis and its charge"),
    ],
)
def test_messages_name_options_as_they_are_typed(text: str, told: str) -> None:
    assert with_options(text) == told


# plan


def test_plan_explains_without_a_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--density", "0.5,0.1", "--workers", "3"]) == 0
    out = capsys.readouterr().out
    assert "ijcd,cdab->ijab  (float64, 3 workers)" in out
    assert "15 x 15 x 40 x 40" in out
    assert "lower bound" in out
    assert "\x1b" not in out


def test_plan_of_many_operands_for_another_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = BOX.save(tmp_path / "box.json")
    assert main(["plan", "ia, ab, bj -> ij", "--space", "ij=4,6", "--space", "ab=5,5", "--machine", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Steps" in out
    assert "rates of box" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "ij,jk->ik", "--space", "ij=4"], "Index 'k' of 'ij,jk->ik' has no space"),
        (["plan", "ij->ji", "--space", "ij=4", "--space", "j=5"], "Index 'j' has two spaces"),
        (["plan", "ij->ji", "--space", "4,5"], "names no index"),
        (["plan", "ij->ji", "--space", "ij=4,x"], "has the tiles '4,x'"),
        (["plan", "ij->ji", "--space", "ij=uniform:4"], "has the tiles 'uniform:4'"),
        (["plan", "ij->ji", "--space", "ij=even:4:2"], "has the tiles 'even:4:2'"),
        (["plan", "ij->ji", "--space", "ij=4,0"], "has size 0"),
        ([*PLAN, "--density", "0.1,0.2,0.3"], "does not suit 2 operands"),
        ([*PLAN, "--density", "much"], "does not suit 2 operands"),
        ([*PLAN, "--density", "1.5"], "density is 1.5"),
        ([*PLAN, "--workers", "0"], "workers=0"),
        ([*PLAN, "--machine", "nowhere"], "no machine 'nowhere'"),
        (["plan", "ij,jk->iz", "--space", "ijkz=4"], "z"),
        (["energy", "nowhere.xyz"], "nowhere.xyz"),
    ],
)
def test_wrong_input_is_one_line_on_stderr(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("tilewise: ")
    assert err.count("\n") == 1


def test_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewise.cli.plan.tw.plan", interrupt)
    assert main(PLAN) == 130
    assert capsys.readouterr().err == "tilewise: interrupted\n"


# doctor


@pytest.fixture
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(progress: Any) -> Machine:
        progress("measuring something")
        return BOX

    monkeypatch.setattr("tilewise.engines.calibrate.calibrate", measure)
    monkeypatch.setattr("tilewise.chemistry.first_use.compile_loops", lambda: None)


@pytest.mark.usefixtures("no_measuring")
def test_doctor_measures_stores_and_says_where(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == "measuring something\ncompiling the loops of coupled cluster, if this is their first use\n"
    for word in ("numpy", "BLAS", "cores", "bit registers", "pyscf", "matplotlib", "blocks of 64", "copy"):
        assert word in out
    assert f"stored in {Machine.host_file()}" in out
    assert Machine.host_file().parent == cache
    assert Machine.measured() == BOX


@pytest.mark.usefixtures("no_measuring", "cache")
def test_what_was_measured_is_stored_before_loops_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewise.chemistry.first_use.compile_loops", interrupt)
    assert main(["doctor"]) == 130
    assert Machine.measured() == BOX


@pytest.mark.usefixtures("no_measuring")
def test_doctor_without_measuring_shows_what_is_stored(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert main(["doctor", "--no-measure"]) == 0
    assert "cautious guess" in capsys.readouterr().out
    assert not cache.exists()
    BOX.save()
    assert main(["doctor", "--no-measure"]) == 0
    assert f"read from {Machine.host_file()}" in capsys.readouterr().out


@pytest.mark.usefixtures("no_measuring")
def test_doctor_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["machine"]["name"] == "box"
    assert facts["stored"] == str(Machine.host_file())
    assert facts["packages"]["numpy"]
    assert facts["extras"]["matplotlib"]["install"] == "pip install 'tilewise[plot]'"


def test_errors_of_any_depth_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise InputError("First line.\nSecond line.")

    monkeypatch.setattr("tilewise.cli.plan.tw.plan", fail)
    assert main(PLAN) == 2
    assert capsys.readouterr().err == "tilewise: First line. Second line.\n"
