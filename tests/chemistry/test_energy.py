from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import gto, scf
from pyscf.tools import fcidump

from chemistry.molecules import WATER, mean_field, pyscf_mp2
from tilewise.chemistry import CCSD, energy
from tilewise.errors import InputError
from tilewise.tensors import BlockTensor

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
    assert "Transform of 24 functions" in result.explanation
    assert lines[0] == f"Input: {WATER_FILE}, taken as the atoms of a molecule (.xyz)"
    assert lines[1] == "Hartree-Fock: 3 atoms, 24 functions, 10 electrons"
    assert lines[-1].startswith("E(MP2) = -76.2")


def test_a_calculation_is_planned_before_it_runs() -> None:
    made = energy.prepare(WATER_FILE, basis="6-31g", method="CCSD", frozen="core", memory="1GB", integrals=None)
    assert made.method.e_corr is None
    assert made.source.frozen_count == 1
    assert (made.limits, made.source.group) == ((1e-7, 1e-5), "C2v")
    assert "projected" in made.explanation
    assert made.patterns() == {}
    result = made.run()
    assert "measured" in made.explanation
    assert list(made.patterns()) == ["t2[iajb]", "ovvv[akcd]"]
    assert result.plan["budget_bytes"] == 10**9
    assert made.held == {"DIIS": result.plan["held_bytes"]["DIIS"]}
    assert "E(HF)" in dict(result.energies())


def test_a_checkpoint_of_fitted_integrals_gives_the_energy_of_those_used_here(tmp_path: Path) -> None:
    mol = gto.M(atom=WATER, basis="sto-3g", verbose=0)
    fitted = scf.RHF(mol).density_fit()
    fitted.chkfile = str(tmp_path / "mf.chk")
    fitted.run(conv_tol=1e-12)
    fitted._chkfile.close()
    exact = scf.RHF(mol).run(conv_tol=1e-12)
    lines: list[str] = []
    assert abs(fitted.e_tot - exact.e_tot) > 1e-5
    result = energy.run(tmp_path / "mf.chk", method="ccsd", progress=lines.append)
    assert result.e_hf == pytest.approx(exact.e_tot, rel=0, abs=1e-7)
    assert result.e_tot == pytest.approx(exact.e_tot + CCSD(exact).run().e_corr, rel=0, abs=1e-6)
    assert any("as with fitted integrals; that of its orbitals" in line for line in lines)


def test_what_is_turned_off_is_off() -> None:
    made = energy.prepare(WATER_FILE, basis="sto-3g", method="ccsd", diis=False, reproducible=False)
    assert isinstance(made.method, CCSD)
    assert (made.method.diis, made.method.reproducible) == (False, False)


@pytest.mark.parametrize("frozen", [np.array([0, 1]), [0, 1], np.int64(2), 2], ids=repr)
def test_frozen_orbitals_may_be_an_array(frozen: Any) -> None:
    made = energy.prepare(WATER_FILE, basis="sto-3g", method="mp2", frozen=frozen)
    assert (made.source.frozen_count, made.method.nocc) == (2, 3)


def test_frozen_orbitals_of_an_fcidump_may_be_an_array(tmp_path: Path) -> None:
    mf = mean_field("H 0 0 0; H 0 0 0.74", "6-31g")
    mf._chkfile.close()
    fcidump.from_mo(mf.mol, str(tmp_path / "h2.fcidump"), mf.mo_coeff)
    made = energy.prepare(tmp_path / "h2.fcidump", method="mp2", frozen=np.array([2, 3]))
    assert (made.method.nocc, made.method.nvir) == (1, 1)


def test_patterns_copy_no_amplitudes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that transposed them alone would wait for the others for ever."""
    made = energy.prepare(WATER_FILE, basis="sto-3g", method="ccsd", max_cycle=2)
    made.run()

    def refuse(*arguments: object) -> None:
        raise AssertionError("amplitudes should not be transposed to tell their pattern")

    monkeypatch.setattr(BlockTensor, "transpose", refuse)
    assert list(made.patterns()) == ["t2[iajb]", "ovvv[akcd]"]


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
        ({"path": Path("absent.xyz")}, "There is no file absent.xyz"),
        ({"method": "ccsdtq"}, "no method 'ccsdtq'. Expected one of: mp2, drccd"),
        ({"method": None}, "no method None"),
        ({"basis": "nothing"}, "no basis set 'nothing' for the element H"),
        ({"charge": 1}, "9 electrons at charge 1, an odd number.*charge=2 or charge=0"),
        ({"charge": 10}, "charge=10 leaves 0 electrons of 10"),
        ({"charge": 0.5}, "charge= is 0.5"),
        ({"charge": -40}, "functions cannot hold 50 electrons"),
        ({"spin": 2}, "spin=2 asks for 2 unpaired electrons"),
        ({"frozen": 5}, "frozen=5 leaves none of the 5 occupied orbitals"),
        ({"frozen": -1}, "frozen=-1 is negative"),
        ({"frozen": "1"}, "frozen='1' is unknown"),
        ({"frozen": 1.5}, "frozen= is 1.5|orbitals of frozen="),
        ({"memory": "much"}, "memory='much' is no amount of memory"),
        ({"method": "ccsd", "conv_tol": -1.0}, "conv_tol=-1.0 is no tolerance"),
        ({"method": "ccsd", "iterative_damping": 2}, "iterative_damping=2 is no part of a step"),
        ({"max_cycle": 3}, "max_cycle=3 was given with MP2, which does not iterate"),
        ({"diis": True}, "diis=True was given with MP2, which does not iterate"),
        ({"force": True}, r"force was given with MP2\. Expected it with ccsd\(t\)"),
        ({"magic": 1}, r"MP2 has no option 'magic'\. Expected one of: .*memory, .*tol\. Correct the name"),
        ({"method": "ccsd", "tol": 1e-9}, r"CCSD has no option 'tol'\. Expected one of: .*diis, .*reproducible"),
        ({"verbose": 4}, "MP2 has no option 'verbose'"),
        ({"tile": 0}, "The tile size is 0"),
        ({"auxbasis": "weigend"}, "auxbasis='weigend' was given with integrals='exact'"),
        ({"integrals": "df", "auxbasis": "nosuch"}, "no basis set 'nosuch' for the element H.*cc-pvdz-ri"),
        ({"integrals": "df", "cholesky_tol": 1e-5}, "cholesky_tol=1e-05 was given with integrals='df'"),
        ({"integrals": "cholesky", "cholesky_tol": -1.0}, "tol=-1.0 is no tolerance of Cholesky vectors"),
    ],
)
def test_rejects_before_the_mean_field(changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(mol: object) -> None:
        raise AssertionError("a wrong input should be found before the mean field is computed")

    monkeypatch.setattr("tilewise.chemistry.inputs.hartree_fock", refuse)
    arguments: dict[str, Any] = {"path": WATER_FILE, "basis": "6-31g", "method": "mp2"} | changes
    with pytest.raises(InputError, match=message):
        energy.run(arguments.pop("path"), **arguments)
