"""What tells molecules apart: the same in every process, another for every change."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from chemistry.molecules import WATER, make_mol
from engines.processes import TESTS, source_environment
from tilewise.chemistry.identity import function_numbers

IN_A_PROCESS = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from chemistry.molecules import WATER, make_mol
from pyscf import scf
from tilewise.chemistry import Transform
from tilewise.chemistry.inputs import _digest_molecule
from tilewise.chemistry.kept_orbitals import _digest
import numpy as np

mol = make_mol(WATER, "6-31g")
job = Transform(mol, np.eye(mol.nao))
digests = (_digest(mol).tobytes(), _digest_molecule(mol).tobytes(), job._digest)
print(mol._bas.tolist(), *(digest.hex() for digest in digests), sep="|")
"""


def printed_with(seed: int) -> list[str]:
    environment = source_environment() | {"PYTHONHASHSEED": str(seed)}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip().split("|")


def test_every_process_knows_a_molecule_again() -> None:
    """PySCF's own tables are in the order of a set, so that a run in another process was taken for another one."""
    found = [printed_with(seed) for seed in range(5)]
    assert len({tables for tables, *_ in found}) > 1
    assert len({tuple(digests) for _, *digests in found}) == 1


def numbers_of(mol: Any) -> bytes:
    return np.concatenate(list(function_numbers(mol))).tobytes()


@pytest.mark.parametrize(
    ("atom", "basis", "options"),
    [
        (WATER, "sto-3g", {}),
        (WATER, "6-31g", {"cart": True}),
        (WATER.replace("0.587", "0.588", 1), "6-31g", {}),
        (WATER.replace("O", "S"), "6-31g", {}),
        (WATER, {"O": "6-31g", "H": "sto-3g"}, {}),
        (WATER, {"O": "ccecp-cc-pvdz", "H": "6-31g"}, {"ecp": {"O": "ccecp"}}),
    ],
    ids=["basis", "cartesian", "place", "element", "basis of one element", "core potential"],
)
def test_other_molecules_are_told_apart(atom: str, basis: Any, options: dict[str, Any]) -> None:
    assert numbers_of(make_mol(atom, basis, **options)) != numbers_of(make_mol(WATER, "6-31g"))


def test_core_potentials_are_part_of_it() -> None:
    basis = {"O": "ccecp-cc-pvdz", "H": "6-31g"}
    with_one, without = (make_mol(WATER, basis, **options) for options in ({"ecp": {"O": "ccecp"}}, {}))
    with_one._atm = without._atm
    assert numbers_of(with_one) != numbers_of(without)
