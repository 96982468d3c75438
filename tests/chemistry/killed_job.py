"""CCSD of water on the ranks that run this, from given orbitals, with a diary; see `test_cc_kills`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pyscf import scf

import tilewise as tw
from chemistry.molecules import WATER, make_mol
from tilewise.chemistry import CCSD
from tilewise.plans import sharing


def run(folder: Path, checkpoint: bool) -> None:
    """Go on from the checkpoint to the end, and write down the result."""
    orbitals = np.load(folder / "orbitals.npz")
    mf = scf.RHF(make_mol(WATER, "6-31g"))
    mf.mo_coeff, mf.mo_energy, mf.mo_occ = (orbitals[name] for name in ("mo_coeff", "mo_energy", "mo_occ"))
    mf.e_tot, mf.converged = float(orbitals["e_tot"]), True
    sharing.LEAST_BYTES = sharing.LEAST_FLOPS = 0  # ranks share tensors and products of any size
    with tw.engine("mpi", workers=1) as engine:
        (folder / f"pid.{os.getpid()}").touch()

        def note(facts: dict[str, Any]) -> None:
            if engine.rank == 0:
                with (folder / "diary").open("a") as diary:
                    diary.write(f"{facts['cycle']}\n")

        where = folder / "run.h5" if checkpoint else None
        method = CCSD(mf, tile=4, reproducible=True, checkpoint=where, callback=note, conv_tol=1e-10, verbose=0)
        if engine.rank == 0:
            (folder / "solving").touch()
        method.run(conv_tol_normt=1e-8)
        owner = method._amplitudes["t2"].arena.owner
        assert engine.ranks == 1 or (owner is not None and set(owner.tolist()) == set(range(engine.ranks)))
        singles, doubles = method.to_pyscf()
        assert method.e_corr is not None
        if engine.rank == 0:
            np.savez(
                folder / "result.npz",
                e_corr=method.e_corr,
                cycles=method.cycles,
                t1=singles,
                t2=doubles,
            )


if __name__ == "__main__":
    run(Path(sys.argv[1]), checkpoint=sys.argv[2] == "checkpoint")
