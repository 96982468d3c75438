"""Going on from a checkpoint of a method: only by the same orbitals and equations."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pyscf import gto, scf

from chemistry.cc_cases import mean_field_of, without_file
from chemistry.molecules import WATER, make_mol, mean_field
from chemistry.solver_cases import Toy
from tilewise.chemistry import CCSD, CCSD_T
from tilewise.chemistry.checkpoint import Checkpoint
from tilewise.chemistry.diis import Footprint
from tilewise.chemistry.solver import Options
from tilewise.errors import InputError, StorageError

OTHER = "belongs to another calculation"


@pytest.fixture
def water() -> Any:
    return mean_field_of("water", "sto-3g")


@pytest.fixture
def path(tmp_path: Path, water: Any) -> Path:
    """The checkpoint of a run that has ended."""
    CCSD(water, [0], checkpoint=tmp_path / "run.h5").run()
    return tmp_path / "run.h5"


def test_the_same_goes_on(path: Path, water: Any) -> None:
    first, again = CCSD(water, [0]).run(), CCSD(water, [0], checkpoint=path, ladder="direct").run()
    assert again.cycles == first.cycles
    assert again.e_corr == pytest.approx(first.e_corr, rel=0, abs=1e-12)
    assert not again.timings  # nothing was left to do


@pytest.mark.parametrize(
    "settings",
    [
        {"ladder": "none"},
        {"integrals": "df"},
        {"integrals": "df", "auxbasis": "weigend"},
        {"integrals": "cholesky"},
    ],
    ids=str,
)
def test_other_equations_do_not(path: Path, water: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=OTHER):
        CCSD(water, [0], checkpoint=path, **settings).run()


@pytest.mark.parametrize("settings", [{"integrals": "cholesky", "cholesky_tol": 1e-2}, {"integrals": "df"}], ids=str)
def test_nor_do_other_vectors(tmp_path: Path, water: Any, settings: dict[str, Any]) -> None:
    CCSD(water, checkpoint=tmp_path / "run.h5", integrals="cholesky").run(max_cycle=2)
    with pytest.raises(InputError, match=OTHER):
        CCSD(water, checkpoint=tmp_path / "run.h5", **settings).run()


def test_nor_do_other_auxiliary_functions(tmp_path: Path) -> None:
    """PySCF takes those made for a basis set by its name, and makes up others for the same functions without it."""
    parts = {element: gto.basis.load("cc-pvdz", element) for element in "OH"}
    named, unnamed = (scf.RHF(make_mol(WATER, basis)).run(conv_tol=1e-12) for basis in ("cc-pvdz", parts))
    CCSD(without_file(named), checkpoint=tmp_path / "run.h5", integrals="df").run(max_cycle=1)
    with pytest.raises(InputError, match=OTHER):
        CCSD(without_file(unnamed), checkpoint=tmp_path / "run.h5", integrals="df").run(max_cycle=1)


@pytest.mark.parametrize("frozen", [[1], [0, 6], None], ids=str)
def test_nor_do_other_orbitals(path: Path, water: Any, frozen: Any) -> None:
    """Even if there are as many of them."""
    with pytest.raises(InputError, match=r"run\.h5\.orbitals has the orbitals of another .*choice of frozen orbitals"):
        CCSD(water, frozen, checkpoint=path).run()


def test_nor_does_another_molecule(path: Path) -> None:
    other = mean_field(WATER.replace("0.587", "0.588", 1), "sto-3g")
    with pytest.raises(InputError, match=r"run\.h5\.orbitals has the orbitals of another molecule"):
        CCSD(other, [0], checkpoint=path).run()


def test_nor_does_another_field(tmp_path: Path, water: Any) -> None:
    """Although it changes the energy of the mean field by less than a second mean field may."""
    CCSD(water, checkpoint=tmp_path / "run.h5").run()
    core, across = water.get_hcore(), water.mol.intor_symmetric("int1e_r")[0]
    other = scf.RHF(water.mol)
    other.get_hcore = lambda *_: core + 1e-3 * across
    other = without_file(other.run(conv_tol=1e-13))
    assert abs(other.e_tot - water.e_tot) < 1e-5
    with pytest.raises(InputError, match=r"run\.h5\.orbitals has the orbitals of another Hamiltonian"):
        CCSD(other, checkpoint=tmp_path / "run.h5").run()


def test_orbitals_that_are_missing_are_asked_for(path: Path, water: Any) -> None:
    """Others of the same energies have other signs, which amplitudes have too."""
    path.with_name("run.h5.orbitals").unlink()
    with pytest.raises(StorageError, match=r"run\.h5\.orbitals is missing\. .*remove run\.h5 to begin anew"):
        CCSD(water, [0], checkpoint=path).run()
    path.unlink()
    assert CCSD(water, [0], checkpoint=path).run().timings


def test_orbitals_of_other_signs_are_refused(path: Path, water: Any) -> None:
    turned = make_turned(water)
    kept = path.with_name("run.h5.orbitals")
    kept.unlink()
    path.rename(path.with_name("aside"))
    CCSD(turned, [0], checkpoint=path).run(max_cycle=0)
    path.with_name("aside").replace(path)
    with pytest.raises(InputError, match=OTHER):
        CCSD(turned, [0], checkpoint=path).run()


def make_turned(mf: Any) -> Any:
    """The same mean field with other signs of its orbitals."""
    turned = mf.copy()
    turned.mo_coeff = mf.mo_coeff * [1, -1, 1, -1, 1, -1, 1]
    return turned


def test_orbitals_lie_where_a_link_leads(tmp_path: Path, water: Any) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "run.h5", tmp_path / "link.h5"
    link.symlink_to(target)
    first = CCSD_T(water, checkpoint=link).run()
    assert target.with_name("run.h5.orbitals").exists()
    again = CCSD_T(make_turned(water), checkpoint=target).run()
    assert again.e_t == pytest.approx(first.e_t, rel=0, abs=1e-9)


def test_a_path_below_the_home_folder(tmp_path: Path, water: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    CCSD(water, checkpoint="~/run.h5").run(max_cycle=1)
    assert (tmp_path / "run.h5.orbitals").exists()


def test_a_folder_that_is_a_file(tmp_path: Path, water: Any) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"is in a folder that does not exist"):
        CCSD(water, checkpoint=tmp_path / "file" / "run.h5").run()


def test_damaged_orbitals_are_refused(path: Path, water: Any) -> None:
    """Wherever the byte is: those that are taken all the same have nothing wrong in them."""
    kept = path.with_name("run.h5.orbitals")
    raw, refused = kept.read_bytes(), 0
    expected = CCSD(water, [0], checkpoint=path).run()
    places = range(30, len(raw), max(len(raw) // 25, 1))
    for at in places:
        damaged = bytearray(raw)
        damaged[at] ^= 0x41
        kept.write_bytes(damaged)
        try:
            again = CCSD(water, [0], checkpoint=path).run()
        except (InputError, StorageError):
            refused += 1
            continue
        assert not again.timings
        assert (again.e_hf, again.e_corr) == (expected.e_hf, expected.e_corr)
        for found, array in zip(again.to_pyscf(), expected.to_pyscf(), strict=True):
            assert found.tobytes() == array.tobytes()
    assert refused > 0


def test_going_on_with_diis_on_disk_takes_no_more_memory_than_an_update(tmp_path: Path) -> None:
    toy = Toy(occ=(12, 13), vir=(10, 10, 10))
    options = Options(conv_tol=1e-14, conv_tol_normt=1e-14, max_cycle=5, diis_space=4, diis_on_disk=True)
    expected = Footprint.of([tensor.pattern for tensor in toy.start().values()], space=4, on_disk=True).peak_bytes

    def solve() -> None:
        checkpoint = Checkpoint(tmp_path / "run.h5", b"toy")
        assert toy.solve(options, checkpoint=checkpoint).cycles == 5
        checkpoint.close()

    solve()
    solve()  # everything is imported
    updates = toy.updates
    tracemalloc.start()
    try:
        solve()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert toy.updates == updates
    assert 0.6 * expected < peak < 1.03 * expected
