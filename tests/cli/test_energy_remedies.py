"""``tilewise energy`` where there is no energy: one line that says what to do about it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import dft, gto, scf

from cli.energy_cases import WATER, check_line, closed
from tilewise.chemistry.coupled_cluster import CoupledCluster
from tilewise.cli import main

HYDROGEN = "H 0 0 0; H 0 0 0.74"
OPEN = "for an open shell take another program, such as pyscf.cc.UCCSD."
PYTHON = "give the mean field itself to a method in Python."

# Refusals


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of what the methods are not for."""
    folder = tmp_path_factory.mktemp("inputs")
    singlet, triplet = (gto.M(atom=HYDROGEN, basis="6-31g", spin=spin, verbose=0) for spin in (0, 2))
    closed(dft.RKS(singlet)).set(chkfile=str(folder / "ks.chk"), xc="pbe").run()
    closed(scf.UHF(triplet)).set(chkfile=str(folder / "triplet.chk")).run()
    (folder / "triplet.fcidump").write_text("&FCI NORB=2, NELEC=2, MS2=2, /\n0.5 0 0 0 0\n")
    (folder / "odd.fcidump").write_text("&FCI NORB=2, NELEC=3, MS2=1, /\n0.5 0 0 0 0\n")
    return folder


@pytest.mark.parametrize("method", ["mp2", "ccsd"])
@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ([WATER, "--basis", "nothing"], "Use the name of a basis set such as sto-3g, 6-31g*, cc-pvdz or def2-svp."),
        ([WATER, "--spin", "2"], f"Leave --spin out if the molecule has one; {OPEN}"),
        (["triplet.chk"], "Make one with pyscf.scf.RHF of a molecule with spin=0."),
        (["triplet.fcidump"], "Use a file of a closed shell."),
        ([WATER, "--charge", "1"], "Correct the atoms, or pass --charge=2 or --charge=0."),
        (["odd.fcidump"], "Use a file of a closed shell."),
        (["missing.xyz"], "Check the path and the folder it starts from."),
        ([WATER, "--memory", "8XB"], "Correct it."),
        ([WATER, "--charge", "10"], "Pass a charge of at most 8."),
        ([WATER, "--charge", "-80"], "Use a larger basis set, or correct the charge."),
        ([WATER, "--charge", "much"], "Run `tilewise energy --help` for what is expected."),
        (["ks.chk"], f"Make the file with pyscf.scf.RHF(mol).run(chkfile='hf.chk'), or {PYTHON}"),
    ],
    ids=lambda given: " ".join(str(getattr(each, "name", each)) for each in given) if isinstance(given, list) else "",
)
def test_what_to_do_is_said(
    method: str,
    arguments: list[Any],
    remedy: str,
    inputs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(inputs)
    assert exit_code("--method", method, *arguments) == 2
    assert check_line(capsys, "xpected", alone=True).endswith(f" {remedy}")


def exit_code(*arguments: object) -> int:
    """Of the command; wrong usage ends it where it is parsed."""
    try:
        return main(["energy", *map(str, arguments)])
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1


@pytest.mark.parametrize(
    ("method", "other"), [("mp2", "use smaller tiles"), ("ccsd", "freeze orbitals"), ("ccsd(t)", "freeze orbitals")]
)
@pytest.mark.parametrize("memory", ["0", "10"])
def test_a_budget_that_would_do_is_said(
    method: str, other: str, memory: str, hydrogen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [hydrogen, "--basis", "sto-3g", "--method", method, "--workers", "1", "--memory"]
    assert exit_code(*arguments, memory) == 2
    line = check_line(capsys, f" {memory} bytes")
    found = re.search(rf" Give --memory=(\d+)(?: or more)?, or {other}\.$", line)
    assert found is not None
    assert exit_code(*arguments, found[1]) == 0


# What is no number


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("V", "Block (0, 0, 0, 0) of t2 has elements that are not finite after taking it to start from."),
        ("vv_s", "Block (0, 0) of R_s has elements that are not finite after R_s[px] += vv_s[pq] tau_s[qx]."),
        ("L", "The energy of CCSD is nan after cycle 0."),
    ],
)
def test_numbers_that_are_not_finite_have_the_code_of_no_convergence(
    name: str,
    wrong: str,
    hydrogen: Path,
    json_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = CoupledCluster._build

    def poisoned(*arguments: Any) -> Any:
        tensors = build(*arguments)
        tensors[name].arena.own[0] = np.nan
        return tensors

    monkeypatch.setattr(CoupledCluster, "_build", poisoned)
    assert exit_code(hydrogen, "--basis", "6-31g", "--method", "ccsd", "--workers", "1", "--json", json_file) == 3
    line = check_line(capsys, wrong)
    assert line.startswith(f"tilewise: {wrong}")
    assert re.search(r"Check the integrals (and orbital energies, )?and the amplitudes to start from\.$", line)
    assert not json_file.exists()
