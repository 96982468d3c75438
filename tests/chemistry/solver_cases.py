"""Equations to solve in the tests of the solver."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tilewise as tw
from references import stored_bytes
from tilewise.chemistry.checkpoint import Checkpoint
from tilewise.chemistry.diis import Amplitudes
from tilewise.chemistry.solver import Check, Options, Outcome, solve
from tilewise.patterns import Pattern

Array = npt.NDArray[Any]

TIGHT = Options(conv_tol=1e-12, conv_tol_normt=1e-11, max_cycle=100)

DIGEST = b"a problem"


class Toy:
    """Equations of the form of coupled cluster, all through einsum: t1[i, a] and t2[i, a, j, b].

    Parameters
    ----------
    scale : float
        Strength of the couplings: beyond about 1 the iteration diverges.
    """

    def __init__(self, scale: float = 0.5, occ: tuple[int, ...] = (2, 3), vir: tuple[int, ...] = (4, 3, 2)) -> None:
        self.occ, self.vir = tw.Space(occ, name="occ"), tw.Space(vir, name="vir")
        pair = (self.occ, self.vir)
        random = np.random.default_rng(5)
        size = self.occ.size * self.vir.size
        ring = random.normal(size=(size, size)) * scale / math.sqrt(size)
        shape = (self.occ.size, self.vir.size) * 2
        self.ring = tw.from_dense((ring + ring.T).reshape(shape), pair * 2)
        ladder = random.normal(size=(self.vir.size,) * 4) * 0.3 * scale / self.vir.size
        self.ladder = tw.from_dense(ladder, (self.vir,) * 4)
        self.force = tw.from_dense(random.normal(size=shape[:2]) * 0.1, pair)
        self.levels = np.linspace(-2, -0.6, self.occ.size), np.linspace(0.2, 3, self.vir.size)
        self.updates = 0

    def start(self) -> Amplitudes:
        pair = (self.occ, self.vir)
        return {"t1": tw.zeros(pattern=Pattern.dense(pair)), "t2": self._divided(self.ring)}

    def update(self, amplitudes: Amplitudes, check: Check) -> Amplitudes:
        self.updates += 1
        t1, t2 = amplitudes["t1"], amplitudes["t2"]
        new2 = self.ring.copy()
        tw.einsum("icjd,acbd->iajb", t2, self.ladder, out=new2, beta=1, reproducible=True)
        check()
        half = tw.einsum("iakc,kcld->iald", t2, self.ring, reproducible=True)
        tw.einsum("iald,ldjb->iajb", half, t2, out=new2, beta=1, alpha=0.3, reproducible=True)
        check()
        new1 = self.force.copy()
        tw.einsum("iajb,jb->ia", t2, self.force, out=new1, beta=1, reproducible=True)
        tw.einsum("iajb,jb->ia", self.ring, t1, out=new1, beta=1, reproducible=True)
        return {"t1": self._divided(new1), "t2": self._divided(new2)}

    def energy(self, amplitudes: Amplitudes) -> float:
        double = tw.einsum("iajb,iajb->", self.ring, amplitudes["t2"], reproducible=True).item()
        single = tw.einsum("ia,ia->", self.force, amplitudes["t1"], reproducible=True).item()
        return float(double + single)

    def _divided(self, tensor: tw.BlockTensor) -> tw.BlockTensor:
        low, high = self.levels
        modes = [low, -high] * (tensor.ndim // 2)

        def divide(block: Array, at: tuple[int, ...]) -> Array:
            parts = [levels[a : a + n] for levels, a, n in zip(modes, at, block.shape, strict=True)]
            found: Array = block / sum(np.ix_(*parts))
            return found

        return tensor.map(divide)

    def residual(self, amplitudes: Amplitudes) -> float:
        """By how much amplitudes miss the solution."""
        new = self.update(amplitudes, lambda: None)
        return max((new[name] - amplitudes[name]).norm() for name in new)

    def solve(self, options: Options = TIGHT, **more: Any) -> Outcome:
        return solve(self.start(), self.energy, self.update, options, **more)


class Waves:
    """A fixed-point problem whose iteration needs no contraction, so that a process is quick to start."""

    options = Options(conv_tol=1e-9, conv_tol_normt=1e-8, diis_space=4)

    def __init__(self) -> None:
        self.rows, self.cols = tw.Space([2, 3], name="rows", irrep=[0, 1]), tw.Space([3, 4], name="cols", irrep=[0, 1])
        self.updates: list[int] = []

    def start(self) -> Amplitudes:
        values = np.random.default_rng(1).normal(size=(5, 7))
        return {
            "t1": tw.from_dense(values[:, :7], (self.rows, self.cols)),
            "t2": tw.from_dense(values[0], (self.cols,)),
        }

    def update(self, amplitudes: Amplitudes, check: Check) -> Amplitudes:
        slopes = np.linspace(-0.4, 0.6, 7)

        def bend(block: Any, at: tuple[int, ...]) -> Any:
            part = slopes[at[-1] : at[-1] + block.shape[-1]]
            return 0.3 + part * np.sin(block) + 0.02 * block**2

        self.updates.append(len(self.updates))
        return {name: tensor.map(bend) for name, tensor in amplitudes.items()}

    @staticmethod
    def energy(amplitudes: Amplitudes) -> float:
        return float(sum(tensor.to_dense().sum() for tensor in amplitudes.values()))

    def solve(self, path: Path | None = None, most: int = 200, **more: Any) -> Outcome:
        options = Options(most, 1e-9, 1e-8, more.pop("space", 4))
        checkpoint = None if path is None else Checkpoint(path, DIGEST)
        return solve(self.start(), self.energy, self.update, options, checkpoint=checkpoint, **more)


def bits(outcome: Outcome) -> str:
    """All that must be the same in two runs."""
    told = outcome.converged, outcome.e_corr, outcome.cycles, outcome.history
    summary = hashlib.sha256(repr(told).encode())
    for name, tensor in outcome.amplitudes.items():
        *parts, bound = stored_bytes(tensor)
        summary.update(b"".join([name.encode(), *parts, repr(bound).encode()]))
    return summary.hexdigest()
