"""`MP2`: second-order perturbation theory of closed shells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.integrals import AtomicOrbitals, Screened, coulomb_integrals, screen_coulomb
from tilewise.chemistry.orbitals import ClosedShell, Frozen, parse_closed_shell
from tilewise.contract import dot, einsum, execute, plan
from tilewise.engines.base import current_engine
from tilewise.errors import InputError
from tilewise.factories import from_dense
from tilewise.plans import Plan, Program
from tilewise.spaces import Space
from tilewise.spaces.integers import parse_integer
from tilewise.tensors import BlockTensor

__all__ = ["MP2"]

TRANSFORM = "pqrs,pi,qa,rj,sb->ijab"
"""AO integrals (pq|rs) to (ia|jb), stored with the occupied orbitals first, as amplitudes are."""

_LEAST_DENOMINATOR = 1e-10


class MP2:
    """Closed-shell MP2 of a PySCF mean field, through block tensors.

    Atomic functions are tiled by neighbouring atoms, orbitals evenly. Blocks of the AO integrals that
    Schwarz' inequality shows to be negligible are never computed.

    Parameters
    ----------
    mf : pyscf.scf.hf.RHF
        A converged restricted Hartree-Fock object.
    frozen : int or list of int, optional
        The number of lowest orbitals that are not correlated, or a list of such orbitals, counted from 0.
    tile : int
        About how many functions or orbitals a tile holds.
    threshold : float
        Blocks of AO integrals whose Frobenius norm is not above it are left out.
    verbose : int, optional
        3 prints the energies, 4 each stage as well, 0 nothing; that of the mean field by default.
    progress : callable, optional
        Called with a line of text at each stage.

    Attributes
    ----------
    e_hf, e_corr, e_tot : float
        Energies in hartree: mean field, correlation, their sum. The last two are None before the run.
    t2 : BlockTensor
        Amplitudes t2[i, j, a, b]; None before the run.

    Examples
    --------
    >>> from pyscf import gto, scf
    >>> from tilewise.chemistry import MP2
    >>> mol = gto.M(atom="H 0 0 0; H 0 0 0.74", basis="6-31g", verbose=0)
    >>> mp = MP2(scf.RHF(mol).run()).run()
    >>> round(mp.e_corr, 6)
    -0.017381
    """

    def __init__(
        self,
        mf: Any,
        frozen: Frozen = 0,
        *,
        tile: int = 16,
        threshold: float = 1e-12,
        verbose: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._orbitals = parse_closed_shell(mf, frozen)
        size = _parse_tile(tile)
        if not 0 <= threshold < np.inf:
            raise InputError(f"threshold={threshold} is not a norm. Expected a number >= 0. Use 0 to keep all blocks.")
        self.mol = mf.mol
        self.frozen = frozen
        self.threshold = threshold
        self.verbose = mf.verbose if verbose is None else verbose
        self.progress = progress
        self.e_hf = self._orbitals.e_tot
        self.e_corr: float | None = None
        self.t2: BlockTensor | None = None
        self._functions = AtomicOrbitals.of(mf.mol, size)
        self._occ = Space.uniform(self.nocc, size, "occ")
        self._vir = Space.uniform(self.nvir, size, "vir")
        self._screened: Screened | None = None
        self._plan: Plan | Program | None = None

    @property
    def nocc(self) -> int:
        """Occupied orbitals that are correlated."""
        return len(self._orbitals.occupied_energies)

    @property
    def nvir(self) -> int:
        """Virtual orbitals that are correlated."""
        return len(self._orbitals.virtual_energies)

    @property
    def e_tot(self) -> float | None:
        """Energy of the mean field and the correlation, in hartree."""
        return None if self.e_corr is None else self.e_hf + self.e_corr

    def plan(self) -> Plan | Program:
        """What the transformation of the integrals will do; no block of integrals is computed for it."""
        if self._plan is None:
            pattern = self._screen().pattern
            self._plan = plan(TRANSFORM, pattern, *(c.pattern for c in self._coefficients()))
        return self._plan

    def kernel(self) -> tuple[float, BlockTensor]:
        """Compute the correlation energy and the amplitudes; ranks take the orbitals of the first one."""
        self._orbitals = self._orbitals.of_first(current_engine())
        self.e_hf = self._orbitals.e_tot
        made = self.plan()
        self._say(f"AO integrals: {made.operands[0]!r}")
        integrals = coulomb_integrals(self._functions, self._screen())
        self._say(f"Transformation: {made.flops / 1e9:.3g} GFLOP to {made.result!r}")
        repulsion = execute(made, integrals, *self._coefficients())
        del integrals
        self._say("Amplitudes and energy")
        self.t2 = repulsion.map(_division(self._orbitals), growth=_growth(self._orbitals))
        # E = sum (ia|jb) [2 (ia|jb) - (ib|ja)] / (e_i + e_j - e_a - e_b)
        direct, exchange = dot(repulsion, self.t2), einsum("ijab,ijba->", repulsion, self.t2).item()
        self.e_corr = float(np.real(2 * direct - exchange))
        self._say(f"E(MP2) = {self.e_tot:.12f}  E_corr = {self.e_corr:.12f}", level=3)
        return self.e_corr, self.t2

    def run(self) -> MP2:
        """Compute, and return this object."""
        self.kernel()
        return self

    def _screen(self) -> Screened:
        if self._screened is None:
            self._say(f"Screening: {self._functions.space!r}")
            self._screened = screen_coulomb(self._functions, self.threshold)
        return self._screened

    def _coefficients(self) -> tuple[BlockTensor, ...]:
        """The orbitals in the order of the transformation's operands."""
        order, space = self._functions.order, self._functions.space
        occupied = from_dense(self._orbitals.occupied[order], (space, self._occ))
        virtual = from_dense(self._orbitals.virtual[order], (space, self._vir))
        return occupied, virtual, occupied, virtual

    def _say(self, line: str, level: int = 4) -> None:
        if self.progress is not None:
            self.progress(line)
        if self.verbose >= level:
            print(line, file=self.mol.stdout)


def _parse_tile(tile: int) -> int:
    remedy = "Pass a number such as tile=16."
    size = parse_integer(tile, "The tile size", remedy)
    if size < 1:
        raise InputError(f"The tile size is {size}. Expected at least 1. {remedy}")
    return size


def _growth(orbitals: ClosedShell) -> float | None:
    """By how much division by the energy denominators can enlarge an error; None without a gap."""
    if not len(orbitals.virtual_energies):
        return 0.0
    gap = float(orbitals.virtual_energies.min() - orbitals.occupied_energies.max())
    return 1 / (2 * gap) if gap > 0 else None


def _division(orbitals: ClosedShell) -> Callable[[npt.NDArray[Any], tuple[int, ...]], npt.NDArray[Any]]:
    """A function for `map` that divides a block (i, j, a, b) by e_i + e_j - e_a - e_b."""
    occupied, virtual = orbitals.occupied_energies, orbitals.virtual_energies

    def divide(block: npt.NDArray[Any], at: tuple[int, ...]) -> npt.NDArray[Any]:
        levels = (occupied, occupied, -virtual, -virtual)
        parts = [level[a : a + n] for level, a, n in zip(levels, at, block.shape, strict=True)]
        denominator = sum(np.ix_(*parts))
        if np.abs(denominator).min() < _LEAST_DENOMINATOR:
            raise InputError(
                f"An energy denominator is below {_LEAST_DENOMINATOR} hartree: occupied and virtual orbitals "
                "have the same energy. Expected a gap between them. Choose another reference, or freeze "
                "these orbitals."
            )
        quotient: npt.NDArray[Any] = block / denominator
        return quotient

    return divide
