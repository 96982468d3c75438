from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chemistry.molecules import mean_field, pyscf_mp2
from tilewise.chemistry import energy
from tilewise.errors import InputError

WATER_FILE = Path(__file__).resolve().parents[2] / "examples" / "water.xyz"


def test_equals_pyscf_on_the_file_of_the_examples() -> None:
    lines: list[str] = []
    result = energy.run(WATER_FILE, basis="cc-pvdz", method="MP2", frozen=1, progress=lines.append)
    mf = mean_field(str(WATER_FILE), "cc-pvdz")
    assert result.e_hf == pytest.approx(mf.e_tot, abs=1e-9)
    assert result.e_corr == pytest.approx(pyscf_mp2(mf, 1), abs=1e-9)
    assert result.e_tot == result.e_hf + result.e_corr
    assert (result.method, result.basis) == ("mp2", "cc-pvdz")
    assert (result.natoms, result.nbasis, result.nocc, result.nvir) == (3, 24, 4, 19)
    assert result.seconds > 0
    assert "pqrs,pi,qa,rj,sb->ijab" in result.explanation
    assert lines[1] == "Hartree-Fock: 3 atoms, 24 functions, 10 electrons"
    assert lines[-1].startswith("E(MP2) = -76.2")


@pytest.mark.parametrize(("text", "charge"), [("1\n\nHe 0 0 0\n", 0), ("1\n\nLi 0 0 0\n", 1), ("1\n\nH 0 0 0", -1)])
def test_two_electrons(tmp_path: Path, text: str, charge: int) -> None:
    file = tmp_path / "atom.xyz"
    file.write_text(text)
    result = energy.run(file, basis="6-31g", method="mp2", charge=charge)
    mf = mean_field(text.splitlines()[2], "6-31g", charge=charge)
    assert result.e_corr == pytest.approx(pyscf_mp2(mf), abs=1e-9)
    assert result.nocc == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"xyz_path": Path("absent.xyz")}, "There is no file absent.xyz"),
        ({"method": "ccsdtq"}, "no method 'ccsdtq'. Expected one of: mp2"),
        ({"method": None}, "no method None"),
        ({"basis": "nothing"}, "no basis set 'nothing' for the element H"),
        ({"charge": 1}, "9 electrons at charge 1, an odd number.*charge=2 or charge=0"),
        ({"charge": 10}, "charge=10 leaves 0 electrons of 10"),
        ({"charge": 0.5}, "charge= is 0.5"),
        ({"charge": -40}, "functions cannot hold 50 electrons"),
        ({"spin": 2}, "spin=2 asks for 2 unpaired electrons"),
        ({"frozen": 5}, "frozen=5 leaves none of the 5 occupied orbitals"),
        ({"frozen": -1}, "frozen=-1 is negative"),
        ({"frozen": "1"}, "frozen= is '1'"),
    ],
)
def test_rejects_before_the_mean_field(changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(mol: object) -> None:
        raise AssertionError("a wrong input should be found before the mean field is computed")

    monkeypatch.setattr(energy, "hartree_fock", refuse)
    arguments: dict[str, Any] = {"xyz_path": WATER_FILE, "basis": "6-31g", "method": "mp2"} | changes
    with pytest.raises(InputError, match=message):
        energy.run(arguments.pop("xyz_path"), **arguments)
