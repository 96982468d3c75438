"""MP2 on ranks, of which so many share a node as the first argument says: its energy, and its amplitudes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pyscf import mp

import tilewise as tw
from chemistry.molecules import WATER, mean_field
from tilewise.chemistry import MP2


def main(per_node: int) -> None:
    """Print that all is right, or raise."""
    mf = mean_field(WATER, "6-31g")
    theirs = mp.MP2(mf).run()
    with tw.engine("mpi", workers=2, ranks_per_node=per_node):
        for settings in ({}, {"memory": "1MB"}, {"integrals": "cholesky", "cholesky_tol": 1e-10}):
            ours = MP2(mf, tile=3, verbose=0, **settings).run()
            found: Any = ours.t2
            assert ours.e_corr is not None
            assert abs(ours.e_corr - theirs.e_corr) < 1e-8
            # Ranks take the orbitals of the first one, whose signs may be others.
            np.testing.assert_allclose(np.abs(found.to_dense()), np.abs(theirs.t2), rtol=0, atol=1e-7)
            norm = tw.einsum("ijab,ijab->", found, found).item()
            assert abs(norm - np.vdot(theirs.t2, theirs.t2)) < 1e-7
    print("right")


if __name__ == "__main__":
    main(int(sys.argv[1]))
