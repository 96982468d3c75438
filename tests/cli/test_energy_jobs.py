"""``tilewise energy``: runs that go on, reports, and ranks."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import lib

from cli.energy_cases import TIGHT, WATER, check_line, run
from engines.processes import ranks
from tilewise.chemistry.energy import Calculation
from tilewise.chemistry.integrals import hartree_fock
from tilewise.cli import energy, main
from tilewise.engines.base import current_engine
from tilewise.errors import InputError, Interrupted
from tilewise.reports.energy_page import EnergyPage
from tilewise.reports.live import Progress

# Going on


def test_the_same_command_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run(WATER, "--basis", "6-31g", "--method", "ccsd", "--reproducible")
    arguments = [WATER, "--basis", "6-31g", "--method", "ccsd", "--checkpoint", tmp_path / "run.h5", "--reproducible"]
    first = run(*arguments, "--max-cycle", "4", code=3)
    assert first["cycles"] == 4
    capsys.readouterr()
    second = run(*arguments)
    err = capsys.readouterr().err
    assert "CCSD goes on after cycle 4" in err
    assert second["cycles"] == whole["cycles"]
    assert len(second["timings"]) == whole["cycles"] - 4
    assert second["history"][:4] == first["history"]
    assert [second[name] for name in ("e_hf", "e_corr")] == [whole[name] for name in ("e_hf", "e_corr")]


def test_the_orbitals_that_were_kept_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [WATER, "--basis", "6-31g", "--method", "ccd", "--checkpoint", tmp_path / "run.h5"]
    first = run(*arguments, "--max-cycle", "6", code=3)

    def with_other_signs(mol: Any) -> Any:
        mf = hartree_fock(mol)
        mf.mo_coeff = mf.mo_coeff * np.where(np.arange(13) % 2, -1, 1)
        return mf

    monkeypatch.setattr("tilewise.chemistry.inputs.hartree_fock", with_other_signs)
    again = run(*arguments)
    assert again["cycles"] > first["cycles"]
    assert abs(again["history"][6]["change"]) < abs(again["history"][4]["change"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--basis", "sto-3g"], "has the orbitals of another molecule, basis, point group, or choice of frozen"),
        (["--basis", "6-31g", "--frozen", "1"], "has the orbitals of another molecule, basis, point group, or choice"),
        (["--basis", "6-31g", "--integrals", "df"], "belongs to another calculation"),
        (["--basis", "6-31g", "--method", "ccd"], "has amplitudes t1, t2. Expected t2"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    change: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(WATER), "--method", "ccsd", "--checkpoint", str(tmp_path / "run.h5"), "--max-cycle", "2"]
    run(*arguments, "--basis", "6-31g", code=3)
    capsys.readouterr()
    assert main(["energy", *arguments, *change]) == 2
    check_line(capsys, message)


def test_damaged_orbitals_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.h5.orbitals").write_bytes(b"nothing")
    arguments = ["energy", str(WATER), "--method", "ccsd", "--checkpoint", str(tmp_path / "run.h5")]
    assert main([*arguments, "--basis", "sto-3g"]) == 2
    check_line(capsys, "run.h5.orbitals cannot be read")


def test_a_signal_ends_an_iteration_that_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(WATER), "--basis", "6-31g", "--method", "ccsd", "--checkpoint", str(tmp_path / "run.h5")]

    def note(self: Progress, facts: dict[str, Any]) -> None:
        if facts["cycle"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "note", note)
        assert main(["energy", *arguments]) == 75
    check_line(capsys, "CCSD was stopped by SIGTERM after 3 cycles.")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    found = run(*arguments)
    assert "CCSD goes on after cycle 3" in capsys.readouterr().err
    assert found["e_corr"] == pytest.approx(run(*arguments[:5])["e_corr"], abs=1e-8)


def test_a_signal_ends_the_other_stages_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(mol: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr("tilewise.chemistry.inputs.hartree_fock", stop)
    checkpoint = tmp_path / "run.h5"
    assert main(["energy", str(WATER), "--method", "ccsd", "--checkpoint", str(checkpoint)]) == 75
    check_line(capsys, "SIGUSR1 came before the run had ended. Run the same command again: it goes on from")


def test_a_signal_does_not_lose_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes after the triples changes nothing: the energy is printed and written."""
    arguments = [WATER, "--basis", "sto-3g", "--method", "ccsd(t)", "--checkpoint", tmp_path / "run.h5"]
    told: list[str] = []
    finish = Calculation._result

    def stop(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        told.append("SIGTERM")
        return finish(*arguments)

    monkeypatch.setattr(Calculation, "_result", stop)
    found = run(*arguments, "--report", tmp_path / "report")
    assert told
    assert found["parts"]["e_t"] < 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert all(stage in page for stage in ("mean field", f"{found['cycles']} cycles", "triples"))


def test_reproducible_orbitals_are_made_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several add up in no fixed order."""
    threads: list[int] = []

    def note(mol: Any) -> Any:
        threads.append(lib.num_threads())
        return hartree_fock(mol)

    monkeypatch.setattr("tilewise.chemistry.inputs.hartree_fock", note)
    with lib.with_omp_threads(2):
        for option in ([], ["--reproducible"]):
            run(WATER, "--basis", "sto-3g", "--method", "ccsd", *option)
    assert threads == [2, 1]


def test_interruptions_have_codes(
    hydrogen: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, code in ((KeyboardInterrupt(), 130), (Interrupted("It was stopped."), 75)):

        def stop(mol: Any, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr("tilewise.chemistry.inputs.hartree_fock", stop)
        assert main(["energy", str(hydrogen)]) == code
        assert capsys.readouterr().err.splitlines()[-1].startswith("tilewise: ")


def test_ctrl_c_says_where_the_cycles_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["energy", str(WATER), "--basis", "6-31g", "--method", "ccsd", "--checkpoint", str(tmp_path / "run.h5")]

    def note(self: Progress, facts: dict[str, Any]) -> None:
        if facts["cycle"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "note", note)
        assert main(arguments) == 130
    check_line(capsys, "interrupted. Run the same command again: it goes on from the cycles that")
    assert main(arguments) == 0
    assert "CCSD goes on after cycle" in capsys.readouterr().err


# Reports


@pytest.mark.parametrize(("method", "pictures"), [("ccsd", 6), ("mp2", 1)])
def test_a_report_is_written(method: str, pictures: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "new" / "report"
    found = run(WATER, "--basis", "sto-3g", "--method", method, "--report", folder)
    assert f"report in {folder / 'index.html'}\n" in capsys.readouterr().out
    text = (folder / "index.html").read_text()
    assert text.count('src="data:image/') == pictures
    assert len(list(folder.glob("*.png"))) == len(list(folder.glob("*.svg"))) == pictures
    assert f"<b>{found['e_tot']:.10f}</b>" in text
    assert "tilewise</span> <span>energy</span>" in text


def test_a_report_takes_the_place_of_an_earlier_one(hydrogen: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "report"
    for basis in ("sto-3g", "6-31g"):
        run(hydrogen, "--basis", basis, "--report", folder)
        assert f"MP2/{basis}" in (folder / "index.html").read_text()


def test_the_same_command_writes_a_report_that_was_cut_off(
    hydrogen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "report"
    arguments = ["energy", str(hydrogen), "--basis", "6-31g", "--method", "ccsd", "--report", str(folder)]

    def cut(axes: object, path: Path) -> None:
        path.with_suffix(".png").write_bytes(b"\x89PNG")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("tilewise.reports.energy_page.save_plot", cut)
        assert main(arguments) == 2
    assert "The report cannot be written" in capsys.readouterr().err
    assert "This report is not finished" in (folder / "index.html").read_text()
    assert main(arguments) == 0
    assert "This report is not finished" not in (folder / "index.html").read_text()
    assert (folder / "convergence.png").stat().st_size > 1000


@pytest.mark.parametrize("method", ["mp2", "ccsd(t)"])
def test_a_report_is_made_by_the_engine_that_ran(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine has other workers, for which the budget may not do."""
    pytest.importorskip("matplotlib")
    made, make = [], energy._page

    def note(*arguments: Any) -> EnergyPage:
        made.append(current_engine().workers)
        return make(*arguments)

    monkeypatch.setattr(energy, "_page", note)
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        options = ["--basis", "sto-3g", "--method", method, "--workers", str(workers), "--report", str(folder)]
        assert main(["energy", str(WATER), *options]) == 0
        if method == "mp2":
            assert f"{workers} worker{'s' * (workers > 1)}" in (folder / "index.html").read_text()
    assert made == [1, 3]


def test_the_energy_is_told_before_the_report_is_made(
    hydrogen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")

    def fail(*arguments: object) -> None:
        raise InputError("There is no page.")

    monkeypatch.setattr(energy, "_page", fail)
    assert main(["energy", str(hydrogen), "--basis", "6-31g", "--report", str(tmp_path / "report")]) == 2
    out, err = capsys.readouterr()
    assert "E_corr(MP2)" in out
    assert err.splitlines()[-1] == "tilewise: There is no page."


# Ranks


@pytest.mark.slow
def test_one_rank_tells_for_all(tmp_path: Path, json_file: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("mpi4py")
    arguments = [str(WATER), "--basis", "6-31g", "--method", "ccsd", *TIGHT]
    options = ["--engine", "mpi", "--json", str(tmp_path / "two.json"), "--report", str(tmp_path / "report")]
    done = ranks(2, "-m", "tilewise", "energy", *arguments, *options, "--checkpoint", str(tmp_path / "run.h5"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("E_corr(CCSD)") == 1
    assert done.stderr.count("Hartree-Fock: ") == 1
    assert done.stderr.count("cycle = 1 ") == 1
    found = json.loads((tmp_path / "two.json").read_text())
    assert found["e_corr"] == pytest.approx(run(*arguments)["e_corr"], abs=1e-8)
    assert (tmp_path / "report" / "index.html").exists()
    again = run(*arguments, "--checkpoint", tmp_path / "run.h5")
    assert again["e_corr"] == pytest.approx(found["e_corr"], abs=1e-10)
    assert again["timings"] == []


@pytest.mark.slow
def test_a_report_of_amplitudes_that_ranks_share(tmp_path: Path) -> None:
    """Small tensors are kept by each rank; these are not, and to look at them alone would be to wait for ever."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("mpi4py")
    options = ["--basis", "cc-pvdz", "--no-symmetry", "--method", "ccsd", "--max-cycle", "2", "--workers", "1"]
    done = ranks(2, "-m", "tilewise", "energy", str(WATER), *options, "--engine", "mpi", "--report", str(tmp_path))
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("report in ") == 1
    assert (tmp_path / "index.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--basis", "nothing"], 2, "no basis set 'nothing'"),
        (["--basis", "sto-3g", "--method", "ccsd", "--max-cycle", "2"], 3, "CCSD has not converged"),
    ],
)
def test_an_error_on_ranks_is_one_line(options: list[str], code: int, message: str) -> None:
    pytest.importorskip("mpi4py")
    done = ranks(2, "-m", "tilewise", "energy", str(WATER), *options, "--engine", "mpi")
    assert done.returncode == code
    told = [line for line in done.stderr.splitlines() if line.startswith("tilewise: ")]
    assert len(told) == 1
    assert message in told[0]
    assert "Traceback" not in done.stderr
