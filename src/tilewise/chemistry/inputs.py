"""What a user names as input: a molecule, a checkpoint of PySCF or an FCIDUMP file, and the mean field of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.chkfile import SavedMeanField, brillouin, read_chkfile
from tilewise.chemistry.fcidump import read_fcidump, reference
from tilewise.chemistry.geometry import Geometry, read_xyz
from tilewise.chemistry.identity import molecule_digest
from tilewise.chemistry.integrals import hartree_fock, load_basis, make_molecule, one_thread, pyscf_module
from tilewise.chemistry.kept_orbitals import read_archive, write_archive
from tilewise.chemistry.orbitals import Frozen, parse_frozen
from tilewise.engines.base import current_engine
from tilewise.errors import InputError
from tilewise.spaces.integers import parse_integer
from tilewise.tensors.drafts import check_regular, parse_path

__all__ = [
    "BASIS",
    "KINDS",
    "Input",
    "Request",
    "check_electrons",
    "input_kind",
    "molecule_mean_field",
    "read_input",
]

Tell = Callable[[str], None]

BASIS: Final = "cc-pvdz"
"""Basis set of a molecule that is given without one."""

KINDS: Final[Mapping[str, str]] = {
    "xyz": "the atoms of a molecule (.xyz)",
    "chkfile": "a checkpoint of PySCF",
    "fcidump": "an FCIDUMP file",
}
"""What a file can be."""

_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_SUFFIXES: Final[Mapping[str, str]] = {
    ".chk": "chkfile",
    ".chkfile": "chkfile",
    ".h5": "chkfile",
    ".hdf5": "chkfile",
    ".fcidump": "fcidump",
}

_SAME_ENERGY = 1e-6
"""Energies of the same orbitals and integrals differ by less, in hartree."""

_KOHN_SHAM = 1e-3
"""Orbitals whose Fock matrix mixes occupied and virtual ones by more, in hartree, are not those of Hartree-Fock."""

_MOST_CHARGE = 10**6
"""No molecule has a larger one, and PySCF and Python fail on much larger ones."""

_ARRAYS: Final = ("mo_coeff", "mo_energy", "mo_occ", "e_tot")


@dataclass(frozen=True, slots=True)
class Request:
    """A file, and what a user says about it."""

    path: Path
    """The file."""
    basis: str | None = None
    """Basis set of a molecule; `BASIS` by default."""
    charge: int | None = None
    """Total charge of a molecule; 0 by default."""
    spin: int = 0
    """Unpaired electrons."""
    frozen: Frozen | str = None
    """Orbitals that are not correlated: a number, a list or array, or ``"core"``."""
    symmetry: bool = True
    """Whether the point group is used."""
    auxbasis: str | None = None
    """Auxiliary basis set that a molecule will need."""
    reproducible: bool = False
    """Whether a mean field must have the same bits each time that it is computed."""

    @property
    def freezes_core(self) -> bool:
        """Whether the usual core is not correlated; an array is compared with no word."""
        return isinstance(self.frozen, str) and self.frozen == "core"


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """A mean field, and where it comes from."""

    kind: str
    """One of `KINDS`."""
    mean_field: Any
    """What methods take."""
    frozen: Frozen
    """Orbitals that are not correlated."""
    basis: str | None
    """Name of the basis set, if it is known."""
    charge: int | None
    """Total charge, if there is a molecule."""
    natoms: int | None
    """Number of atoms, if there is a molecule."""
    group: str
    """Point group whose irreps are used; C1 without any."""

    @property
    def functions(self) -> int:
        """How many functions the orbitals are made of."""
        return int(np.shape(self.mean_field.mo_coeff)[0])

    @property
    def frozen_count(self) -> int:
        """How many orbitals are not correlated."""
        return int(np.count_nonzero(~parse_frozen(self.frozen, np.asarray(self.mean_field.mo_occ))))


def input_kind(path: Path) -> str:
    """What a file is, by its first bytes, and by its name where these do not tell."""
    file = parse_path(path)
    check_regular(file)
    try:
        with file.open("rb") as opened:
            head = opened.read(1 << 10)
    except FileNotFoundError as error:
        raise InputError(
            f"There is no file {file}. Expected {_kinds_text()}. Check the path and the folder it starts from."
        ) from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}. Expected {_kinds_text()}. Name another.") from error
    if not head.strip():
        raise InputError(f"{file} is empty. Expected {_kinds_text()}. Write it again, or name another.")
    if head.startswith(_HDF5):
        return "chkfile"
    if head.lstrip()[:4].upper() in (b"&FCI", b"$FCI"):
        return "fcidump"
    return "fcidump" if file.name.upper() == "FCIDUMP" else _SUFFIXES.get(file.suffix.lower(), "xyz")


def _kinds_text() -> str:
    first, *others = KINDS.values()
    return f"{first}, {' or '.join(others)}"


def read_input(request: Request, tell: Tell) -> Input:
    """The mean field of a file: read, or computed for a molecule.

    Ranks refuse a file together, and take the mean field of the first one, which alone computes it.
    """
    found = current_engine().agree(lambda: _read(request, tell))
    assert found is not None
    if found.kind != "xyz":
        return found
    return replace(found, mean_field=molecule_mean_field(found.mean_field, tell, reproducible=request.reproducible))


def _read(request: Request, tell: Tell) -> Input:
    """What a file has; in the place of a mean field that has to be computed is the molecule."""
    kind = input_kind(request.path)
    if kind == "xyz":
        return _from_molecule(request, tell)
    for option, value in (("basis", request.basis), ("charge", request.charge), ("spin", request.spin or None)):
        if value is not None:
            raise InputError(
                f"{option}={value!r} was given with {KINDS[kind]}, {request.path}. Expected it with an .xyz file only: "
                f"the file has orbitals of its own. Leave {option}= out."
            )
    return _from_chkfile(request, tell) if kind == "chkfile" else _from_fcidump(request, tell)


def _tell_kind(request: Request, kind: str, tell: Tell) -> None:
    tell(f"Input: {request.path}, taken as {KINDS[kind]}")


def _from_molecule(request: Request, tell: Tell) -> Input:
    geometry = read_xyz(request.path)
    charge = 0 if request.charge is None else request.charge
    check_electrons(geometry, charge, request.spin)
    basis = BASIS if request.basis is None else request.basis
    mol = make_molecule(geometry, basis, charge, symmetry=request.symmetry)
    frozen = _frozen_of(request, mol)
    _check_frozen(mol, frozen)
    _check_auxiliary(geometry, request.auxbasis)
    _tell_kind(request, "xyz", tell)
    return Input("xyz", mol, frozen, basis, charge, geometry.natoms, _group(mol))


def molecule_mean_field(
    mol: Any, tell: Tell, kept: Path | None = None, *, keeps: bool = True, reproducible: bool = False
) -> SavedMeanField:
    """Hartree-Fock of a molecule, or what an earlier run has kept of it.

    Parameters
    ----------
    mol : pyscf.gto.Mole
        The molecule, on every rank.
    tell : callable
        Called with a line of text.
    kept : Path, optional
        File of the orbitals: a second Hartree-Fock gives others, by rounding and by signs.
    keeps : bool
        Whether they are written to it.
    reproducible : bool
        Whether bits must be the same each time, for which one thread computes.
    """
    engine = current_engine()

    def solve() -> dict[str, Any]:
        if kept is not None and kept.exists():
            tell(f"Hartree-Fock: orbitals from {kept}")
            return _kept_orbitals(kept, mol)
        with one_thread(reproducible):
            found = _solve(mol, tell)
        if kept is None or not keeps or write_archive(kept, {"molecule": _digest_molecule(mol)} | found):
            return found
        tell(f"Hartree-Fock: orbitals from {kept}, which another job has just written")
        return _kept_orbitals(kept, mol)

    found = engine.of_first(engine.agree(solve, once=True))
    assert found is not None
    return SavedMeanField(mol, **found)


def _solve(mol: Any, tell: Tell) -> dict[str, Any]:
    tell(f"Hartree-Fock: {mol.natm} atoms, {mol.nao} functions, {mol.nelectron} electrons")
    solved = hartree_fock(mol)
    if not solved.converged:
        raise InputError(
            f"Hartree-Fock has not converged within {solved.max_cycle} cycles; its energy is {solved.e_tot:.8f} "
            "hartree. Expected a converged mean field. Check geometry and charge, or converge it with PySCF and "
            "give its checkpoint file instead of the molecule."
        )
    return {name: getattr(solved, name) for name in _ARRAYS}


def _check_auxiliary(geometry: Geometry, auxbasis: str | None) -> None:
    """Raise before the mean field is computed if PySCF has no such set for an element."""
    if auxbasis is None:
        return
    for symbol in sorted(set(geometry.symbols)):
        load_basis(pyscf_module().gto, auxbasis, symbol, "cc-pvdz-ri, def2-svp-ri or weigend")


def _from_chkfile(request: Request, tell: Tell) -> Input:
    saved = read_chkfile(request.path)
    fock = saved.get_fock()
    mixing = brillouin(saved, fock)
    if mixing > _KOHN_SHAM:
        raise InputError(
            f"The Fock matrix of {request.path} mixes occupied and virtual orbitals by {mixing:.2g} hartree: they come "
            "from Kohn-Sham, from another Hamiltonian (relativistic, in a solvent, in a field), or are not converged. "
            "Expected those of Hartree-Fock of the molecule alone. Make the file with "
            "pyscf.scf.RHF(mol).run(chkfile='hf.chk'), or give the mean field itself to a method in Python."
        )
    _tell_kind(request, "chkfile", tell)
    tell(f"Hartree-Fock: from the file, elements of up to {mixing:.1e} hartree between occupied and virtual orbitals")
    saved = _with_own_energy(saved, saved.energy_of(fock), tell)
    if not request.symmetry:
        saved.mol.symmetry = False
    basis = saved.mol.basis if isinstance(saved.mol.basis, str) else None
    frozen = _frozen_of(request, saved.mol)
    return Input("chkfile", saved, frozen, basis, int(saved.mol.charge), int(saved.mol.natm), _group(saved.mol))


def _with_own_energy(saved: SavedMeanField, energy: float, tell: Tell) -> SavedMeanField:
    """The mean field with the energy that the integrals used here give: that of a file may be of fitted ones."""
    if abs(energy - saved.e_tot) <= _SAME_ENERGY:
        return saved
    tell(
        f"Hartree-Fock: the energy in the file is {saved.e_tot:.10f}, as with fitted integrals; that of its orbitals "
        f"with the molecule's own is taken, {energy:.10f}"
    )
    return replace(saved, e_tot=energy)


def _from_fcidump(request: Request, tell: Tell) -> Input:
    if request.freezes_core:
        raise InputError(
            f"frozen='core' was given with {KINDS['fcidump']}, {request.path}, which names no atoms. Expected a number "
            "of orbitals, or a list. Pass, for example, 1."
        )
    made = reference(read_fcidump(request.path))
    _tell_kind(request, "fcidump", tell)
    if not request.symmetry:
        made = replace(made, orbsym=None)
    group = "C1" if made.orbsym is None else f"{len(np.unique(made.orbsym))} irreps"
    return Input("fcidump", made, _frozen_of(request, None), None, None, None, group)


def _group(mol: Any) -> str:
    return str(mol.groupname) if mol.symmetry else "C1"


def _frozen_of(request: Request, mol: Any) -> Frozen:
    """The orbitals that are not correlated, the usual core among them."""
    if request.freezes_core:
        return int(pyscf_module().data.elements.chemcore(mol))
    if isinstance(request.frozen, str):
        raise InputError(
            f"frozen={request.frozen!r} is unknown. Expected a number of orbitals, a list of orbitals counted from 0, "
            "or 'core'. Correct it."
        )
    return request.frozen


def check_electrons(geometry: Geometry, charge: int, spin: int) -> None:
    """Raise unless a molecule has a closed shell of electrons."""
    total = parse_integer(charge, "charge=", "Pass a whole number, such as charge=1.")
    if abs(total) > _MOST_CHARGE:
        raise InputError(
            f"The total charge is beyond {_MOST_CHARGE}. Expected that of a molecule. Pass a number such as charge=-1."
        )
    electrons = geometry.nuclear_charge - total
    if electrons < 1:
        raise InputError(
            f"charge={charge} leaves {electrons} electrons of {geometry.nuclear_charge}. Expected at least "
            f"2. Pass a charge of at most {geometry.nuclear_charge - 2}."
        )
    unpaired = parse_integer(spin, "spin=", "Pass the number of unpaired electrons, such as spin=0.")
    if unpaired:
        raise InputError(
            f"spin={spin} asks for {spin} unpaired electrons. Expected 0: the methods here are for closed "
            "shells. Leave spin= out if the molecule has one; for an open shell take another program, such as "
            "pyscf.cc.UCCSD."
        )
    if electrons % 2:
        raise InputError(
            f"The molecule has {electrons} electrons at charge {charge}, an odd number. Expected an even "
            f"number, a closed shell. Correct the atoms, or pass charge={total + 1} or charge={total - 1}."
        )


def _check_frozen(mol: Any, frozen: Frozen) -> None:
    """Say what is wrong with `frozen` before the mean field is computed."""
    occupied = mol.nelectron // 2
    if occupied > mol.nao:
        raise InputError(
            f"{mol.nao} functions cannot hold {mol.nelectron} electrons. Expected a function for each pair. "
            "Use a larger basis set, or correct the charge."
        )
    parse_frozen(frozen, np.repeat([2, 0], [occupied, mol.nao - occupied]))


def _digest_molecule(mol: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(molecule_digest(mol) + mol.groupname.encode(), np.uint8)


def _kept_orbitals(path: Path, mol: Any) -> dict[str, Any]:
    """Orbitals, their energies and occupations, and the energy, which an earlier run of the same molecule has kept."""
    remedy = f"Remove it and {path.stem}, or name another with --checkpoint."
    found = read_archive(path, remedy)
    if set(found) != {"molecule", *_ARRAYS} or not np.array_equal(found.pop("molecule"), _digest_molecule(mol)):
        raise InputError(f"{path} has the orbitals of another molecule or basis. Expected those of this one. {remedy}")
    return found | {"e_tot": float(found["e_tot"])}
