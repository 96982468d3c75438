"""Where the integrals of a transform come from and what they are transformed to: molecules, arrays, orbitals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.arrays import array_source, count_functions
from tilewise.chemistry.integrals import (
    AtomicOrbitals,
    CoulombSource,
    FittedVectors,
    orbital_irreps,
    pair_bounds,
)
from tilewise.engines.transform import Source
from tilewise.errors import InputError
from tilewise.plans.transform import TilePairs
from tilewise.spaces import Space

__all__ = ["Origin", "find_origin", "find_spaces", "parse_coefficients", "screen_pairs", "tile_orbitals"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where integrals come from, before it is known which pairs of tiles are asked for."""

    mol: Any
    """The molecule; None for an array."""
    space: Space
    """Functions in tiles."""
    order: Ints
    """Permutation of the functions into tile order."""
    functions: AtomicOrbitals | None
    """The functions of a molecule in tile order."""
    array: Any
    """The array, if there is one."""
    fitted: FittedVectors | None = None
    """The vectors of fitted integrals, if they are."""

    @property
    def size(self) -> int:
        """Number of functions."""
        return self.space.size

    def open(
        self, pairs: TilePairs, tol: float | None, matrices: Sequence[Floats]
    ) -> tuple[Source | FittedVectors, float]:
        """Where elements come from, and a bound on what leaving out negligible ones does to the result."""
        if self.functions is None:
            if tol is not None:
                raise InputError(
                    f"tol={tol!r} was given with integrals in an array or fitted. Expected it with a molecule, "
                    "whose blocks can be left out before they are made. Leave tol= away."
                )
            return (array_source(self.array, pairs) if self.fitted is None else self.fitted), 0.0
        if tol is None:
            return CoulombSource.of(self.functions, pairs), 0.0
        needed, dropped = screen_pairs(pairs, pair_bounds(self.functions, pairs), parse_tol(tol), matrices)
        return CoulombSource.of(self.functions, pairs, needed), dropped


def screen_pairs(pairs: TilePairs, bounds: Floats, tol: float, matrices: Sequence[Floats]) -> tuple[Bools, float]:
    """Which blocks of integrals have to be made so that the result is right within `tol`, and the bound on its error.

    A product with a matrix enlarges a norm at most by the matrix' largest singular value. Of all blocks those with the
    smallest bounds are left out, as long as the root of the sum of their squares allows it.
    """
    growth = math.prod(float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0 for matrix in matrices)
    copies = np.where(pairs.tiles[:, 0] == pairs.tiles[:, 1], 1.0, 2.0)
    squares = np.multiply.outer(bounds**2 * copies, bounds**2 * copies)
    order = np.argsort(squares, axis=None)
    total = np.cumsum(squares.ravel()[order]) * (1 + 1e-10)
    share = tol / growth if growth > 0 else math.inf
    room = share**2 if share < 1e150 else math.inf
    count = int(np.searchsorted(total, room, side="right"))
    needed = np.ones(squares.shape, np.bool_)
    needed.ravel()[order[:count]] = False
    # (pq|rs) = (rs|pq): of two blocks with the same bound either may have come first.
    needed |= needed.T
    return needed, growth * math.sqrt(float(squares[~needed].sum()) * (1 + 1e-10))


def parse_coefficients(coeffs: Any, functions: int) -> list[Floats]:
    """Four matrices from one or four; modes that were given the same matrix get the same array."""
    given = list(coeffs) if isinstance(coeffs, (list, tuple)) and len(coeffs) == 4 else [coeffs] * 4
    remedy = "Pass one matrix (functions, orbitals) such as mf.mo_coeff, or a sequence of four."
    found: list[Floats] = []
    for mode, value in enumerate(given):
        try:
            matrix = np.asarray(value)
        except ValueError as error:
            raise InputError(f"The coefficients of mode {mode} are no matrix: {error}. {remedy}") from None
        if matrix.ndim != 2 or matrix.dtype.kind not in "fiu" or len(matrix) != functions:
            raise InputError(
                f"The coefficients of mode {mode} have shape {matrix.shape} and type {matrix.dtype}. Expected real "
                f"numbers for {functions} functions. {remedy}"
            )
        if not np.isfinite(matrix).all():
            raise InputError(f"The coefficients of mode {mode} are not all finite. Expected finite numbers. {remedy}")
        wide = matrix.astype(np.float64, copy=False)
        same = [old for old in found if old is wide or (old.shape == wide.shape and np.array_equal(old, wide))]
        found.append(same[0] if same else wide)
    return found


def find_origin(mol_or_mf: Any, tile: int, antisymmetric: bool) -> Origin:
    """The molecule or the array that was given."""
    if isinstance(mol_or_mf, np.ndarray) or (hasattr(mol_or_mf, "shape") and hasattr(mol_or_mf, "dtype")):
        size = count_functions(mol_or_mf, antisymmetric)
        space = Space.uniform(size, tile, "ao")
        return Origin(None, space, np.arange(size), None, mol_or_mf)
    mol = getattr(mol_or_mf, "mol", mol_or_mf)
    if not all(hasattr(mol, part) for part in ("intor", "_bas", "ao_loc_nr")):
        raise InputError(
            f"The first argument is a {type(mol_or_mf).__name__}. Expected a molecule or mean field of PySCF, or an "
            "array of integrals. Pass mol, mf or the array."
        )
    if hasattr(mol, "pbc_intor"):
        raise InputError(
            f"{type(mol_or_mf).__name__} is periodic. Expected a molecule. Use PySCF's own transform for cells."
        )
    if not len(mol._bas):
        raise InputError(
            f"{type(mol_or_mf).__name__} has no functions. Expected a molecule with a basis set. Call mol.build(), or "
            "pass the integrals as an array."
        )
    if antisymmetric:
        raise InputError(
            "antisymmetric=True was given with a molecule. Expected it with an array: integrals of functions are "
            "symmetric. Leave it away."
        )
    if getattr(mol_or_mf, "with_df", None) is not None:
        return Origin(mol, Space([mol.nao], "ao"), np.arange(mol.nao), None, None, FittedVectors.of(mol_or_mf))
    functions = AtomicOrbitals.of(mol, tile)
    return Origin(mol, functions.space, functions.order, functions, None)


def find_spaces(mol: Any, matrices: Sequence[Floats], spaces: Any, tile: int) -> tuple[Space, ...]:
    """Tiles of the four sets of orbitals."""
    if spaces is None:
        made: dict[int, Space] = {}
        irreps = {id(matrix): None if mol is None else orbital_irreps(mol, matrix) for matrix in matrices}
        labelled = all(labels is not None for labels in irreps.values())
        for matrix in matrices:
            labels = irreps[id(matrix)] if labelled else None
            made.setdefault(id(matrix), tile_orbitals(matrix.shape[1], tile, labels))
        return tuple(made[id(matrix)] for matrix in matrices)
    given = (spaces,) * 4 if not isinstance(spaces, (list, tuple)) else tuple(spaces)
    sizes = [matrix.shape[1] for matrix in matrices]
    fitting = len(given) == 4 and all(isinstance(space, Space) for space in given)
    if not fitting or [space.size for space in given] != sizes:
        raise InputError(
            f"spaces={spaces!r:.80} do not fit orbitals of the numbers {sizes}. Expected one Space for all modes or a "
            "sequence of four, with as many elements. Make them with tw.Space.uniform(number, tile)."
        )
    return given


def tile_orbitals(count: int, tile: int, irreps: Ints | None) -> Space:
    """Orbitals in tiles, of one irrep each if irreps are given."""
    if irreps is None:
        return Space.uniform(count, tile, "mo")
    order = np.argsort(irreps, kind="stable")
    sizes, labels = [], []
    for irrep, number in zip(*np.unique(irreps, return_counts=True), strict=True):
        tiles = Space.uniform(int(number), tile).sizes.tolist()
        sizes += tiles
        labels += [int(irrep)] * len(tiles)
    return Space.reordered(Space(sizes, "mo", irrep=labels), order)


def parse_tol(tol: Any) -> float:
    if isinstance(tol, bool) or not isinstance(tol, Real) or not 0 <= float(tol) < math.inf:
        raise InputError(f"tol={tol!r} is no tolerance. Expected a number >= 0. Leave it away to make all integrals.")
    return float(tol)
