"""A closed-shell mean field from a checkpoint of PySCF, of which nothing is executed."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
import numpy.typing as npt

from tilewise.chemistry.integrals import pyscf_module
from tilewise.errors import InputError, StorageError
from tilewise.tensors.drafts import check_regular, parse_path

__all__ = ["SavedMeanField", "brillouin", "read_chkfile"]

Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]

_REMEDY = "Write a new one: set mf.chkfile, and call mf.run() of PySCF again."

_GROUPS = ("C1", "Ci", "Cs", "C2", "C2v", "C2h", "D2", "D2h", "Coov", "Dooh", "SO3")

_LABEL = r"[A-Za-z][A-Za-z0-9@:^_.+-]{0,31}"
"""Symbols of atoms, such as H, O1, GHOST-C or H@2."""

_BASIS_NAME = r"[A-Za-z0-9*+(), _-]+"

# Columns of the tables of libcint, and the part of its numbers that holds settings.
_ATOM_CHARGE, _ATOM_PLACE, _ATOM_MODEL, _ATOM_POINTERS = 0, 1, 2, slice(3, 6)
_SHELL_ATOM, _SHELL_MOMENTUM, _SHELL_PRIMITIVES, _SHELL_CONTRACTIONS, _SHELL_KAPPA = 0, 1, 2, 3, 4
_SHELL_EXPONENTS, _SHELL_COEFFICIENTS = 5, 6
_SETTINGS = 20
_OMEGA = 8

_MOST_CHARGE, _MOST_MOMENTUM, _MOST_PRIMITIVES = 130, 8, 64

_ORTHONORMAL = 1e-6
"""Largest element by which overlaps of orbitals may differ from the identity."""

_INVARIANT = 1e-7
"""Largest element that an operator may have between functions of different irreps."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedMeanField:
    """A restricted mean field that was saved, with the attributes of PySCF's that methods use."""

    mol: Any
    """The PySCF molecule."""
    mo_coeff: Floats
    """Orbitals (functions, orbitals)."""
    mo_energy: Floats
    """Orbital energies, in hartree."""
    mo_occ: Floats
    """Electrons in each orbital, 2 or 0."""
    e_tot: float
    """Energy, in hartree."""
    converged: bool = True
    """Taken for granted: a checkpoint does not say."""
    max_cycle: int = 0
    """No iterations are done."""
    verbose: int = 0
    """Nothing is printed."""

    def get_hcore(self) -> Floats:
        """Kinetic energy and attraction of the nuclei, over the functions."""
        return np.asarray(pyscf_module().scf.hf.get_hcore(self.mol))

    def get_veff(self, mol: Any = None, dm: Floats | None = None) -> Floats:
        """Coulomb and exchange matrices of Hartree-Fock over the functions, J - K / 2.

        Parameters
        ----------
        mol : pyscf.gto.Mole, optional
            As PySCF has it; this mean field's own by default.
        dm : array, optional
            Density matrix; that of the orbitals by default.
        """
        occupied = self.mo_coeff[:, self.mo_occ > 0]
        density = 2 * occupied @ occupied.T if dm is None else dm
        direct, exchange = pyscf_module().scf.hf.get_jk(self.mol if mol is None else mol, density)
        veff: Floats = np.asarray(direct - exchange / 2)
        return veff

    def get_fock(self, vhf: Floats | None = None, dm: Floats | None = None) -> Floats:
        """The Fock matrix of Hartree-Fock over the functions; `vhf` is what `get_veff` has given."""
        return self.get_hcore() + (self.get_veff(dm=dm) if vhf is None else vhf)

    def energy_of(self, fock: Floats) -> float:
        """The energy of the orbitals, of which `get_fock` gives the Fock matrix, in hartree."""
        occupied = self.mo_coeff[:, self.mo_occ > 0]
        return float(np.vdot(self.get_hcore() + fock, occupied @ occupied.T) + self.mol.energy_nuc())


def brillouin(mf: Any, fock: Floats | None = None) -> float:
    """Largest element of the Fock matrix between an occupied and a virtual orbital, in hartree.

    It vanishes for converged Hartree-Fock orbitals. Of a `SavedMeanField` it tells what the file does not: above 1e-3
    or so the orbitals come from Kohn-Sham or another Hamiltonian, and between that and 1e-5 from a mean field that is
    badly converged or fits the density.

    Parameters
    ----------
    mf : SavedMeanField, FcidumpReference or a restricted mean field of PySCF
        Orbitals with their Fock matrix, as `get_fock` gives it.
    fock : array, optional
        What it gives, if that is known already.
    """
    coefficients, occupied = np.asarray(mf.mo_coeff), np.asarray(mf.mo_occ) > 0
    known = np.asarray(mf.get_fock() if fock is None else fock)
    mixed = coefficients[:, occupied].T @ known @ coefficients[:, ~occupied]
    return float(np.abs(mixed).max(initial=0.0))


def read_chkfile(path: str | os.PathLike[str]) -> SavedMeanField:
    """Read the mean field that PySCF left in ``mf.chkfile``.

    PySCF itself evaluates text of such a file. Here the molecule is put together from the tables of numbers in it, and
    these are checked before integrals are made of them. The file does not say whether the mean field converged, nor
    whether it was Hartree-Fock, Kohn-Sham, density-fitted or relativistic: see `brillouin`.

    Parameters
    ----------
    path : str or Path
        The file.

    Examples
    --------
    >>> import tempfile
    >>> from pyscf import gto, scf
    >>> from tilewise.chemistry.chkfile import brillouin, read_chkfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mf = scf.RHF(gto.M(atom="H 0 0 0; H 0 0 0.74", basis="6-31g", verbose=0))
    ...     _ = mf.set(chkfile=f"{folder}/h2.chk").run()
    ...     saved = read_chkfile(f"{folder}/h2.chk")
    >>> round(saved.e_tot, 6), brillouin(saved) < 1e-4
    (-1.126755, True)
    """
    file = parse_path(path)
    check_regular(file)
    if not file.exists():
        raise InputError(
            f"There is no file {file}. Expected the path of a checkpoint of PySCF. Check the path and the folder it "
            "starts from."
        )
    try:
        with h5py.File(file, "r") as opened:
            mol = _Molecule(file, _read_table(opened, file)).restore()
            return _read_orbitals(opened, mol, file)
    except (OSError, RuntimeError, KeyError) as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{file} is no checkpoint of PySCF, or is damaged: {error}. {_REMEDY}") from error


def _damaged(file: Path, what: str) -> NoReturn:
    raise StorageError(f"The checkpoint {file} is damaged: {what}. Expected what PySCF writes. {_REMEDY}")


def _read_table(opened: Any, file: Path) -> dict[str, Any]:
    """What the file says about the molecule."""
    found = opened.get("mol")
    if not isinstance(found, h5py.Dataset) or found.shape != () or h5py.check_string_dtype(found.dtype) is None:
        raise StorageError(f"{file} has no molecule. Expected a checkpoint of PySCF, with an entry 'mol'. {_REMEDY}")
    text = found[()]
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise InputError(
            f"The molecule in {file} is not JSON: an old PySCF wrote it as Python code, or it is damaged. Expected "
            "JSON, as PySCF writes today; code is not executed. Run the calculation again, or rewrite a file you trust "
            "with pyscf.lib.chkfile.load_mol and save_mol."
        )
    return table


@dataclass(frozen=True, slots=True, eq=False)
class _Molecule:
    """Makes a molecule of what a file says about it, and checks all of it."""

    file: Path
    """The file."""
    table: dict[str, Any]
    """What it says."""

    def restore(self) -> Any:
        """The molecule, with the tables of the file."""
        self._check_kind()
        env = self._env()
        atoms = self._atoms(env)
        shells = self._shells("_bas", env, len(atoms))
        potentials = self._shells("_ecpbas", env, len(atoms))
        mol = pyscf_module().gto.Mole()
        mol.verbose, mol.unit, mol.spin, mol._built = 0, "Bohr", 0, True
        mol._atm, mol._bas, mol._ecpbas, mol._env = atoms, shells, potentials, env
        mol._atom = mol.atom = self._geometry(atoms, env)
        mol._basis, mol._ecp = self._functions("_basis"), self._functions("_ecp")
        mol.basis, mol.ecp = self._basis_names() or mol._basis, mol._ecp
        mol.charge = self._number("charge", 0)
        mol._nelectron = self._number("_nelectron", None)
        mol.cart = self._flag("cart")
        self._restore_symmetry(mol)
        return mol

    def _check_kind(self) -> None:
        remedy = "Make one with pyscf.scf.RHF of a molecule with spin=0."
        if {"a", "_mesh", "mesh", "dimension"} & set(self.table):
            raise InputError(f"{self.file} holds a periodic cell. Expected a molecule. {remedy}")
        if self.table.get("_pseudo"):
            raise InputError(f"{self.file} has pseudopotentials of solids. Expected core potentials or none. {remedy}")
        if self.table.get("spin", 0) != 0:
            raise InputError(f"{self.file} has spin={self.table['spin']!r:.20}. Expected a closed shell. {remedy}")
        if self.table.get("_built") is not True:
            raise InputError(f"The molecule in {self.file} was not built. Expected one with functions. {remedy}")

    def _env(self) -> Floats:
        found = self.table.get("_env")
        if not isinstance(found, list) or len(found) < _SETTINGS or not all(map(_is_number, found)):
            _damaged(self.file, "its numbers of atoms and functions (_env) are not all numbers")
        env = np.array(found, np.float64)
        if not np.isfinite(env).all():
            _damaged(self.file, "its numbers of atoms and functions (_env) are not all finite")
        if env[_OMEGA]:
            raise InputError(
                f"{self.file} has a Coulomb operator with range separation (omega={env[_OMEGA]}). Expected the full "
                "one. Make the mean field without mol.omega."
            )
        env[:_SETTINGS] = 0.0
        return env

    def _integers(self, name: str, columns: int) -> Int32s:
        found = self.table.get(name, [])
        whole = isinstance(found, list) and all(
            isinstance(row, list) and len(row) == columns and all(type(x) is int and abs(x) < 2**31 for x in row)
            for row in found
        )
        if not whole:
            _damaged(self.file, f"its table {name} has not {columns} integers in each row")
        return np.array(found, np.int32).reshape(-1, columns)

    def _atoms(self, env: Floats) -> Int32s:
        atoms = self._integers("_atm", 6)
        charge, place, model = (atoms[:, column] for column in (_ATOM_CHARGE, _ATOM_PLACE, _ATOM_MODEL))
        right = (charge >= 0) & (charge <= _MOST_CHARGE) & (model >= 0) & (model <= 4)
        right &= _inside(place, 3, env) & _inside(atoms[:, _ATOM_POINTERS], 1, env).all(axis=1)
        if not len(atoms) or not right.all():
            _damaged(self.file, "its table of atoms is empty, or points to numbers that are not there")
        return atoms

    def _shells(self, name: str, env: Floats, natoms: int) -> Int32s:
        """Shells of functions, or of core potentials, which have momenta from -1 on."""
        shells, potential = self._integers(name, 8), name == "_ecpbas"
        atom, momentum, primitives = (
            shells[:, column].astype(np.int64) for column in (_SHELL_ATOM, _SHELL_MOMENTUM, _SHELL_PRIMITIVES)
        )
        contractions = shells[:, _SHELL_CONTRACTIONS].astype(np.int64)
        right = (atom >= 0) & (atom < natoms) & (momentum >= -int(potential)) & (momentum <= _MOST_MOMENTUM)
        right &= (primitives >= 1) & (primitives <= _MOST_PRIMITIVES)
        right &= (contractions >= int(not potential)) & (contractions <= _MOST_PRIMITIVES)
        right &= _inside(shells[:, _SHELL_EXPONENTS], primitives, env)
        right &= _inside(shells[:, _SHELL_COEFFICIENTS], primitives * (1 if potential else contractions), env)
        if not potential:
            right &= shells[:, _SHELL_KAPPA] == 0
        if not right.all() or not (len(shells) or potential):
            _damaged(self.file, f"its table {name} is empty, or points to atoms or numbers that are not there")
        return shells

    def _geometry(self, atoms: Int32s, env: Floats) -> list[list[Any]]:
        """Symbols and positions, in bohr; they have to be those of the table of atoms."""
        found, places = self.table.get("_atom"), env[atoms[:, [_ATOM_PLACE]] + np.arange(3)]
        right = isinstance(found, list) and all(
            isinstance(atom, list) and len(atom) == 2 and isinstance(atom[0], str) and re.fullmatch(_LABEL, atom[0])
            for atom in found
        )
        if not right or not isinstance(found, list) or [atom[1] for atom in found] != places.tolist():
            _damaged(self.file, "its list of atoms is not that of its tables")
        return [[atom[0], list(place)] for atom, place in zip(found, places.tolist(), strict=True)]

    def _functions(self, name: str) -> dict[str, Any]:
        """Numbers of the basis sets or core potentials of atoms; names would be looked up, files opened."""
        found = self.table.get(name, {})
        right = isinstance(found, dict) and all(
            re.fullmatch(_LABEL, label) and isinstance(value, list) and _is_numeric(value)
            for label, value in found.items()
        )
        if not right:
            _damaged(self.file, f"its entry {name} is not made of numbers")
        return dict(found)

    def _basis_names(self) -> str | dict[str, str] | None:
        """The name of the basis set, or one for each element; PySCF finds the sets for density fitting by them."""
        text = str(self.table.get("basis"))
        if quoted := re.fullmatch(f"'({_BASIS_NAME})'", text):
            return None if Path(quoted[1]).is_file() else quoted[1]
        pair = f"'({_LABEL})': '({_BASIS_NAME})'"
        found = dict(re.findall(pair, text)) if re.fullmatch(rf"\{{{pair}(, {pair})*\}}", text) else {}
        known = all(map(_is_element, found)) and not any(Path(name).is_file() for name in found.values())
        return found if found and known else None

    def _number(self, name: str, default: int | None) -> Any:
        found = self.table.get(name, default)
        if found is not None and (type(found) is not int or abs(found) > 10**6):
            _damaged(self.file, f"its entry {name} is {found!r:.40}")
        return found

    def _flag(self, name: str) -> bool:
        found = self.table.get(name, False)
        if not isinstance(found, bool):
            _damaged(self.file, f"its entry {name} is {found!r:.40}")
        return found

    def _restore_symmetry(self, mol: Any) -> None:
        """Functions of the point group; without the axes, which old files do not have, there is none."""
        origin, axes, group = (self.table.get(name) for name in ("_symm_orig", "_symm_axes", "groupname"))
        if not self.table.get("symmetry") or origin is None or axes is None:
            return
        numeric = isinstance(origin, list) and isinstance(axes, list) and _is_numeric([origin, axes])
        if group not in _GROUPS or not numeric or _shape(origin) != (3,) or _shape(axes) != (3, 3):
            _damaged(self.file, f"its point group is {group!r:.20}, or its axes are not three vectors")
        mol.groupname = mol.topgroup = group
        mol._symm_orig, mol._symm_axes = np.array(origin, np.float64), np.array(axes, np.float64)
        straight = np.abs(np.abs(mol._symm_axes) - 0.5).max() < 1 and np.allclose(
            mol._symm_axes @ mol._symm_axes.T, np.eye(3), rtol=0, atol=_ORTHONORMAL
        )
        if not straight or np.abs(mol._symm_orig).max() > np.abs(mol.atom_coords()).max() + 1:
            _damaged(self.file, "the axes of its point group are not orthonormal, or begin far from the molecule")
        symm = pyscf_module().symm
        try:
            mol.symm_orb, mol.irrep_id = symm.symm_adapted_basis(mol, group, mol._symm_orig, mol._symm_axes)
            mol.irrep_name = [symm.irrep_id2name(group, irrep) for irrep in mol.irrep_id]
        except (AssertionError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise StorageError(
                f"The molecule in {self.file} does not have the point group {group}: {error}. Expected what PySCF "
                f"writes. {_REMEDY}"
            ) from error
        mol.symmetry = True
        self._check_symmetry(mol)

    def _check_symmetry(self, mol: Any) -> None:
        """Overlap and nuclear attraction do not mix irreps if the axes are those of the molecule."""
        for name in ("int1e_ovlp", "int1e_nuc"):
            operator = mol.intor_symmetric(name)
            for left, right in combinations(mol.symm_orb, 2):
                if np.abs(left.T @ operator @ right).max(initial=0.0) > _INVARIANT:
                    _damaged(self.file, f"the molecule does not have the point group {mol.groupname}")


def _is_element(label: str) -> bool:
    """Whether PySCF knows what a basis set is given for; the default is for all other elements."""
    try:
        return label == "default" or bool(pyscf_module().gto.charge(label) >= 0)
    except (LookupError, RuntimeError):
        return False


def _is_number(value: Any) -> bool:
    """Whether a value is a float, or an integer that is not beyond all floats."""
    return type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)


def _is_numeric(value: Any) -> bool:
    """Whether nested lists hold numbers and nothing else."""
    if isinstance(value, list):
        return all(map(_is_numeric, value))
    return _is_number(value) and bool(np.isfinite(float(value)))


def _shape(value: list[Any]) -> tuple[int, ...] | None:
    try:
        return np.shape(value)
    except ValueError:
        return None


def _inside(begin: npt.NDArray[np.integer[Any]], count: Any, env: Floats) -> npt.NDArray[np.bool_]:
    """Whether so many numbers follow from there on."""
    found: npt.NDArray[np.bool_] = (begin >= 0) & (begin.astype(np.int64) + count <= len(env))
    return found


def _read_orbitals(opened: Any, mol: Any, file: Path) -> SavedMeanField:
    remedy = "Make one with pyscf.scf.RHF of a molecule with spin=0."
    group, size = opened.get("scf"), int(mol.nao)
    if not isinstance(group, h5py.Group):
        raise StorageError(f"{file} has no mean field. Expected a checkpoint of PySCF, with an entry 'scf'. {_REMEDY}")
    entries = {name: group.get(name) for name in ("mo_coeff", "mo_energy", "mo_occ", "e_tot")}
    shapes = {name: getattr(entry, "shape", None) for name, entry in entries.items()}
    missing = [name for name, shape in shapes.items() if shape is None]
    if missing:
        _damaged(file, f"{' and '.join(missing)} of its mean field are missing")
    count = shapes["mo_occ"]
    if not isinstance(count, tuple) or len(count) != 1 or shapes["mo_coeff"] != (size, *count) or count[0] > size:
        raise InputError(
            f"The orbitals in {file} have shape {shapes['mo_coeff']} and occupations of shape {count}. Expected those "
            f"of a restricted closed shell, ({size}, n) and (n,). {remedy}"
        )
    if shapes["mo_energy"] != count or shapes["e_tot"] != ():
        _damaged(file, "the orbital energies or the energy have another shape than the orbitals")
    arrays = {name: np.asarray(entry[()]) for name, entry in entries.items()}
    for name, array in arrays.items():
        if array.dtype.kind == "c":
            raise InputError(f"{name} in {file} is complex. Expected real orbitals. {remedy}")
        if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            _damaged(file, f"{name} has values that are no finite numbers")
    coefficients, energies, occupations = (
        arrays[name].astype(np.float64) for name in ("mo_coeff", "mo_energy", "mo_occ")
    )
    _check_orbitals(mol, coefficients, occupations, file)
    return SavedMeanField(mol, coefficients, energies, occupations, float(arrays["e_tot"]))


def _check_orbitals(mol: Any, coefficients: Floats, occupations: Floats, file: Path) -> None:
    if not np.isin(occupations, (0, 2)).all():
        raise InputError(
            f"{file} has orbitals that are not doubly occupied or empty. Expected a closed shell. Make one with "
            "pyscf.scf.RHF of a molecule with spin=0."
        )
    if occupations.sum() != mol.nelectron:
        _damaged(file, f"its orbitals hold {occupations.sum():.0f} electrons, its molecule has {mol.nelectron}")
    overlap = coefficients.T @ mol.intor_symmetric("int1e_ovlp") @ coefficients
    off = float(np.abs(overlap - np.eye(len(overlap))).max(initial=0.0))
    if not off < _ORTHONORMAL:
        _damaged(file, f"overlaps of its orbitals differ by {off:.2g} from those of orthonormal ones")
