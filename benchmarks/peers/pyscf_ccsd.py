"""PySCF's closed-shell CCSD and (T) of a mean field, timed per iteration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from peers.fair_blas import system_blas
from transform import OPENBLAS

BYTES_PER_MEGABYTE = 1e6
NORM_PER_ENERGY = 1e4
"""How loosely the amplitudes are converged beside the energy; its DIIS gets no further than about 1e-7."""


def environment(threads: int, blas_threads: int) -> Mapping[str, str]:
    """Variables of a process in which PySCF runs as fast as it can.

    Its products are cut up among OpenMP threads of its own, each of which calls BLAS: more than one thread in each call
    would be in each other's way, as ``--blas-threads 2`` of the benchmark shows.
    """
    threading = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(blas_threads)}
    preload = {"LD_PRELOAD": str(OPENBLAS)} if OPENBLAS.exists() else {}
    return {**threading, **preload, **system_blas().environment}


def limits(tolerance: float, cycles: int) -> dict[str, Any]:
    """When iterations end, in the words that PySCF and this package share."""
    return {"conv_tol": tolerance, "conv_tol_normt": NORM_PER_ENERGY * tolerance, "max_cycle": cycles}


class PyscfCCSD:
    """`pyscf.cc.CCSD` of a mean field; its integrals are transformed once, in the first run.

    With `memory` in bytes it may hold all it wants below that, vectors of DIIS too; without, it keeps its defaults.
    """

    def __init__(self, mf: Any, frozen: int, memory: int | None) -> None:
        from pyscf import cc

        self._job = cc.CCSD(mf, frozen=frozen or None)
        if memory is not None:
            self._job.set(max_memory=memory / BYTES_PER_MEGABYTE, incore_complete=True)
        self._integrals: Any = None

    def iterate(self, cycles: int) -> dict[str, Any]:
        """So many iterations from the MP2 amplitudes; seconds of each but the first, DIIS and energy included."""
        stamps: list[float] = []
        self._job.callback = lambda _: stamps.append(time.perf_counter())  # each time the residual has been added
        self._run(cycles, 0.0)
        seconds = [end - begin for begin, end in pairwise(stamps)]
        return {"seconds": seconds, "energy": float(self._job.e_corr)}

    def converge(self, tolerance: float, cycles: int) -> dict[str, Any]:
        """The converged correlation energy, and the time from the mean field on."""
        begin = time.perf_counter()
        self._job.callback = None
        self._run(cycles, tolerance)
        found = {"energy": float(self._job.e_corr), "cycles": int(self._job.cycles)}
        return found | {"converged": bool(self._job.converged), "seconds": time.perf_counter() - begin}

    def triples(self, tolerance: float, cycles: int) -> dict[str, Any]:
        """The (T) energy and its time; the amplitudes are converged before, once."""
        if not self._job.converged:
            self.converge(tolerance, cycles)
        begin = time.perf_counter()
        energy = float(self._job.ccsd_t(eris=self._integrals))
        return {"energy": energy, "seconds": time.perf_counter() - begin, "converged": bool(self._job.converged)}

    def _run(self, cycles: int, tolerance: float) -> None:
        if self._integrals is None:
            self._integrals = self._job.ao2mo()
        self._job.set(**limits(tolerance, cycles))
        self._job.kernel(eris=self._integrals)
