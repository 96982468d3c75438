from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewise
from chemistry.molecules import ETHENE, HELIUM_CHAIN, HYDROGEN, WATER, make_mol
from tilewise.chemistry import hamiltonian, integrals
from tilewise.chemistry.geometry import Geometry
from tilewise.chemistry.integrals import (
    AtomicOrbitals,
    CoulombSource,
    fock_matrix,
    hartree_fock,
    make_molecule,
    pair_bounds,
)
from tilewise.errors import InputError, MissingPackageError
from tilewise.plans.transform import TilePairs


def atom(symbol: str) -> Geometry:
    return Geometry((symbol,), np.zeros((1, 3)), "")


@pytest.mark.parametrize("tile", [1, 4, 16, 1000])
@pytest.mark.parametrize(
    ("atoms", "basis", "options"),
    [
        (WATER, "cc-pvdz", {}),
        (WATER, "6-31g*", {"cart": True}),
        (HYDROGEN, "ano@3s2p", {}),  # general contractions: several functions share a shell
        ("O 0 0 0; ghost-H 0 0 1; H 0 1 0; H 0 0 -1", {"O": "6-31g", "H": "sto-3g"}, {}),
    ],
    ids=["spherical", "cartesian", "general", "centre without functions"],
)
def test_blocks_are_pyscf_integrals_in_tile_order(
    atoms: str, basis: object, options: dict[str, bool], tile: int
) -> None:
    mol = make_mol(atoms, basis, **options)
    functions = AtomicOrbitals.of(mol, tile)
    assert functions.space.size == mol.nao
    assert functions.shells[-1] == mol.nbas
    expected = mol.intor("int2e")[np.ix_(*[functions.order] * 4)]
    for (row, column), block in integral_blocks(functions).items():
        np.testing.assert_allclose(block, packed(expected, functions, row, column), rtol=0, atol=1e-13)


def integral_blocks(functions: AtomicOrbitals) -> dict[tuple[int, int], Any]:
    """All blocks of pairs of tiles against pairs of tiles."""
    pairs = TilePairs((functions.space, functions.space), symmetric=True, packed=True)
    source, blocks = CoulombSource.of(functions, pairs), {}
    for row in range(pairs.count):
        for column in range(pairs.count):
            blocks[row, column] = np.empty((int(pairs.sizes[row]), int(pairs.sizes[column])))
            source.read(row, column, blocks[row, column])
    return blocks


def packed(dense: Any, functions: AtomicOrbitals, row: int, column: int) -> Any:
    """The same block, cut out of all integrals."""
    pairs, space = TilePairs((functions.space, functions.space), symmetric=True, packed=True), functions.space
    elements = []
    for pair in (row, column):
        first, second = (np.arange(space.offsets[t], space.offsets[t + 1]) for t in pairs.tiles[pair])
        both = np.array([(p, q) for p in first for q in second if first[0] != second[0] or p >= q])
        elements.append(both)
    (bra, ket) = elements
    return dense[bra[:, 0][:, None], bra[:, 1][:, None], ket[:, 0], ket[:, 1]]


def test_tiles_follow_the_atoms() -> None:
    functions = AtomicOrbitals.of(make_mol(ETHENE, "6-31g"), 13)
    assert functions.space.sizes.tolist() == [13, 13]  # CH2 and CH2, though the file lists C C H H H H
    atoms = functions.mol._bas[:, 0]
    groups = [set(atoms[a:b].tolist()) for a, b in zip(functions.shells[:-1], functions.shells[1:], strict=True)]
    assert sorted(map(sorted, groups)) == [[0, 2, 3], [1, 4, 5]]


def test_the_molecule_is_not_changed() -> None:
    mol = make_mol(ETHENE, "6-31g")
    before = mol._bas.copy()
    AtomicOrbitals.of(mol, 5)
    assert np.array_equal(mol._bas, before)


def test_bounds_on_blocks_are_rigorous() -> None:
    functions = AtomicOrbitals.of(make_mol(HELIUM_CHAIN, "6-31g"), 4)
    bounds = pair_bounds(functions, TilePairs((functions.space, functions.space), symmetric=True, packed=True))
    blocks = integral_blocks(functions)
    assert all(np.linalg.norm(block) <= bounds[row] * bounds[column] + 1e-14 for (row, column), block in blocks.items())


def test_fock_matrix_is_diagonal_over_orbitals() -> None:
    mf = hartree_fock(make_mol(WATER, "6-31g"))
    np.testing.assert_allclose(fock_matrix(mf), np.diag(mf.mo_energy), rtol=0, atol=1e-5)


def test_core_potentials_come_with_their_basis() -> None:
    assert make_molecule(atom("Xe"), "def2-svp", 0).nelectron == 26
    assert make_molecule(atom("Ne"), "def2-svp", 0).nelectron == 10


@pytest.mark.parametrize("basis", ["6-31g(d,p)", "6-311++G**", "STO-3G", "aug-cc-pvtz", "def2-tzvp"])
def test_takes_basis(basis: str) -> None:
    assert make_molecule(atom("Ne"), basis, 0).nelectron == 10


def test_charge_and_unit_reach_pyscf() -> None:
    geometry = Geometry(("H", "H"), np.array([[0.0, 0, 0], [0, 0, 0.74]]), "")
    mol = make_molecule(geometry, "sto-3g", -2)
    assert mol.nelectron == 4
    assert mol.atom_coords(unit="Angstrom")[1, 2] == pytest.approx(0.74, abs=1e-14)


@pytest.mark.parametrize(
    ("basis", "message"),
    [
        ("no-such-basis", "no basis set 'no-such-basis' for the element U"),
        ("6-31q", "no basis set '6-31q'"),
        ("6-31g(foo)", "no basis set"),
        ("cc-pvdz", "no basis set 'cc-pvdz' for the element U"),
        ("", "a file or no name"),
        (None, "a file or no name"),
        ("../basis.dat", "a file or no name"),
        ("U S\n1.0 1.0", "a file or no name"),
        ("gth-dzvp", "pseudopotentials"),
    ],
)
def test_rejects_basis(basis: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_molecule(atom("U"), basis, 0)


def test_a_file_is_never_read_as_basis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("H S\n1.0 print('evaluated')\n")
    with pytest.raises(InputError, match="basis='mine' is a file"):
        make_molecule(atom("H"), "mine", 1)


def test_names_the_extra_when_pyscf_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyscf", None)
    monkeypatch.setitem(sys.modules, "pyscf.gto", None)
    with pytest.raises(MissingPackageError, match=r'pip install "tilewise\[chem\]"'):
        make_molecule(atom("He"), "sto-3g", 0)


def test_hartree_fock_converges_tightly() -> None:
    mf = hartree_fock(make_mol(WATER, "6-31g"))
    assert mf.converged
    assert np.abs(mf.get_grad(mf.mo_coeff, mf.mo_occ)).max() < 1e-5


def imported(module: str) -> set[str]:
    """What the package takes from one of its modules."""
    trees = [ast.parse(path.read_text()) for path in Path(tilewise.__file__).parent.rglob("*.py")]
    statements = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {each.name for statement in statements if statement.module == module for each in statement.names}


@pytest.mark.parametrize("module", [integrals, hamiltonian])
def test_a_module_exports_what_others_take_from_it_and_nothing_that_is_not_its_own(module: Any) -> None:
    assert imported(module.__name__) <= set(module.__all__)
    own = {getattr(getattr(module, name), "__module__", module.__name__) for name in module.__all__}
    assert own == {module.__name__}
