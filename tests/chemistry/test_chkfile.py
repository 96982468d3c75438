"""Mean fields from checkpoints of PySCF: the same molecule and orbitals, and nothing of a file is executed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyscf import dft, gto, scf

from chemistry.molecules import ETHENE, HYDROGEN, LITHIUM_HYDRIDE, WATER, make_mol
from tilewise.chemistry import MP2
from tilewise.chemistry.chkfile import brillouin, read_chkfile
from tilewise.chemistry.fcidump import Fcidump, reference
from tilewise.chemistry.integrals import orbital_irreps
from tilewise.chemistry.vectors import fitted_vectors
from tilewise.errors import InputError, StorageError, TilewiseError

MOLECULES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "plain": (WATER, "6-31g", {}),
    "cartesian": (WATER, "6-31g*", {"cart": True}),
    "charged": (LITHIUM_HYDRIDE, "cc-pvdz", {"charge": 2}),
    "general contractions": (HYDROGEN, "ano@3s2p", {}),
    "ghost": ("O 0 0 0; ghost-H 0 0 1; H 0 1 0; H 0 0 -1", {"O": "6-31g", "H": "sto-3g"}, {}),
    "core potential": ("I 0 0 0; H@1 0 0 1.6", {"I": "def2-svp", "H": "sto-3g"}, {"ecp": {"I": "def2-svp"}}),
    "D2h": (ETHENE, "sto-3g", {"symmetry": True}),
    "C2v": (WATER, "6-31g", {"symmetry": "C2v"}),
    "Dooh": ("N 0 0 0; N 0.7 0.8 0.2", "6-31g", {"symmetry": True}),
    "Coov": (LITHIUM_HYDRIDE, "6-31g", {"symmetry": True}),
    "atom": ("Ne 0 0 0", "cc-pvdz", {"symmetry": True}),
    "Gaussian nuclei": (HYDROGEN, "6-31g", {"nucmod": {"H": 2}}),
}


def save(mf: Any, path: Path) -> Any:
    """Run a mean field that leaves a checkpoint."""
    mf._chkfile.close()  # PySCF's temporary one: the garbage collector would complain
    mf.chkfile = str(path)
    mf.conv_tol = 1e-11
    return mf.run()


@pytest.fixture
def water(tmp_path: Path) -> Path:
    save(scf.RHF(make_mol(WATER, "sto-3g")), tmp_path / "water.chk")
    return tmp_path / "water.chk"


@pytest.fixture
def change(water: Path) -> Callable[[dict[str, Any]], Path]:
    """Writes a checkpoint with other entries of the molecule; None leaves one out."""

    def write(entries: dict[str, Any]) -> Path:
        with h5py.File(water, "a") as file:
            table = json.loads(file["mol"][()]) | entries
            del file["mol"]
            file["mol"] = json.dumps({name: value for name, value in table.items() if value is not None})
        return water

    return write


def replace(path: Path, name: str, value: Any) -> Path:
    """Replace an entry of a file."""
    with h5py.File(path, "a") as file:
        del file[name]
        if value is not None:
            file[name] = value
    return path


# What is read


@pytest.mark.parametrize("name", MOLECULES)
def test_molecule_and_orbitals_are_those_that_were_saved(name: str, tmp_path: Path) -> None:
    atoms, basis, options = MOLECULES[name]
    mf = save(scf.RHF(make_mol(atoms, basis, **options)), tmp_path / "a.chk")
    found = read_chkfile(tmp_path / "a.chk")
    for attribute in ("mo_coeff", "mo_energy", "mo_occ", "e_tot"):
        np.testing.assert_array_equal(getattr(found, attribute), getattr(mf, attribute))
    assert (found.converged, found.verbose, found.mol.nelectron) == (True, 0, mf.mol.nelectron)
    assert not hasattr(found, "xc")
    assert not hasattr(found, "with_df")
    np.testing.assert_array_equal(found.mol.intor("int2e"), mf.mol.intor("int2e"))
    np.testing.assert_array_equal(scf.hf.get_hcore(found.mol), scf.hf.get_hcore(mf.mol))
    assert found.mol.energy_nuc() == mf.mol.energy_nuc()
    np.testing.assert_allclose(found.get_fock(), mf.get_fock(), rtol=0, atol=1e-10)
    density = np.eye(mf.mol.nao)
    np.testing.assert_allclose(found.get_veff(found.mol, density), mf.get_veff(mf.mol, density), rtol=0, atol=1e-10)
    expected = orbital_irreps(mf.mol, mf.mo_coeff)
    labels = orbital_irreps(found.mol, found.mo_coeff)
    assert (labels is None) == (expected is None) == ("symmetry" not in options)
    np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize("name", ["plain", "D2h", "core potential"])
def test_methods_take_it_for_a_mean_field(name: str, tmp_path: Path) -> None:
    atoms, basis, options = MOLECULES[name]
    mf = save(scf.RHF(make_mol(atoms, basis, **options)), tmp_path / "a.chk")
    assert MP2(read_chkfile(tmp_path / "a.chk")).run().e_corr == pytest.approx(MP2(mf).run().e_corr, abs=1e-12)


def test_the_name_of_the_basis_set_is_kept_for_density_fitting(tmp_path: Path) -> None:
    mf = save(scf.RHF(make_mol(WATER, "cc-pvdz")), tmp_path / "a.chk")
    assert fitted_vectors(read_chkfile(tmp_path / "a.chk")).count == fitted_vectors(mf.mol).count


@pytest.mark.parametrize(
    "names",
    [
        {"O": "cc-pvdz", "H": "cc-pvdz"},
        {"O": "cc-pvtz", "H": "6-31g(d,p)"},
        {"default": "cc-pvdz", "H": "def2-svp"},
        {"O": "cc-pvdz", "H": "cc-pvdz", "U": "ano-rcc"},
    ],
    ids=str,
)
def test_names_of_the_basis_sets_of_elements_are_kept_for_density_fitting(names: Any, tmp_path: Path) -> None:
    mf = save(scf.RHF(make_mol(WATER, names)), tmp_path / "a.chk")
    found = read_chkfile(tmp_path / "a.chk")
    assert found.mol.basis == names
    assert fitted_vectors(found).count == fitted_vectors(mf.mol).count
    mf.mol.basis = mf.mol._basis  # without names
    assert fitted_vectors(found).count != fitted_vectors(mf.mol).count


@pytest.mark.parametrize(
    "text",
    [
        "{'O': 'cc-pvdz', 'H': print('cc-pvdz')}",
        "{'O': 'cc-pvdz'} | {'H': 'cc-pvdz'}",
        "{'O': 'cc-pvdz', 'H': 'mine'}",
        "{'O': '../mine', 'H': 'cc-pvdz'}",
        "{'O': 'cc-pvdz', 'Q': 'cc-pvdz'}",
        "{'O': 'cc-pvdz', 'H': [[0, [1.0, 1.0]]]}",
        "{'O': 'cc-pvdz', 'H': 'cc-pvdz'" + ", 'H': 'cc-pvdz'" * 10_000,
        "{}",
    ],
    ids=lambda text: text[:40],
)
def test_other_names_of_basis_sets_are_not_taken(
    change: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("H S\n1.0 print('evaluated')\n")
    mol = read_chkfile(change({"basis": text})).mol
    assert mol.basis is mol._basis


def test_a_molecule_can_be_built_again(tmp_path: Path) -> None:
    mf = save(scf.RHF(make_mol(WATER, {"O": "6-31g", "H": "sto-3g"})), tmp_path / "a.chk")
    mol = read_chkfile(tmp_path / "a.chk").mol.copy()
    mol.build(dump_input=False, parse_arg=False)
    np.testing.assert_allclose(mol.intor("int1e_kin"), mf.mol.intor("int1e_kin"), rtol=0, atol=1e-13)


def test_axes_that_are_missing_mean_no_symmetry(tmp_path: Path) -> None:
    """As in files of PySCF 1.6."""
    path = tmp_path / "a.chk"
    save(scf.RHF(make_mol(WATER, "sto-3g", symmetry=True)), path)
    with h5py.File(path, "r") as file:
        table = json.loads(file["mol"][()])
    replace(path, "mol", json.dumps(table | {"_symm_orig": None}))
    assert read_chkfile(path).mol.symmetry is False


# Which mean field it was


def test_brillouin_tells_hartree_fock_from_others(tmp_path: Path) -> None:
    mol = make_mol(WATER, "6-31g")
    made = {"hf": scf.RHF(mol), "fitted": scf.RHF(mol).density_fit(), "ks": dft.RKS(mol, xc="pbe")}
    found = {}
    for name, mf in made.items():
        save(mf, tmp_path / name)
        found[name] = brillouin(read_chkfile(tmp_path / name))
    assert found["hf"] < 1e-5
    assert brillouin(made["hf"]) == pytest.approx(found["hf"], abs=1e-12)
    assert found["ks"] > 1e-3
    assert found["hf"] < found["fitted"] < 1e-3


def test_brillouin_of_a_file_of_integrals() -> None:
    h1 = np.array([[-1.0, 0.25], [0.25, 1.0]])
    assert brillouin(reference(Fcidump(2, 2, 0, 0, None, h1, np.zeros(6), 0.0))) == 0.25


# What is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (scf.UHF, r"have shape \(2, 7, 7\) .* Expected those of a restricted closed shell"),
        (scf.GHF, r"have shape \(14, 14\)"),
    ],
)
def test_rejects_other_orbitals(make: Any, message: str, tmp_path: Path) -> None:
    save(make(make_mol(WATER, "sto-3g")), tmp_path / "a.chk")
    with pytest.raises(InputError, match=message):
        read_chkfile(tmp_path / "a.chk")


def test_rejects_open_shells(water: Path, tmp_path: Path) -> None:
    save(scf.ROHF(make_mol("O 0 0 0", "sto-3g", spin=2)), tmp_path / "a.chk")
    with pytest.raises(InputError, match=r"has spin=2\. Expected a closed shell"):
        read_chkfile(tmp_path / "a.chk")
    replace(water, "scf/mo_occ", np.array([2, 2, 2, 2, 1, 1, 0.0]))
    with pytest.raises(InputError, match=r"not doubly occupied or empty\. Expected a closed shell"):
        read_chkfile(water)


def test_rejects_complex_orbitals(water: Path) -> None:
    replace(water, "scf/mo_coeff", np.eye(7) * 1j)
    with pytest.raises(InputError, match=r"mo_coeff in .* is complex\. Expected real orbitals"):
        read_chkfile(water)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"a": [[1, 0, 0]]}, "holds a periodic cell"),
        ({"_pseudo": {"O": [1]}}, "pseudopotentials of solids"),
        ({"_built": False}, "was not built"),
        ({"_env": [0.0] * 8 + [0.3] + [0.0] * 100}, "range separation"),
    ],
)
def test_rejects_other_molecules(change: Any, entries: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_chkfile(change(entries))


@pytest.mark.parametrize("name", ["mol", "scf", "scf/mo_coeff", "scf/mo_energy", "scf/e_tot", "scf/mo_occ"])
def test_rejects_files_with_entries_missing(water: Path, name: str) -> None:
    with pytest.raises(TilewiseError, match=r"has no (molecule|mean field)|have shape|are missing"):
        read_chkfile(replace(water, name, None))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mol", np.arange(3), "has no molecule"),
        ("mol", "no json", "is not JSON"),
        ("mol", "[1, 2]", "is not JSON"),
        ("mol", "[" * 100_000, "is not JSON"),
        ("scf/mo_coeff", np.full((7, 7), np.nan), "mo_coeff has values that are no finite numbers"),
        ("scf/mo_coeff", np.eye(7), "overlaps of its orbitals differ by"),
        ("scf/mo_occ", np.array([2, 2, 2, 2, 2, 2, 0.0]), "hold 12 electrons, its molecule has 10"),
        ("scf/e_tot", "text", "e_tot has values that are no finite numbers"),
        ("scf/mo_energy", np.zeros(3), "the orbital energies or the energy have another shape than the orbitals"),
    ],
)
def test_rejects_damaged_entries(water: Path, name: str, value: Any, message: str) -> None:
    with pytest.raises(TilewiseError, match=message):
        read_chkfile(replace(water, name, value))


def test_rejects_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*nowhere.chk\. Expected the path of a checkpoint"):
        read_chkfile(tmp_path / "nowhere.chk")
    with pytest.raises(StorageError, match="is a folder"):
        read_chkfile(tmp_path)
    (tmp_path / "text").write_text("not HDF5")
    with pytest.raises(StorageError, match="is no checkpoint of PySCF, or is damaged"):
        read_chkfile(tmp_path / "text")


# Files that were made to do harm


def test_code_in_a_file_is_not_executed(change: Any, tmp_path: Path) -> None:
    """PySCF's own reader executes these."""
    mark = tmp_path / "executed"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert mark.exists()  # that is what it would do
    mark.unlink()
    for entry in ("atom", "basis", "ecp", "pseudo"):
        assert read_chkfile(change({entry: code})).mol.nelectron == 10
    good = json.loads(gto.M(atom=WATER, basis="sto-3g", verbose=0).dumps())
    crafted = [
        {"_atom": [[code, atom[1]] for atom in good["_atom"]]},
        {"_atom": code},
        {"_basis": {"O": code, "H": code}},
        {"_basis": {code: good["_basis"]["O"]}},
        {"_ecp": {"O": [code]}},
        {"groupname": code, "symmetry": code, "_symm_orig": [0, 0, 0], "_symm_axes": np.eye(3).tolist()},
        {"_env": code},
        {"charge": code},
        {"cart": code},
        {"_nelectron": code},
    ]
    for entries in crafted:
        with pytest.raises(StorageError, match=r"is damaged"):
            read_chkfile(change(good | entries))
    assert not mark.exists()


def test_code_in_the_form_of_old_files_is_not_executed(water: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    replace(water, "mol", f"{{'atom': __import__('os').system('touch {mark}')}}")
    with pytest.raises(InputError, match="an old PySCF wrote it as Python code"):
        read_chkfile(water)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "row", "column", "value"),
    [
        *(("_atm", 0, column, value) for column, value in ((0, -1), (0, 999), (1, 10**6), (1, -4), (2, 9), (3, 10**6))),
        *(("_bas", 1, column, value) for column, value in ((0, 3), (0, -1), (1, 40), (1, -1), (2, 0), (2, 10**4))),
        *(
            ("_bas", 1, column, value)
            for column, value in ((3, 0), (3, 10**4), (4, 1), (5, 10**6), (5, -8), (6, 10**6))
        ),
        *(("_bas", 1, column, value) for column, value in ((0, 1.5), (0, True), (0, "1"), (0, 2**40), (6, None))),
    ],
)
def test_tables_that_point_elsewhere_never_reach_the_integrals(
    change: Any, name: str, row: int, column: int, value: Any
) -> None:
    table = json.loads(gto.M(atom=WATER, basis="sto-3g", verbose=0).dumps())
    table[name][row][column] = value
    with pytest.raises(StorageError, match="is damaged: its table"):
        read_chkfile(change({name: table[name]}))


@pytest.mark.parametrize(
    "entries",
    [
        {"_env": [0.0] * 100 + [10**400]},
        {"_basis": {"O": [[0, [10**400, 1.0]]]}},
        {"symmetry": True, "groupname": "C1", "_symm_orig": [0, 0, -(10**400)], "_symm_axes": np.eye(3).tolist()},
    ],
    ids=list,
)
def test_integers_beyond_all_floats_are_damage(change: Any, entries: dict[str, Any]) -> None:
    with pytest.raises(StorageError, match="is damaged: its"):
        read_chkfile(change(entries))


@pytest.mark.parametrize("column", [1, 2, 5, 6])
def test_tables_of_core_potentials_are_checked_too(change: Any, column: int) -> None:
    mol = make_mol(*MOLECULES["core potential"][:2], **MOLECULES["core potential"][2])
    table = json.loads(mol.dumps())
    table["_ecpbas"][0][column] = 10**6
    with pytest.raises(StorageError, match="is damaged: its table _ecpbas"):
        read_chkfile(change(table))


def test_axes_of_another_molecule_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.chk"
    save(scf.RHF(make_mol(WATER, "6-31g", symmetry=True)), path)
    with h5py.File(path, "r") as file:
        table = json.loads(file["mol"][()])
    turned = [[0.6, 0.8, 0], [-0.8, 0.6, 0], [0, 0, 1]]
    replace(path, "mol", json.dumps(table | {"_symm_axes": turned}))
    with pytest.raises(StorageError, match="does not have the point group C2v"):
        read_chkfile(path)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(-5, 5))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_never_ends_in_another_error(change: Any, data: st.DataObject) -> None:
    good = json.loads(gto.M(atom=WATER, basis="sto-3g", symmetry=True, verbose=0).dumps())
    name = data.draw(st.sampled_from(sorted(good)))
    value = good[name]
    if isinstance(value, list) and value and data.draw(st.booleans()):
        value = list(value)
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(VALUES)
    else:
        value = data.draw(VALUES)
    try:
        found = read_chkfile(change(good | {name: value}))
    except TilewiseError:
        return
    assert found.mol.nelectron == 10
