"""`Reference`: the orbitals that a method correlates, their Fock matrix, and where their integrals come from."""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.fcidump import FcidumpReference
from tilewise.chemistry.integrals import fock_matrix, orbital_irreps
from tilewise.chemistry.orbitals import Frozen, check_mean_field, parse_frozen
from tilewise.chemistry.spaces import OrbitalSpaces
from tilewise.contract import einsum
from tilewise.errors import InputError
from tilewise.factories import from_dense
from tilewise.tensors import BlockTensor, Engine

__all__ = ["Reference", "parse_reference"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SAME_ENERGY = 1e-5
"""Energies of mean fields of the same molecule differ by less, in hartree."""

CANONICAL = 5e-5
"""Largest element of the Fock matrix between two canonical orbitals, in hartree.

PySCF's default stops where the norm of 2 f(ia) is below 3 sqrt(1e-9), so no f(ia) is above 4.7e-5; what it leaves of
any element is rather 1e-7 to 1e-6.  Amplitudes are small, and energies change by a few hundredths of an element at the
most.  Localised orbitals have elements above 1e-2.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Closed-shell orbitals without the frozen ones, occupied orbitals first."""

    integrals: Any
    """What `transform` takes as the origin of integrals: a molecule, or an array of them."""
    core: Floats
    """What does not depend on the density: the Hamiltonian of one electron over functions, or a file's Fock matrix."""
    occupied: Floats
    """Coefficients (functions, occupied orbitals)."""
    virtual: Floats
    """Coefficients (functions, virtual orbitals)."""
    fock: Floats
    """Fock matrix over both, in hartree."""
    irreps: Ints | None
    """Irrep of each orbital, such that products are XORs; None without symmetry."""
    e_tot: float
    """Energy of the mean field, in hartree."""
    active: Ints
    """Numbers of both among the orbitals of the mean field."""

    @property
    def nocc(self) -> int:
        """Occupied orbitals."""
        return int(self.occupied.shape[1])

    @property
    def nvir(self) -> int:
        """Virtual orbitals."""
        return int(self.virtual.shape[1])

    def of_first(self, engine: Engine) -> Reference:
        """The orbitals of the first rank, on every rank: those of the same energy are not the same everywhere.

        Each rank has solved its mean field by itself, and orbitals have no sign of their own.
        """
        given = (self.occupied, self.virtual, self.fock, self.irreps, self.e_tot, self.active)
        found = engine.of_first(given)
        first = Reference(self.integrals, self.core, *found)
        engine.agree(partial(self._check_alike, first))
        return first

    def _check_alike(self, first: Reference) -> None:
        """Raise if the first rank has another mean field."""
        shapes = [[part.shape for part in (each.occupied, each.virtual)] for each in (self, first)]
        if shapes[0] != shapes[1] or abs(self.e_tot - first.e_tot) > SAME_ENERGY:
            raise InputError(
                f"The mean field of a rank has the energy {self.e_tot:.8f} and {self.nocc} + {self.nvir} orbitals. "
                f"Expected the same on every rank; the first one has {first.e_tot:.8f} and {first.nocc} + "
                f"{first.nvir}. Converge it tighter, or solve it on one rank and give it to the others."
            )

    def tiled(self, tile: int) -> tuple[Reference, OrbitalSpaces]:
        """The orbitals in the order of tiles, and the tiles."""
        irreps = (None, None) if self.irreps is None else (self.irreps[: self.nocc], self.irreps[self.nocc :])
        spaces = OrbitalSpaces.of((self.nocc, self.nvir), irreps, tile)
        order = np.concatenate([spaces.occ.order, self.nocc + spaces.vir.order])
        ordered = replace(
            self,
            occupied=np.ascontiguousarray(self.occupied[:, spaces.occ.order]),
            virtual=np.ascontiguousarray(self.virtual[:, spaces.vir.order]),
            fock=np.ascontiguousarray(self.fock[np.ix_(order, order)]),
            irreps=None if self.irreps is None else self.irreps[order],
            active=self.active[order],
        )
        return ordered, spaces

    def check_canonical(self, method: str, *, singles: bool) -> None:
        """Raise if the Fock matrix is not diagonal, as a method takes it to be that has nothing but orbital energies.

        Parameters
        ----------
        method : str
            Its name.
        singles : bool
            Whether it has elements between occupied and virtual orbitals in its equations.
        """
        off = np.triu(np.abs(self.fock), 1)
        if singles:
            off[: self.nocc, self.nocc :] = 0.0
        if off.max(initial=0.0) <= CANONICAL:
            return
        pair = np.unravel_index(np.argmax(off), off.shape)
        kinds = ["occupied" if each < self.nocc else "virtual" for each in pair]
        first, second = self.active[list(pair)].tolist()
        raise InputError(
            f"The Fock matrix has the element {self.fock[pair]:.3g} hartree between orbital {first} ({kinds[0]}) and "
            f"orbital {second} ({kinds[1]}), counted from 0. Expected at most {CANONICAL}: {method} takes canonical "
            "orbitals, for which the matrix is diagonal. Pass those of a Hartree-Fock mean field that is converged "
            "with these integrals (not fitted ones, if these are exact), or use CCSD, which takes any orbitals."
        )

    def digest(self) -> bytes:
        """What tells these orbitals from others, to the last bit: amplitudes have their signs."""
        summary = hashlib.blake2b(digest_size=32)
        for part in (self.active, self.occupied, self.virtual, self.fock):
            summary.update(f"{part.shape}".encode())
            summary.update(np.ascontiguousarray(part).tobytes())
        return summary.digest()


Turns = tuple[Floats, Floats]

ROUNDING = 1e-9
"""Blocks of turns whose norm is below are those of orbitals that have nothing in common."""


def orbital_turns(given: Reference, wanted: Reference) -> Turns | None:
    """Matrices from the occupied and the virtual orbitals of one reference to those of another, None if they are equal.

    Both are of one molecule, and span the same space.
    """
    pairs = [(given.occupied, wanted.occupied), (given.virtual, wanted.virtual)]
    if all(np.array_equal(a, b) for a, b in pairs) or not hasattr(given.integrals, "intor_symmetric"):
        return None
    overlap = given.integrals.intor_symmetric("int1e_ovlp")
    occupied, virtual = (a.T @ overlap @ b for a, b in pairs)
    return occupied, virtual


def turn(amplitudes: Floats, turns: Turns | None) -> Floats:
    """Amplitudes t1[i, a] or t2[i, j, a, b] of the orbitals that `turns` leads to."""
    if turns is None:
        return amplitudes
    occupied, virtual = turns
    form = "ia,ik,ac->kc" if amplitudes.ndim == 2 else "ijab,ik,jl,ac,bd->klcd"
    matrices = (occupied, virtual) if amplitudes.ndim == 2 else (occupied, occupied, virtual, virtual)
    turned: Floats = np.einsum(form, amplitudes, *matrices, optimize=True)
    return turned


def turned_tensor(
    tensor: BlockTensor, turns: Turns, own: OrbitalSpaces, wanted: OrbitalSpaces, **options: Any
) -> BlockTensor:
    """Amplitudes t1[i, a] or t2[i, a, j, b] over other orbitals, block by block, as t1[i, a] or t2[i, j, a, b].

    Parameters
    ----------
    tensor : BlockTensor
        The amplitudes.
    turns : (array, array)
        From their orbitals to the others.
    own, wanted : OrbitalSpaces
        The tiles of both.
    **options
        Of `einsum`: ``reproducible``, ``memory``, ``scratch``.
    """
    occupied = from_dense(turns[0], (own.occ, wanted.occ), ROUNDING)
    virtual = from_dense(turns[1], (own.vir, wanted.vir), ROUNDING)
    form = "ia,ik,ac->kc" if tensor.ndim == 2 else "iajb,ik,jl,ac,bd->klcd"
    matrices = (occupied, virtual) if tensor.ndim == 2 else (occupied, occupied, virtual, virtual)
    return einsum(form, tensor, *matrices, engine=tensor.engine, **options)


def parse_reference(mf: Any, frozen: Frozen) -> Reference:
    """Take the orbitals of a closed-shell Hartree-Fock object of PySCF or of a file, or say why not.

    Parameters
    ----------
    mf : object
        A converged mean field.
    frozen : int, sequence of int or None
        Orbitals that are not correlated.
    """
    if not isinstance(mf, FcidumpReference):
        check_mean_field(mf)
    occupations, coefficients = np.asarray(mf.mo_occ), np.asarray(mf.mo_coeff, dtype=np.float64)
    active = parse_frozen(frozen, occupations)
    occupied, virtual = np.flatnonzero(active & (occupations > 0)), np.flatnonzero(active & (occupations == 0))
    chosen = np.concatenate([occupied, virtual])
    core = _core(mf)
    fock = fock_matrix(mf)[np.ix_(chosen, chosen)]
    irreps = _irreps(mf, coefficients)
    return Reference(
        integrals=mf.eri if isinstance(mf, FcidumpReference) else mf.mol,
        core=core,
        occupied=coefficients[:, occupied],
        virtual=coefficients[:, virtual],
        fock=fock,
        irreps=None if irreps is None else irreps[chosen],
        e_tot=float(mf.e_tot),
        active=chosen,
    )


def _core(mf: Any) -> Floats:
    """What the Hamiltonian has of one electron, a solvent around the nuclei alone included.

    What a frozen solvent keeps is of a density, which is known to the tolerance of its mean field only.
    """
    if isinstance(mf, FcidumpReference):
        return mf.fock
    core: Floats = np.asarray(mf.get_hcore(), np.float64)
    solvent = copy(getattr(mf, "with_solvent", None))
    if solvent is None:
        return core
    if getattr(solvent, "_intermediates", None):  # the charges that go with what the user's own one keeps
        solvent._intermediates = dict(solvent._intermediates)
    around_nuclei: Floats = solvent.kernel(np.zeros_like(core))[1]
    return core + around_nuclei


def _irreps(mf: Any, coefficients: Floats) -> Ints | None:
    if isinstance(mf, FcidumpReference):
        return None if mf.orbsym is None else np.asarray(mf.orbsym, np.int64)
    return orbital_irreps(mf.mol, coefficients)
