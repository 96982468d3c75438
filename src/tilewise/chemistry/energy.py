"""`run`: from an .xyz file to an energy, with every wrong input answered by an `InputError`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilewise.chemistry.geometry import Geometry, read_xyz
from tilewise.chemistry.integrals import hartree_fock, make_molecule
from tilewise.chemistry.mp2 import MP2
from tilewise.chemistry.orbitals import parse_frozen
from tilewise.contract import einsum
from tilewise.errors import InputError
from tilewise.factories import random
from tilewise.spaces import Space
from tilewise.spaces.integers import parse_integer

__all__ = ["METHODS", "EnergyResult", "check_electrons", "run"]

METHODS: Final[Mapping[str, type[MP2]]] = {"mp2": MP2}
"""Methods by the name a user types."""


@dataclass(frozen=True, slots=True)
class EnergyResult:
    """Energies of a molecule and what they were made of."""

    e_hf: float
    """Energy of the mean field, in hartree."""
    e_corr: float
    """Correlation energy, in hartree."""
    e_tot: float
    """Sum of the two, in hartree."""
    method: str
    """Name of the method."""
    basis: str
    """Name of the basis set."""
    natoms: int
    """Number of atoms."""
    nbasis: int
    """Number of atomic functions."""
    nocc: int
    """Occupied orbitals that were correlated."""
    nvir: int
    """Virtual orbitals that were correlated."""
    seconds: float
    """Wall time of everything, the mean field included."""
    explanation: str
    """The plan of the integral transformation, as a person reads it."""


def run(
    xyz_path: Path,
    *,
    basis: str,
    method: str,
    frozen: int = 0,
    charge: int = 0,
    spin: int = 0,
    progress: Callable[[str], None] | None = None,
) -> EnergyResult:
    r"""Compute the energy of the molecule in an .xyz file.

    Parameters
    ----------
    xyz_path : Path
        The file, with coordinates in Angstrom.
    basis : str
        Name of a basis set that PySCF knows.
    method : str
        Name of a method, one of `METHODS`, in any case of letters.
    frozen : int
        Lowest orbitals that are not correlated.
    charge : int
        Total charge.
    spin : int
        Unpaired electrons; the present methods need none.
    progress : callable, optional
        Called with a line of text at each stage.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from tilewise.chemistry.energy import run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "hydrogen.xyz"
    ...     _ = file.write_text("2\nbond of 0.74 Angstrom\nH 0 0 0\nH 0 0 0.74\n")
    ...     result = run(file, basis="6-31g", method="mp2")
    >>> round(result.e_corr, 6), result.nbasis
    (-0.017381, 4)
    """
    started = time.perf_counter()
    name = _parse_method(method)
    geometry = read_xyz(xyz_path)
    check_electrons(geometry, charge, spin)
    mol = make_molecule(geometry, basis, charge)
    _check_frozen(mol, frozen)
    if progress is not None:
        progress("Loops: loaded, or compiled if this is the first time")
    _load_loops()
    if progress is not None:
        progress(f"Hartree-Fock: {geometry.natoms} atoms, {mol.nao} functions, {mol.nelectron} electrons")
    solver = METHODS[name](hartree_fock(mol), frozen, verbose=0, progress=progress)
    e_corr, _ = solver.kernel()
    return EnergyResult(
        e_hf=solver.e_hf,
        e_corr=e_corr,
        e_tot=solver.e_hf + e_corr,
        method=name,
        basis=basis,
        natoms=geometry.natoms,
        nbasis=int(mol.nao),
        nocc=solver.nocc,
        nvir=solver.nvir,
        seconds=time.perf_counter() - started,
        explanation=solver.plan().explain(),
    )


def _load_loops() -> None:
    """Run a small contraction of each kind, so that figures of the first run are those of running, not of compiling."""
    space = Space([8, 8])
    small = random((space, space))
    einsum("ij,jk->ik", small, small)
    einsum("ij->ji", small)
    einsum("ij,ij->", small, small)


def _parse_method(method: str) -> str:
    name = method.lower() if isinstance(method, str) else method
    if name not in METHODS:
        known = ", ".join(sorted(METHODS))
        raise InputError(f"There is no method {method!r}. Expected one of: {known}. Correct the name.")
    return name


def check_electrons(geometry: Geometry, charge: int, spin: int) -> None:
    """Raise unless a molecule has a closed shell of electrons."""
    total = parse_integer(charge, "charge=", "Pass a whole number, such as charge=1.")
    electrons = geometry.nuclear_charge - total
    if electrons < 1:
        raise InputError(
            f"charge={charge} leaves {electrons} electrons of {geometry.nuclear_charge}. Expected at least "
            "2. Correct the charge."
        )
    unpaired = parse_integer(spin, "spin=", "Pass the number of unpaired electrons, such as spin=0.")
    if unpaired:
        raise InputError(
            f"spin={spin} asks for {spin} unpaired electrons. Expected 0: the methods here are for closed "
            "shells. Leave spin= out."
        )
    if electrons % 2:
        raise InputError(
            f"The molecule has {electrons} electrons at charge {charge}, an odd number. Expected an even "
            f"number, a closed shell. Correct the atoms, or pass charge={total + 1} or charge={total - 1}."
        )


def _check_frozen(mol: Any, frozen: int) -> None:
    """Say what is wrong with `frozen` before the mean field is computed."""
    parse_integer(frozen, "frozen=", "Pass the number of lowest orbitals to leave out.")
    occupied = mol.nelectron // 2
    if occupied > mol.nao:
        raise InputError(
            f"{mol.nao} functions cannot hold {mol.nelectron} electrons. Expected a function for each pair. "
            "Use a larger basis set."
        )
    parse_frozen(frozen, np.repeat([2, 0], [occupied, mol.nao - occupied]))
