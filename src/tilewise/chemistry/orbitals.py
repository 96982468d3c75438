"""Which orbitals of a closed-shell mean field a method correlates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.spaces.integers import parse_integer, parse_integers

__all__ = ["check_mean_field", "named_orbitals", "parse_frozen"]

_Floats = npt.NDArray[np.float64]

SAME_INTEGRALS = 1e-7
"""Integrals of one molecule differ by less, in hartree."""

Frozen = int | Sequence[int] | npt.NDArray[np.integer[Any]] | None


def named_orbitals(mf: Any, letters: str) -> list[_Floats]:
    """Four sets of orbitals of a mean field by letters: o occupied, v virtual, p all."""
    occupied = np.asarray(mf.mo_occ) > 0
    kinds = {"o": occupied, "v": ~occupied, "p": np.ones_like(occupied)}
    if len(letters) != 4 or set(letters) - set(kinds):
        raise InputError(
            f"The orbitals {letters!r} are unknown. Expected four letters out of o (occupied), v (virtual), p (all), "
            "in chemists' order. Write, for example, ovov."
        )
    return [np.asarray(mf.mo_coeff)[:, kinds[letter]] for letter in letters]


def parse_frozen(frozen: Frozen, occupations: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which orbitals are correlated: all but the first `frozen`, or but those that are listed."""
    nmo, nocc = len(occupations), int(np.count_nonzero(occupations))
    active = np.ones(nmo, dtype=np.bool_)
    remedy = "Pass the number of lowest orbitals to leave out, or a list of orbital numbers from 0."
    if frozen is None or isinstance(frozen, (int, np.integer)):
        count = parse_integer(0 if frozen is None else frozen, "frozen=", remedy)
        if count < 0:
            raise InputError(f"frozen={count} is negative. Expected 0 to {max(nocc - 1, 0)}. {remedy}")
        active[:count] = False
    else:
        listed = parse_integers(frozen, "The orbitals of frozen=", remedy)
        different = listed.ndim == 1 and len(np.unique(listed)) == listed.size
        if not (different and np.isin(listed, np.arange(nmo)).all()):
            raise InputError(
                f"frozen={frozen!r} does not list orbitals. Expected different numbers from 0 to {nmo - 1}. {remedy}"
            )
        active[listed] = False
    if nocc and not (active & (occupations > 0)).any():
        raise InputError(
            f"frozen={frozen!r} leaves none of the {nocc} occupied orbitals to correlate. Expected at most "
            f"{nocc - 1} of them to be frozen. Freeze fewer orbitals."
        )
    return active


def check_mean_field(mf: Any) -> None:
    """Raise unless an object is a converged closed-shell Hartree-Fock mean field of a molecule."""
    _check_kind(mf)
    _check_solved(mf)


def _check_kind(mf: Any) -> None:
    name = type(mf).__name__
    remedy = "Make one with pyscf.scf.RHF(mol).run()."
    if not all(hasattr(mf, part) for part in ("mol", "mo_coeff", "mo_energy", "mo_occ", "converged")):
        raise InputError(f"mf is a {name}. Expected a mean field of PySCF. {remedy}")
    if hasattr(mf.mol, "pbc_intor"):
        raise InputError(f"{name} is the mean field of a periodic cell. Expected that of a molecule. {remedy}")
    if hasattr(mf, "xc"):
        raise InputError(f"{name} is a Kohn-Sham mean field. Expected Hartree-Fock orbitals. {remedy}")


def _check_solved(mf: Any) -> None:
    name = type(mf).__name__
    if mf.mo_coeff is None:
        raise InputError(f"{name} has no orbitals yet. Expected a converged mean field. Call mf.run() first.")
    coefficients, occupations = np.asarray(mf.mo_coeff), np.asarray(mf.mo_occ)
    if coefficients.ndim != 2 or not np.isin(occupations, (0, 2)).all():
        raise InputError(
            f"{name} has orbitals that are not doubly occupied or empty. Expected a closed shell. "
            "Make the mean field with pyscf.scf.RHF of a molecule with spin=0."
        )
    if hasattr(mf, "istype") and mf.istype("ROHF"):
        raise InputError(
            f"{name} is a mean field of open shells, although it has none. Expected a restricted one. Make it with "
            "pyscf.scf.RHF(mol).run()."
        )
    if len(coefficients) != mf.mol.nao or mf.mol.incore_anyway or np.iscomplexobj(coefficients):
        raise InputError(
            f"{name} has {coefficients.dtype} orbitals of {len(coefficients)} functions, or integrals of its "
            f"own; the molecule has {mf.mol.nao} functions. Expected real orbitals over the molecule's "
            "functions. Make the mean field with pyscf.scf.RHF(mol)."
        )
    if _has_own_integrals(mf):
        raise InputError(
            f"{name} has integrals of its own in mf._eri, not those of its molecule. Expected the molecule's. If the "
            "molecule has changed, call mf.reset().run(); if they are meant, write them with "
            "pyscf.tools.fcidump.from_scf(mf, 'FCIDUMP') and use the command `tilewise energy FCIDUMP`."
        )
    if not mf.converged:
        raise InputError(
            f"{name} is not converged: its energy is {mf.e_tot:.8f} after at most {mf.max_cycle} cycles. "
            "Expected a converged mean field. Raise mf.max_cycle, or use mf = mf.newton(), and call mf.run() "
            "again."
        )


def _has_own_integrals(mf: Any) -> bool:
    """Whether somebody has put other integrals into a mean field than those of its molecule; a row of them is read."""
    stored = getattr(mf, "_eri", None)
    if stored is None:
        return False
    lower = np.tril_indices(mf.mol.nao)
    row = mf.mol.intor("int2e", shls_slice=(0, 1, 0, 1, 0, mf.mol.nbas, 0, mf.mol.nbas))[0, 0][lower]
    array, pairs = np.asarray(stored), np.arange(len(row))
    first = array[pairs * (pairs + 1) // 2] if array.ndim == 1 else array[0]  # packed in pairs of pairs, or in pairs
    found = first[0][lower] if array.ndim == 4 else first
    return not np.allclose(found, row, rtol=0, atol=SAME_INTEGRALS)
