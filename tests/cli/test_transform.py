"""``tilewise transform``: integrals over orbitals from an .xyz file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyscf import ao2mo

import tilewise as tw
from chemistry.molecules import mean_field
from tilewise.chemistry import pack_integrals
from tilewise.cli import main

WATER = Path(__file__).parents[2] / "examples" / "water.xyz"


def atoms() -> str:
    return "; ".join(WATER.read_text().splitlines()[2:])


def test_integrals_are_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "ovov.h5"
    assert main(["transform", str(WATER), "--basis", "sto-3g", "--orbitals", "ovov", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "fused12-34" in told.out
    assert f"written to {out}" in told.out
    assert "Hartree-Fock" in told.err
    mf = mean_field(atoms(), "sto-3g")
    occ, vir = mf.mo_coeff[:, mf.mo_occ > 0], mf.mo_coeff[:, mf.mo_occ == 0]
    exact = ao2mo.kernel(mf.mol, (occ, vir, occ, vir))
    # Orbitals have no sign of their own.
    np.testing.assert_allclose(np.abs(pack_integrals(tw.load(out))), np.abs(exact), atol=1e-6)


def test_a_plan_stops_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transform", str(WATER), "--basis", "sto-3g", "--plan", "--memory", "1GB", "--symmetry"]) == 0
    told = capsys.readouterr().out
    assert "Schedules, each in its fastest way within 1 GB" in told
    assert "measured" not in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--orbitals", "ovo"], "The orbitals 'ovo' are unknown"),
        (["--orbitals", "ovxy"], "Write, for example, ovov"),
        (["--schedule", "best"], "schedule='best' is unknown"),
        (["--memory", "1kB"], "needs more than the budget of 1000 bytes"),
        (["--tile", "0"], "The tile size is 0"),
        (["--tol", "-1"], "tol=-1.0 is no tolerance"),
        (["--charge", "1"], "an odd number"),
        (["--scratch", "/nowhere"], "does not exist"),
        (["--out", "/nowhere/a.h5"], "/nowhere is no folder"),
    ],
)
def test_wrong_input_is_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transform", str(WATER), "--basis", "sto-3g", *options]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("tilewise: ")
    assert message in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "mol.xyz"], "mol.xyz is the file of the molecule, and --out would be written over it"),
        (["--checkpoint", "mol.xyz"], "mol.xyz is the file of the molecule, and --checkpoint would be"),
        (["--checkpoint", "a.h5", "--out", "./a.h5"], "a.h5 is the file of --checkpoint, and --out would be"),
        (
            ["--checkpoint", "a.h5", "--out", "a.h5.orbitals"],
            "a.h5.orbitals of --out has the name of a file that is kept beside --checkpoint a.h5",
        ),
    ],
)
def test_no_file_is_written_over_another(
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    molecule = tmp_path / "mol.xyz"
    molecule.write_bytes(WATER.read_bytes())
    assert main(["transform", "mol.xyz", "--basis", "sto-3g", *options]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == [molecule]
    assert molecule.read_bytes() == WATER.read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--orbitals", "ovox"], "The orbitals 'ovox' are unknown"),
        (["--memory", "8XB"], "--memory='8XB' is no amount of memory"),
        (["--scratch", "/nowhere"], "does not exist"),
        (["--out", "/"], "/ is a folder. The name of a file is expected. Correct --out"),
    ],
)
def test_wrong_input_is_found_before_the_mean_field(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(mol: object) -> None:
        raise AssertionError("a wrong input should be found before the mean field is computed")

    monkeypatch.setattr("tilewise.chemistry.inputs.hartree_fock", refuse)
    assert main(["transform", str(WATER), "--basis", "sto-3g", *options]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
