"""What the integrals of a molecule depend on, the same in every process.

PySCF lists exponents and coefficients in the order of a Python set, which changes from process to process: its tables
of one molecule differ, and cannot tell it from another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["function_numbers", "molecule_digest"]

Numbers = npt.NDArray[np.float64]

# Columns of PySCF's tables: of atoms; of shells and of effective core potentials.
CHARGE, PLACE, MODEL = 0, 1, 2
PRIMITIVES, CONTRACTIONS, EXPONENTS, COEFFICIENTS = 2, 3, 5, 6
BEFORE_POINTERS = slice(0, 5)


def function_numbers(mol: Any) -> Iterator[Numbers]:
    """Charges and places of the atoms, and the functions and core potentials on them, in order."""
    env = np.asarray(mol._env, np.float64)
    yield np.array([mol.cart, mol.omega or 0.0], np.float64)
    for atom in np.asarray(mol._atm).tolist():
        yield np.array([atom[CHARGE], atom[MODEL], *env[atom[PLACE] : atom[PLACE] + 3]])
    for table, potential in ((mol._bas, False), (mol._ecpbas, True)):
        for shell in np.asarray(table).tolist():
            count = shell[PRIMITIVES]
            lengths = (count, count if potential else count * shell[CONTRACTIONS])
            begins = (shell[EXPONENTS], shell[COEFFICIENTS])
            parts = [env[begin : begin + length] for begin, length in zip(begins, lengths, strict=True)]
            yield np.concatenate([np.array(shell[BEFORE_POINTERS], np.float64), *parts])


def molecule_digest(mol: Any) -> bytes:
    """What tells a molecule, its electrons and its basis set from others."""
    summary = hashlib.blake2b(f"{mol.nelectron} {mol.spin}".encode(), digest_size=32)
    for numbers in function_numbers(mol):
        summary.update(numbers.tobytes())
    return summary.digest()
