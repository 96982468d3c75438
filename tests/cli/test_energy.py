"""``tilewise energy``: energies from every kind of input, what is written, and how runs end."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from pyscf import dft, gto, scf
from pyscf.tools import fcidump

from chemistry.cc_cases import ccsd_energies, reference_energy
from cli.energy_cases import TIGHT, WATER, atoms, check_line, closed, least_memory, run, water
from tilewise.cli import main
from tilewise.cli.running import with_options

# Energies


@pytest.mark.parametrize(
    ("method", "kind"), [("mp2", "MP2"), ("drCCD", "DRCCD"), ("ccd", "CCD"), ("CCSD", "CCSD"), ("ccsd_t", "CCSD_T")]
)
@pytest.mark.parametrize(("frozen", "number"), [([], 0), (["--frozen", "core", "--no-symmetry"], 1)])
def test_energies_are_those_of_pyscf(method: str, kind: str, frozen: list[str], number: int) -> None:
    mf = water()
    found = run(WATER, "--basis", "6-31g", "--method", method, *frozen, *(TIGHT if method != "mp2" else []))
    assert found["e_hf"] == pytest.approx(mf.e_tot, abs=1e-8)
    assert found["e_corr"] == pytest.approx(reference_energy(kind, mf, number), abs=1e-8)
    assert found["e_tot"] == found["e_hf"] + found["e_corr"]
    assert found["nfrozen"] == number
    assert found["group"] == ("C1" if frozen else "C2v")


@pytest.mark.parametrize("spills", [False, True])
@pytest.mark.parametrize("options", [[], ["--tile", "3", "--reproducible", "--diis-space", "4"]])
def test_energies_do_not_depend_on_how_they_are_computed(
    options: list[str], spills: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [WATER, "--basis", "6-31g", "--method", "ccsd", "--frozen", "0,12", *TIGHT, *options]
    found = run(*arguments, *(["--memory", least_memory(capsys, *arguments)] if spills else []))
    assert found["e_corr"] == pytest.approx(ccsd_energies(water(), [0, 12])["CCSD"], abs=1e-8)
    assert (found["nfrozen"], found["nocc"], found["nvir"]) == (2, 4, 7)
    assert bool(found["plan"]["on_disk"] or found["plan"]["diis_on_disk"]) == spills


def test_fitted_and_decomposed_integrals(capsys: pytest.CaptureFixture[str]) -> None:
    exact, fitted, decomposed, coarse = (
        run(WATER, "--basis", "6-31g", "--method", "mp2", "--integrals", *kind)["e_corr"]
        for kind in (["exact"], ["df"], ["cholesky"], ["cholesky", "--cholesky-tol", "1e-2"])
    )
    assert decomposed == pytest.approx(exact, abs=1e-7)
    assert 1e-5 < abs(coarse - exact) < 1e-2
    assert 1e-7 < abs(fitted - exact) < 1e-3
    assert main(["energy", str(WATER), "--auxbasis", "weigend"]) == 2
    assert "--auxbasis='weigend' was given with --integrals='exact'" in capsys.readouterr().err


# Inputs


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Water as a checkpoint and as an FCIDUMP file, and what is refused."""
    folder = tmp_path_factory.mktemp("inputs")
    mol = gto.M(atom=atoms(), basis="6-31g", symmetry=True, verbose=0)
    named = {name: folder / name for name in ("hf.chk", "ks.chk", "triplet.chk", "water.fcidump", "cut.fcidump")}
    mf = closed(scf.RHF(mol)).set(chkfile=str(named["hf.chk"])).run(conv_tol=1e-11)
    closed(dft.RKS(mol)).set(chkfile=str(named["ks.chk"]), xc="pbe").run()
    open_shell = gto.M(atom="O 0 0 0; O 0 0 1.2", basis="sto-3g", spin=2, verbose=0)
    closed(scf.UHF(open_shell)).set(chkfile=str(named["triplet.chk"])).run()
    fcidump.from_mo(mf.mol, str(named["water.fcidump"]), mf.mo_coeff, tol=0)
    text = named["water.fcidump"].read_text()
    named["cut.fcidump"].write_text(text[: len(text) // 2])
    return named


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("hf.chk", "a checkpoint of PySCF", ["--frozen", "core"]),
        ("hf.chk", "a checkpoint of PySCF", ["--frozen", "1", "--no-symmetry"]),
        ("water.fcidump", "an FCIDUMP file", ["--frozen", "1"]),
        ("water.fcidump", "an FCIDUMP file", ["--frozen", "0,", "--no-symmetry"]),
    ],
)
def test_other_inputs_give_the_same_energy(
    files: dict[str, Path], name: str, kind: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(files[name], "--method", "ccsd", *options, *TIGHT)
    mf = water()
    assert found["e_hf"] == pytest.approx(mf.e_tot, abs=1e-8)
    assert found["e_corr"] == pytest.approx(ccsd_energies(mf, 1)["CCSD"], abs=1e-8)
    assert found["nbasis"] == 13
    assert (found["group"] == "C1") == ("--no-symmetry" in options)
    assert f"Input: {files[name]}, taken as {kind}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hf.chk", ["--basis", "6-31g"], "--basis='6-31g' was given with a checkpoint of PySCF"),
        ("hf.chk", ["--charge", "0"], "--charge=0 was given with a checkpoint of PySCF"),
        ("water.fcidump", ["--basis", "6-31g"], "--basis='6-31g' was given with an FCIDUMP file"),
        ("water.fcidump", ["--frozen", "core"], "--frozen='core' was given with an FCIDUMP file"),
        ("water.fcidump", ["--frozen", "5"], "--frozen=5 leaves none of the 5 occupied orbitals"),
        ("water.fcidump", ["--integrals", "df"], "no molecule"),
        ("cut.fcidump", [], "cut.fcidump"),
        ("ks.chk", [], "they come from Kohn-Sham"),
        ("triplet.chk", [], "triplet.chk has spin=2. Expected a closed shell"),
    ],
)
def test_other_inputs_are_refused(
    files: dict[str, Path], name: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["energy", str(files[name]), *options]) == 2
    check_line(capsys, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no file"),
        ("", "is empty. Expected the atoms of a molecule (.xyz), a checkpoint of PySCF or an FCIDUMP file"),
        ("folder", "is a folder"),
        ("&FCI NORB=2,NELEC=2,\n", "header of"),
        ("&FCI NORB=1, NELEC=2, MS2=0, /\n0.75 1 1 x 1\n0.5 0 0 0 0\n", "in.dat"),
        ("&FCI NORB=2, NELEC=3, MS2=1, /\n0.5 0 0 0 0\n", "NELEC=3. Expected an even number"),
        ("&FCI NORB=2, NELEC=2, MS2=2, /\n0.5 0 0 0 0\n", "MS2=2: an open shell"),
        ("\x89HDF\r\n\x1a\nnothing", "is no checkpoint of PySCF, or is damaged"),
        ("3\n\nH 0 0 0\n", "announces 3 atoms"),
        ("1\n\nXx 0 0 0\n", "names the element 'Xx'"),
        ("1\n\nHe 0 0 0\n0", "line 4 holds more"),
    ],
)
def test_a_damaged_file_is_one_line(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.dat"
    if content == "folder":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content.encode("latin-1"))
    assert main(["energy", str(file), "--method", "ccsd"]) == 2
    check_line(capsys, message, alone=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "magic"], "no method 'magic'. Expected one of: mp2, drccd, ccd, ccsd, ccsd(t)"),
        (["--method", "ccsdt"], "triples are there by perturbation theory, as ccsd(t)"),
        (["--basis", "nothing"], "no basis set 'nothing' for the element H"),
        (["--basis", "/etc/hostname"], "is a file or no name"),
        (["--charge", "1"], "9 electrons at charge 1, an odd number"),
        (["--charge", "10"], "--charge=10 leaves 0 electrons"),
        (["--charge", "-40"], "functions cannot hold 50 electrons"),
        ([f"--charge=-{'8' * 20}"], "The total charge is beyond 1000000"),
        ([f"--charge=-{'9' * 4300}"], "The total charge is beyond 1000000"),
        (["--spin", "2"], "--spin=2 asks for 2 unpaired electrons. Expected 0: the methods here are for closed shells"),
        (["--frozen", "5"], "--frozen=5 leaves none of the 5 occupied orbitals"),
        (["--frozen", "-1"], "frozen=-1 is negative"),
        (["--frozen", "0,99"], "frozen=[0, 99] does not list orbitals"),
        (["--frozen", "shell"], "frozen='shell' is unknown"),
        (["--frozen=--1"], "frozen='--1' is unknown"),
        (["--frozen=0,1-"], "frozen='0,1-' is unknown"),
        ([f"--frozen={'9' * 5000}"], "is unknown"),
        (["--memory", "8XB"], "--memory='8XB' is no amount of memory"),
        (["--scratch", "/nowhere"], "does not exist"),
        (["--integrals", "best"], "integrals='best' is unknown"),
        (["--tile", "0"], "The tile size is 0"),
        (["--auxbasis", "weigend"], "--auxbasis='weigend' was given with --integrals='exact'"),
        (["--integrals", "df", "--auxbasis", "nosuch"], "no basis set 'nosuch' for the element H"),
        (["--method", "ccsd", "--max-cycle", "-1"], "--max-cycle=-1 is negative"),
        (["--method", "ccsd", "--conv-tol", "-1"], "--conv-tol=-1.0 is no tolerance"),
        (["--method", "ccsd", "--conv-tol-normt", "nan"], "--conv-tol-normt=nan is no tolerance"),
        (["--method", "ccsd", "--diis-space", "-1"], "--diis-space=-1 is negative"),
        (["--method", "ccsd", "--iterative-damping", "2"], "--iterative-damping=2.0 is no part of a step"),
        (["--cholesky-tol", "1e-5"], "--cholesky-tol=1e-05 was given with --integrals='exact'"),
        (["--method", "ccsd", "--checkpoint", "/nowhere/run.h5"], "in a folder that does not exist"),
        (["--checkpoint", "run.h5"], "was given with MP2, which does not iterate"),
        (["--max-cycle", "3"], "--max-cycle=3 was given with MP2, which does not iterate"),
        (["--force"], "force was given with MP2. Expected it with ccsd(t)"),
        (["--workers", "0"], "workers=0"),
        (["--json", "/nowhere/out.json"], "Correct --json"),
        (["--json", "/proc/out.json"], "Correct --json"),
        (["--json", "/"], "Correct --json"),
        (["--report", "/proc/report"], "Correct --report"),
        (["--report", "/etc/hostname"], "Correct --report"),
        (["--report", "/etc/hostname/report"], "Correct --report"),
    ],
)
def test_wrong_options_are_one_line_before_the_mean_field(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(mol: object) -> None:
        raise AssertionError("a wrong input should be found before the mean field is computed")

    if "--report" in options:
        pytest.importorskip("matplotlib")
    monkeypatch.setattr("tilewise.chemistry.inputs.hartree_fock", refuse)
    assert main(["energy", str(WATER), "--basis", "6-31g", *options]) == 2
    check_line(capsys, message, alone=True)


def test_the_budget_that_a_refusal_names_suffices(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [WATER, "--basis", "6-31g", "--method", "ccsd", *TIGHT]
    least = least_memory(capsys, *arguments)
    found = run(*arguments, "--memory", least)
    assert found["plan"]["peak_bytes"] <= int(least)
    assert found["plan"]["on_disk"]
    assert found["e_corr"] == pytest.approx(ccsd_energies(water())["CCSD"], abs=1e-8)


@pytest.mark.parametrize("method", ["mp2", "ccsd"])
def test_a_budget_that_is_too_small_is_one_line(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["energy", str(WATER), "--basis", "sto-3g", "--method", method, "--memory", "1kB"]) == 2
    check_line(capsys, "budget")


@pytest.mark.parametrize("method", ["mp2", "ccsd"])
def test_a_tile_of_nothing_is_one_line(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["energy", str(WATER), "--basis", "sto-3g", "--method", method, "--tile", "0"]) == 2
    check_line(capsys, "The tile size is 0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--charge", "much"], "argument --charge: invalid int value: 'much'"),
        (["--engine", "steam"], "argument --engine: invalid choice: 'steam'"),
        (["--unknown"], "unrecognized arguments: --unknown. Run `tilewise energy --help`"),
    ],
)
def test_wrong_usage_is_one_line_of_the_first_rank(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("PMI_RANK", rank)
        with pytest.raises(SystemExit) as stop:
            main(["energy", str(WATER), *arguments])
        assert stop.value.code == 2
        told = capsys.readouterr().err.splitlines()
        assert [message in line and line.startswith("tilewise: ") for line in told] == [True] * lines


def test_a_mean_field_that_does_not_converge_is_refused(
    hydrogen: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfinished(mol: Any) -> Any:
        return closed(scf.RHF(mol)).set(chkfile=None).run(max_cycle=0)

    monkeypatch.setattr("tilewise.chemistry.inputs.hartree_fock", unfinished)
    assert main(["energy", str(hydrogen), "--basis", "6-31g"]) == 2
    check_line(capsys, "Hartree-Fock has not converged within 0 cycles")


# Results


def test_the_result_is_printed_and_written(hydrogen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(hydrogen, "--basis", "6-31g", "--method", "ccsd", "--explain")
    out, err = capsys.readouterr()
    for label, name in (("E(HF)", "e_hf"), ("E_corr(CCSD)", "e_corr"), ("E_tot(CCSD)", "e_tot")):
        assert f"{label:<16} = {found[name]:18.10f} Eh\n" in out
    assert "h2.xyz: CCSD/6-31g, 2 atoms, 4 basis functions, point group Dooh" in out
    assert f"converged in {found['cycles']} cycles, T1 diagnostic {found['parts']['t1_diagnostic']:.4f}" in out
    assert found["explanation"] in out
    assert "cycle = 1  E_corr(CCSD) = " in err
    assert "Hartree-Fock: 2 atoms, 4 functions, 2 electrons" in err


def test_figures_are_those_of_the_run(hydrogen: Path, json_file: Path) -> None:
    found = run(hydrogen, "--basis", "6-31g", "--method", "ccsd", "--memory", "1MB")
    assert found["command"].startswith(f"tilewise energy {hydrogen} --basis 6-31g")
    assert found["versions"]["pyscf"]
    assert found["converged"] is True
    assert [cycle["number"] for cycle in found["history"]] == list(range(1, found["cycles"] + 1))
    assert found["history"][-1]["e_corr"] == found["e_corr"]
    assert len(found["timings"]) == found["cycles"]
    plan, steps = found["plan"], found["plan"]["steps"]
    assert plan["budget_bytes"] == 1_000_000
    assert plan["flops"] == sum(step["flops"] for step in steps)
    needed = max(step["held_bytes"] + step["added_bytes"] for step in steps)
    iteration = needed + sum(plan["held_bytes"].values())
    assert plan["peak_bytes"] == max(iteration, plan["build_bytes"]) + plan["reserved_bytes"]
    for timing in found["timings"]:
        assert sum(group["flops"] for group in timing["groups"].values()) == plan["flops"]
        assert timing["seconds"] >= sum(group["seconds"] for group in timing["groups"].values())
    assert {step["group"] for step in steps} == set(found["timings"][0]["groups"])


def test_a_plan_stops_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["energy", str(WATER), "--basis", "6-31g", "--method", "ccsd", "--memory", "1GB", "--plan"]
    assert main([*arguments, "--checkpoint", str(tmp_path / "run.h5")]) == 0
    out = capsys.readouterr().out
    assert "projected" in out
    assert re.search(r"^budget +1 GB$", out, re.MULTILINE)
    assert "E_corr" not in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--report", "--json"])
def test_a_plan_has_nothing_to_write(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["energy", str(WATER), "--plan", option, str(tmp_path / "out")]) == 2
    check_line(capsys, f"{option} was given with --plan", alone=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("first", "second"), [("INPUT", "--json"), ("INPUT", "--checkpoint"), ("--checkpoint", "--json")]
)
def test_no_file_is_written_over_another(
    first: str, second: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "water.xyz"
    file.write_bytes(WATER.read_bytes())
    other = tmp_path / "run.h5" if first == "--checkpoint" else tmp_path / "." / file.name
    named = [first, str(other)] if first == "--checkpoint" else []
    assert main(["energy", str(file), "--method", "ccsd", *named, second, str(other)]) == 2
    check_line(capsys, f"and {second} would be written over it", alone=True)
    assert file.read_bytes() == WATER.read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--json", "run.h5.orbitals"],
            "run.h5.orbitals of --json has the name of a file that is kept beside",
        ),
        (
            ["--json", "run.h5.previous"],
            "run.h5.previous of --json has the name of a file that is kept beside",
        ),
        (
            ["--json", "run.h5.000001.t2.h5"],
            "run.h5.000001.t2.h5 of --json has the name of a file that is kept beside",
        ),
        (
            ["--report", "run.h5.previous"],
            "run.h5.previous of --report has the name of a file that is kept beside",
        ),
        (["--json", "out/index.html", "--report", "out"], "out/index.html of --json is a file of --report"),
        (["--json", "out", "--report", "out"], "out is the file of --json"),
        (["--json", "out", "--report", "out/new"], "out/new of --report lies below"),
    ],
)
def test_files_that_a_checkpoint_or_a_report_has_are_not_named_again(
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    orbitals = tmp_path / "run.h5.orbitals"
    orbitals.write_text("kept")
    assert main(["energy", str(WATER), "--method", "ccsd", "--checkpoint", "run.h5", *options]) == 2
    check_line(capsys, message, alone=True)
    assert list(tmp_path.iterdir()) == [orbitals]
    assert orbitals.read_text() == "kept"


@pytest.mark.parametrize(
    ("name", "options"),
    [("run.h5.orbitals", ["--checkpoint", "run.h5"]), ("index.html", ["--report", "."])],
)
def test_the_input_is_no_file_of_a_checkpoint_or_a_report(
    name: str,
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(WATER.read_bytes())
    assert main(["energy", name, "--method", "ccsd", *options]) == 2
    check_line(capsys, f"{name} of INPUT", alone=True)
    assert (tmp_path / name).read_bytes() == WATER.read_bytes()


def test_a_page_of_somebody_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "index.html"
    page.write_text("<!DOCTYPE html><title>Mine</title>")
    assert main(["energy", str(WATER), "--report", str(tmp_path)]) == 2
    check_line(capsys, f"{page} is not a report of tilewise", alone=True)
    assert page.read_text() == "<!DOCTYPE html><title>Mine</title>"


def test_a_run_that_is_refused_leaves_no_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["energy", str(tmp_path / "missing.xyz"), "--report", str(tmp_path / "nd" / "a" / "b")]) == 2
    check_line(capsys, "missing.xyz", alone=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_checkpoint_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    assert main(["energy", str(WATER), "--method", "ccsd", "--checkpoint", str(file)]) == 2
    check_line(capsys, "notes.txt is no checkpoint of amplitudes", alone=True)
    assert file.read_text() == "mine"


def test_copies_of_a_job_and_single_ranks_are_told(
    hydrogen: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("PMI_RANK", rank)
        monkeypatch.setenv("PMI_SIZE", "2")
        assert main(["energy", str(hydrogen), "--basis", "sto-3g"]) == 0
        assert capsys.readouterr().err.count("tilewise: 2 copies of this job run") == lines


def test_a_warning_is_one_line(hydrogen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["energy", str(hydrogen), "--basis", "6-31g", "--method", "ccsd", "--checkpoint", str(tmp_path / "r.h5")]
    assert main(command) == 0
    manifest = tmp_path / "r.h5"
    manifest.write_bytes(manifest.read_bytes()[:-8])
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(command) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "newest generation" in line]
    assert len(told) == 1
    assert told[0].startswith("tilewise: The newest generation of the checkpoint")
    assert "checkpoint.py" not in told[0]


def test_no_convergence_has_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(WATER, "--basis", "6-31g", "--method", "ccsd", "--max-cycle", "4", code=3)
    out, err = capsys.readouterr()
    assert found["converged"] is False
    assert f"{found['e_tot']:18.10f} Eh NOT CONVERGED\n" in out
    assert "NOT CONVERGED in 4 cycles" in out
    line = err.splitlines()[-1]
    assert line == f"tilewise: {with_options(found['reason'])}"
    assert "It was still converging: raise --max-cycle to" in line


def test_damped_steps_lead_to_the_same_energy() -> None:
    arguments = [WATER, "--basis", "6-31g", "--method", "ccsd", *TIGHT]
    whole, damped = (run(*arguments, *options) for options in ([], ["--iterative-damping", "0.5"]))
    assert damped["e_corr"] == pytest.approx(whole["e_corr"], abs=1e-9)
    assert damped["history"][0] != whole["history"][0]


def test_triples_of_amplitudes_that_have_not_converged(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [WATER, "--basis", "6-31g", "--method", "ccsd(t)", "--max-cycle", "4"]
    refused = run(*arguments, code=3)
    out, err = capsys.readouterr()
    assert err.splitlines()[-1].startswith("tilewise: CCSD(T) needs converged amplitudes. CCSD has not converged.")
    assert "E_corr(CCSD)     =" in out
    assert "CCSD(T)" not in out
    assert "e_t" not in refused["parts"]
    forced = run(*arguments, "--force", code=3)
    out = capsys.readouterr().out
    assert forced["e_corr"] == pytest.approx(refused["e_corr"] + forced["parts"]["e_t"], abs=1e-12)
    assert f"E(T)             = {forced['parts']['e_t']:18.10f} Eh NOT CONVERGED\n" in out
    assert f"E_tot(CCSD(T))   = {forced['e_tot']:18.10f} Eh NOT CONVERGED\n" in out


def test_exit_codes_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["energy", "--help"])
    told = capsys.readouterr().out
    for code in ("0 ", "2 ", "3 ", "75 ", "130 "):
        assert f"\n  {code}" in told
