"""MP2 on ranks, of which so many share a node as the first argument says: its energy, and its amplitudes.

Integrals are spread over the ranks, with the least memory too, or in a file in the folder of the second argument.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pyscf import mp

import tilewise as tw
from chemistry.molecules import WATER, mean_field
from tilewise.chemistry import MP2
from tilewise.chemistry.mp2 import Doubles
from tilewise.errors import MemoryBudgetError
from tilewise.plans import sharing
from tilewise.tensors import Engine

NOTHING: Mapping[str, Any] = {}
CHOLESKY: Mapping[str, Any] = {"integrals": "cholesky", "cholesky_tol": 1e-10}


def least_memory(mf: Any, settings: Mapping[str, Any]) -> int:
    """The least budget that a run says it needs."""
    memory = 1000
    while True:
        try:
            MP2(mf, tile=3, verbose=0, memory=memory, **settings).plan()
        except MemoryBudgetError as error:
            memory = max(error.least_bytes, memory + memory // 8)  # vectors do not know beforehand how many they are
        else:
            return memory


def check_amplitudes(found: Any, theirs: Any) -> None:
    """Compare with PySCF; ranks take the orbitals of the first one, whose signs may be others."""
    np.testing.assert_allclose(np.abs(found.to_dense()), np.abs(theirs.t2), rtol=0, atol=1e-7)
    norm = tw.einsum("ijab,ijab->", found, found).item()
    assert abs(norm - np.vdot(theirs.t2, theirs.t2)) < 1e-7


def check_run(mf: Any, theirs: Any, engine: Engine, settings: Mapping[str, Any]) -> Doubles:
    """Run, and compare with PySCF; every rank has to own some integrals, and one of several nodes not to have all."""
    ours = MP2(mf, tile=3, verbose=0, **settings).run()
    found: Any = ours.t2
    doubles: Doubles = found.storage.function
    arena: Any = doubles.repulsion.arena
    assert set(arena.owner.tolist()) == set(range(engine.ranks))
    away = [arena.view(row, size) is None for row, size in enumerate(doubles.repulsion.pattern.block_sizes.tolist())]
    assert any(away) == (engine.ranks > engine.ranks_per_node)
    assert ours.e_corr is not None
    assert abs(ours.e_corr - theirs.e_corr) < 1e-8
    check_amplitudes(found, theirs)
    return doubles


def check_file(doubles: Doubles, theirs: Any, engine: Engine, folder: Path) -> None:
    """The same of integrals in a file, where runs on one rank may leave them: every rank reads what it needs."""
    doubles.repulsion.save(folder / "repulsion.h5")
    read = replace(doubles, repulsion=tw.load(folder / "repulsion.h5", on_disk=True))
    assert not read.repulsion.in_memory
    energies = read.energies(at_once=2)
    assert abs(float(energies[0].sum()) - theirs.e_corr) < 1e-8
    np.testing.assert_array_equal(energies, engine.of_first(energies))
    check_amplitudes(read.tensor(energies[1]), theirs)


def main(per_node: int, folder: Path) -> None:
    """Print that all is right, or raise."""
    sharing.LEAST_BYTES = 0  # ranks share tensors of any size
    mf = mean_field(WATER, "6-31g")
    with tw.engine("mpi", workers=2, ranks_per_node=per_node) as engine:
        theirs = mp.MP2(mf).run()
        for settings in NOTHING, CHOLESKY:
            check_run(mf, theirs, engine, settings)
            doubles = check_run(mf, theirs, engine, {**settings, "memory": least_memory(mf, settings)})
            check_file(doubles, theirs, engine, folder)
    print("right")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
