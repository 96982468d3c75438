"""Three-index vectors B(Q, pq) of the integrals, (pq|rs) = sum_Q B(Q, pq) B(Q, rs): fitted, or by Cholesky."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg.blas import dtrsm
from scipy.linalg.lapack import dpstrf

from tilewise.chemistry.integrals import FittedVectors, files_in, fit_molecule, one_thread, pyscf_module
from tilewise.contract import find_engine
from tilewise.errors import InputError, MemoryBudgetError, TilewiseError
from tilewise.patterns import Pattern, Symmetry
from tilewise.plans.budget import parse_memory
from tilewise.plans.explain import bytes_text
from tilewise.spaces import Space
from tilewise.spaces.integers import parse_integer
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.drafts import parse_scratch
from tilewise.tensors.storage import Arena

__all__ = ["Vectors", "cholesky_vectors", "fitted_vectors", "to_orbitals"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WORD = 8

TILE = 256
"""About how many vectors a tile of their space holds."""

SLICE_BYTES = 1 << 26
"""Most bytes of a slice of vectors over squares of functions, unless one vector is larger."""

SPAN = 1e-2
"""Columns whose diagonal is above this part of the largest one are decomposed before new ones are looked for."""

COLUMNS = 256
"""About how many columns are decomposed at once, if there is memory for them."""

FIXED_COLUMNS = 64
"""How many are with `reproducible`, whatever memory there is."""

NO_MEMORY = -(1 << 50)
"""Bytes with which PySCF makes fitted vectors shell by shell, and in a file.

Its blocks depend on what a process has left of its memory, and bits on blocks; only the smallest are always the same.
"""

TABLES = 12
"""Arrays of the length of a vector that are held besides."""

LEAST_TOL = 1e-12
"""Rounding of the integrals themselves is not far below."""


class Slices(Protocol):
    """Who holds vectors."""

    def bring(self, at_once: int) -> Iterator[Floats]:
        """All of them, at most so many at a time, over pairs p >= q."""


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Vectors B(Q, pq) over pairs p >= q of functions, with (pq|rs) = sum_Q B(Q, pq) B(Q, rs).

    Of several ranks the first one makes and holds them, so that all work with the same numbers.
    """

    count: int
    """How many Q there are."""
    size: int
    """How many functions p there are."""
    error: float | None
    """No integral (pq|rs) differs by more from the exact one, in hartree; None if nobody knows."""
    source: Slices | None
    """Who holds the vectors; None on ranks that have to ask the first one."""
    engine: Engine
    """Whose ranks share them."""
    held_bytes: int = 0
    """Bytes in memory that are free when these are gone; of the first rank."""
    reproducible: bool = False
    """Whether what is made of them has the same bits for any number of threads."""

    def bring(self, at_once: int) -> Iterator[Floats]:
        """All vectors, at most so many at a time, as arrays (vectors, pairs); every rank has to ask for them.

        Parameters
        ----------
        at_once : int
            Most vectors of a slice.
        """
        slices = iter(()) if self.source is None else iter(self.source.bring(at_once))
        done = 0
        while done < self.count:
            part = self.engine.of_first(self.engine.agree(partial(next, slices, None), once=True))
            if part is None or done + len(part) > self.count:
                came = f"{done}" if part is None else f"at least {done + len(part)}"
                raise InputError(f"{came} vectors came. Expected {self.count}. Make the density fitting anew.")
            done += len(part)
            yield part


@dataclass(frozen=True, slots=True, eq=False)
class Slabs:
    """Vectors in memory, in arrays (vectors, pairs)."""

    arrays: tuple[Floats, ...]
    """One after the other, read-only."""

    def bring(self, at_once: int) -> Iterator[Floats]:
        """All of them, at most so many at a time."""
        for array in self.arrays:
            for begin in range(0, len(array), at_once):
                yield array[begin : begin + at_once]


def fitted_vectors(
    mol_or_mf: Any,
    auxbasis: str | None = None,
    *,
    memory: int | str | None = None,
    scratch: str | os.PathLike[str] | None = None,
    engine: str | Engine | None = None,
    reproducible: bool = False,
) -> Vectors:
    """Vectors of density-fitted integrals.

    Parameters
    ----------
    mol_or_mf : mean field or pyscf.gto.Mole
        A mean field with ``density_fit()`` gives the vectors it has, as ``pyscf.cc`` takes them. For a molecule, or a
        mean field with the integrals themselves, they are made.
    auxbasis : str, optional
        Name of the auxiliary basis set for a molecule. By default the one that PySCF pairs with the molecule's basis
        set for correlation energies (``pyscf.df.make_auxbasis(mol, mp2fit=True)``), as ``pyscf.cc`` does too:
        cc-pvdz-ri for cc-pvdz.
    memory : int or str, optional
        Vectors that are made here and do not fit in it are in a temporary file.
    scratch : str or path, optional
        The folder of such a file; the one that PySCF is set to by default.
    engine : str or Engine, optional
        Whose ranks share the vectors; the engine in use by default.
    reproducible : bool
        The same bits for any number of threads and any memory: one thread makes the vectors, and they are in a
        temporary file. Those that a mean field has already are taken as they are.

    Examples
    --------
    >>> from pyscf import gto
    >>> from tilewise.chemistry.vectors import fitted_vectors
    >>> mol = gto.M(atom="H 0 0 0; H 0 0 0.74", basis="cc-pvdz", verbose=0)
    >>> vectors = fitted_vectors(mol)
    >>> vectors.count, vectors.size
    (28, 10)
    """
    found = find_engine(engine)
    fitting = getattr(mol_or_mf, "with_df", None)
    if fitting is not None and auxbasis is not None:
        raise InputError(
            f"auxbasis={auxbasis!r} was given with {type(mol_or_mf).__name__}, which fits the density. Expected it "
            "with a molecule: a mean field has its own. Leave it away, or pass mf.mol."
        )
    mol, budget = _parse_molecule(mol_or_mf), parse_memory(memory)
    folder = None if scratch is None else parse_scratch(scratch)
    if reproducible:
        budget = NO_MEMORY

    def make() -> tuple[FittedVectors, int]:
        with one_thread(reproducible), files_in(folder):
            if fitting is None:
                made = fit_molecule(mol, auxbasis, budget)
            elif getattr(fitting, "_cderi", None) is None and hasattr(fitting, "get_naoaux"):
                made = _fit_copy(fitting, budget)
            else:
                return FittedVectors.of(mol_or_mf), 0
        return made, made.held_bytes

    source, held = found.agree(make, once=True) or (None, 0)
    count, held = found.of_first((0 if source is None else source.count, held))
    return Vectors(count, int(mol.nao), None, source, found, held, reproducible)


def _fit_copy(fitting: Any, memory: int) -> FittedVectors:
    """Vectors that a density fitting does not have yet, by a copy of it: the user's own would keep them."""
    own = fitting.copy().reset()
    own._cderi_to_save = type(own)(own.mol)._cderi_to_save  # a file of the user's is not written
    own.max_memory = memory * 1e-6 + pyscf_module().lib.current_memory()[0]  # PySCF's limits are those of a process
    return FittedVectors.built(own)


def cholesky_vectors(
    mol: Any,
    tol: float = 1e-8,
    *,
    memory: int | str | None = None,
    engine: str | Engine | None = None,
    reproducible: bool = False,
) -> Vectors:
    """Vectors of the integrals by an incomplete Cholesky decomposition.

    Columns of the matrix (pq|rs) are computed for the pairs with the largest diagonal that the vectors found so far
    leave, and the decomposition ends when no diagonal element (pq|pq) is left above `tol`. What is left is a positive
    matrix, so by Schwarz' inequality no integral is wrong by more than `tol` (Beebe and Linderberg 1977; Koch et al.
    2003).

    Parameters
    ----------
    mol : pyscf.gto.Mole
        The molecule.
    tol : float
        Largest error of an integral, in hartree, at least 1e-12.
    memory : int or str, optional
        Most bytes of the vectors and of what their making takes, see `tilewise.einsum`.
    engine : str or Engine, optional
        Whose ranks share the vectors; the engine in use by default.
    reproducible : bool
        The same bits for any number of threads and any memory: one thread decomposes, and as many columns at a time
        however much memory there is.

    Examples
    --------
    >>> from pyscf import gto
    >>> from tilewise.chemistry.vectors import cholesky_vectors
    >>> mol = gto.M(atom="H 0 0 0; H 0 0 0.74", basis="cc-pvdz", verbose=0)
    >>> vectors = cholesky_vectors(mol, 1e-6)
    >>> vectors.error <= 1e-6, vectors.count < 55
    (True, True)
    """
    found, most = find_engine(engine), parse_tol(tol)
    molecule, budget = _parse_molecule(mol), parse_memory(memory)

    def make() -> tuple[Slabs, float]:
        decomposition = Decomposition(molecule, most, budget, found.workers, reproducible=reproducible)
        with one_thread(reproducible):
            return decomposition.run(), decomposition.largest

    made = found.agree(make, once=True)
    source, error = (None, 0.0) if made is None else made
    count = 0 if source is None else sum(map(len, source.arrays))
    count, error = found.of_first((count, error))
    if not count:
        raise InputError(
            f"A tolerance of {tol!r} leaves no Cholesky vectors: no integral is larger than {error:.3g} hartree. "
            "Expected one below that. Pass 1e-8, for example."
        )
    size = int(molecule.nao)
    return Vectors(count, size, error, source, found, WORD * count * (size * (size + 1) // 2), reproducible)


def parse_tol(tol: Any, name: str = "tol") -> float:
    if isinstance(tol, bool) or not isinstance(tol, Real) or not LEAST_TOL <= float(tol) < math.inf:
        raise InputError(
            f"{name}={tol!r} is no tolerance of Cholesky vectors. Expected a number of hartree from {LEAST_TOL} on. "
            "Pass 1e-8, for example."
        )
    return float(tol)


def _parse_molecule(mol_or_mf: Any) -> Any:
    mol = getattr(mol_or_mf, "mol", mol_or_mf)
    if not all(hasattr(mol, part) for part in ("intor", "_bas", "ao_loc_nr")) or hasattr(mol, "pbc_intor"):
        raise InputError(
            f"Vectors of integrals were asked of a {type(mol_or_mf).__name__}. Expected a molecule of PySCF, or a mean "
            "field of one. Pass mol or mf."
        )
    if not len(mol._bas):
        raise InputError(
            f"{type(mol_or_mf).__name__} has no functions. Expected a molecule with a basis set. Call mol.build()."
        )
    return mol


@dataclass(frozen=True, slots=True, eq=False)
class ShellPairs:
    """Pairs of functions p >= q, in PySCF's packed order, by the pairs of shells that they belong to."""

    mol: Any
    """The molecule."""
    shells: Ints
    """The two shells of each pair of shells."""
    pair: Ints
    """For each pair of functions, the number of its pair of shells."""
    column: Ints
    """Its place among all products of functions of the two shells."""
    tables: Any
    """What libcint looks up, made once."""

    @classmethod
    def of(cls, mol: Any) -> ShellPairs:
        """All pairs of a molecule's functions."""
        starts = np.asarray(mol.ao_loc_nr(), np.int64)
        shell = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        p, q = np.tril_indices(int(starts[-1]))
        k, second = shell[p], shell[q]
        column = (p - starts[k]) * np.diff(starts)[second] + q - starts[second]
        tables = pyscf_module().gto.moleintor.make_cintopt(mol._atm, mol._bas, mol._env, mol._add_suffix("int2e"))
        shells = np.stack(np.tril_indices(len(starts) - 1), axis=1)
        return cls(mol, shells, k * (k + 1) // 2 + second, column, tables)

    def integrals(self, bra: Sequence[int], pair: int, form: str) -> Floats:
        """Integrals over a range of shells, given by four bounds, and a pair of shells, as a matrix."""
        mol = self.mol
        k, second = self.shells[pair].tolist()
        made: Floats = pyscf_module().gto.moleintor.getints4c(
            mol._add_suffix("int2e"),
            mol._atm,
            mol._bas,
            mol._env,
            shls_slice=(*bra, k, k + 1, second, second + 1),
            aosym=form,
            cintopt=self.tables,
        )
        rows = made.shape[0] if form == "s2ij" else made.shape[0] * made.shape[1]
        return made.reshape(rows, -1)

    def diagonal(self) -> Floats:
        """(pq|pq) of all pairs of functions."""
        found = np.empty(len(self.pair))
        order = np.argsort(self.pair, kind="stable")
        members = np.split(order, np.cumsum(np.bincount(self.pair, minlength=len(self.shells)))[:-1])
        # Waking PySCF's threads for each of these tiny pieces would cost more than the pieces.
        with pyscf_module().lib.with_omp_threads(1):
            for number, (own, (k, second)) in enumerate(zip(members, self.shells.tolist(), strict=True)):
                block = self.integrals((k, k + 1, second, second + 1), number, "s1")
                found[own] = np.diagonal(block)[self.column[own]]
        return found

    def columns(self, chosen: Ints, workers: int) -> Floats:
        """(pq|rs) of all pairs pq for some pairs rs, as rows."""
        rows = np.empty((len(chosen), len(self.pair)))
        bra = (0, self.mol.nbas, 0, self.mol.nbas)
        with pyscf_module().lib.with_omp_threads(workers):
            for number in np.unique(self.pair[chosen]).tolist():
                own = np.flatnonzero(self.pair[chosen] == number)
                rows[own] = self.integrals(bra, number, "s2ij").T[self.column[chosen[own]]]
        return rows


class Decomposition:
    """An incomplete Cholesky decomposition of the integrals of a molecule.

    Parameters
    ----------
    mol : pyscf.gto.Mole
        The molecule.
    tol : float
        Largest diagonal element that may be left.
    budget : int
        Bytes that may be held.
    workers : int
        How many threads compute integrals.
    reproducible : bool
        Whether as many columns are decomposed at once whatever the budget is.
    """

    def __init__(self, mol: Any, tol: float, budget: int, workers: int, *, reproducible: bool = False) -> None:
        self.tol, self.budget, self.workers, self.reproducible = tol, budget, workers, reproducible
        self.pairs = ShellPairs.of(mol)
        self.rest = self.pairs.diagonal()
        self.made: list[Floats] = []

    @property
    def largest(self) -> float:
        """Largest diagonal element that is left."""
        return float(self.rest.max(initial=0.0))

    @property
    def count(self) -> int:
        """How many vectors there are."""
        return sum(map(len, self.made))

    def run(self) -> Slabs:
        """Find all vectors."""
        while self.largest > self.tol:
            floor = max(SPAN * self.largest, self.tol)
            self._decompose(self._qualified(floor), floor)
        return Slabs(tuple(self.made))

    def _columns_at_once(self) -> int:
        """Columns that there is memory for, beside the vectors: each stands there twice."""
        one = WORD * len(self.pairs.pair)
        fixed = one * (self.count + 2 * (int(self.pairs.column.max()) + 1) + TABLES)
        room = (self.budget - fixed) // (2 * one)
        few = min(FIXED_COLUMNS, len(self.pairs.pair)) if self.reproducible else 1
        if room < few:
            least = fixed + 2 * one * few
            raise MemoryBudgetError(
                f"Cholesky vectors need more than the budget of {self.budget} bytes ({bytes_text(self.budget)}): "
                f"{self.count} of {one} bytes are found, and with what finding another takes they are {least} bytes "
                f"({bytes_text(least)}), while the largest error is still {self.largest:.2g}. Expected a budget for "
                f"all vectors until it is {self.tol}. Give more memory=, or a larger tolerance (cholesky_tol of a "
                "method).",
                self.budget,
            )
        return few if self.reproducible else min(room, COLUMNS)

    def _qualified(self, floor: float) -> Ints:
        """Pairs of functions whose diagonal is above a floor, of the pairs of shells with the largest ones."""
        at_once = self._columns_at_once()
        largest = np.zeros(len(self.pairs.shells))
        np.maximum.at(largest, self.pairs.pair, self.rest)
        above = np.flatnonzero(self.rest > floor)
        counts = np.bincount(self.pairs.pair[above], minlength=len(largest))
        order = np.argsort(-largest, kind="stable")
        taken = max(int(np.searchsorted(np.cumsum(counts[order]), at_once, side="right")), 1)
        chosen = above[np.isin(self.pairs.pair[above], order[:taken])]
        best: Ints = chosen[np.argsort(-self.rest[chosen], kind="stable")[:at_once]]
        return best

    def _decompose(self, chosen: Ints, floor: float) -> None:
        """Vectors of some columns, for as long as a diagonal element of theirs is above a floor."""
        columns = self.pairs.columns(chosen, self.workers)
        for old in self.made:
            columns -= old[:, chosen].T @ old
        square = columns[:, chosen]
        self.rest[chosen] = np.diagonal(square)
        factor, pivots, rank, _ = dpstrf(square, tol=floor, lower=1)
        order = np.asarray(pivots[:rank], np.int64) - 1
        if rank:
            # V = L^-1 M, in place: LAPACK sees the transposes.
            lower = np.asfortranarray(factor[:rank, :rank])
            found = dtrsm(1.0, lower, columns[order].T, side=1, lower=1, trans_a=1, overwrite_b=1).T
            self._keep(found, chosen[order])

    def _keep(self, found: Floats, pivots: Ints) -> None:
        self.rest -= np.einsum("qp,qp->p", found, found)
        self.rest[pivots] = 0.0
        least = float(self.rest.min(initial=0.0))
        if least < -self.tol:
            raise TilewiseError(
                f"A diagonal element of the integrals became {least:.3g} after {self.count} Cholesky vectors: rounding "
                f"is above the tolerance {self.tol}. Expected none below 0. Give a larger tolerance "
                "(cholesky_tol of a method)."
            )
        found.flags.writeable = False
        self.made.append(found)


def to_orbitals(
    vectors: Vectors,
    left: npt.ArrayLike,
    right: npt.ArrayLike,
    spaces: tuple[Space, Space],
    *,
    symmetric: bool = False,
    tile: int = TILE,
    at_once: int | None = None,
    engine: str | Engine | None = None,
) -> BlockTensor:
    """Vectors over pairs of orbitals, B(Q, ij) = sum_pq B(Q, pq) L(p, i) R(q, j), as a tensor with modes [Q, i, j].

    Slices of vectors pass by, so that a few of them are all that is held beside the result; of several ranks each keeps
    the blocks that it owns, made of the first one's numbers.  Blocks are kept whatever the irreps of i and j are: a
    vector belongs to no irrep, only the sum over all of them does.

    Parameters
    ----------
    vectors : Vectors
        The vectors over pairs of functions.
    left, right : array
        Orbitals (functions, orbitals), in the order of PySCF.
    spaces : (Space, Space)
        Tiles of these orbitals; their `order` permutes them.
    symmetric : bool
        Store one of two blocks B(Q, ij) and B(Q, ji), where both sides are the same orbitals.
    tile : int
        About how many vectors a tile of the space of Q, "aux", holds.
    at_once : int, optional
        Most vectors of a slice; so many that their squares take 64 MiB by default.
    engine : str or Engine, optional
        Who holds the tensor; the engine in use by default.

    Examples
    --------
    >>> import tilewise as tw
    >>> from pyscf import gto, scf
    >>> from tilewise.chemistry.vectors import cholesky_vectors, to_orbitals
    >>> mol = gto.M(atom="H 0 0 0; H 0 0 0.74", basis="6-31g", verbose=0)
    >>> orbitals = scf.RHF(mol).run().mo_coeff
    >>> mo = tw.Space.uniform(4, tile=2)
    >>> B = to_orbitals(cholesky_vectors(mol), orbitals, orbitals, (mo, mo))
    >>> round(float(tw.einsum("Qij,Qkl->ijkl", B, B).to_dense()[0, 0, 0, 0]), 6)
    0.650225
    """
    found = find_engine(engine)
    matrices, modes = _parse_orbitals(vectors, left, right, spaces)
    aux = Space.uniform(vectors.count, tile, "aux")
    symmetry = _parse_symmetric(matrices, modes) if symmetric else None
    slices = vectors.bring(_parse_at_once(at_once, vectors.size))
    if found.ranks > vectors.engine.ranks:
        slices = map(found.of_first, slices)
    pattern = Pattern.dense((aux, *modes), symmetry=symmetry)
    arena = found.allocate(pattern, np.float64, zero=False)
    with one_thread(vectors.reproducible):
        _fill(arena, pattern, slices, matrices)
    tensor = BlockTensor(pattern, arena, found)
    tensor.replace_norms(arena.norms())
    return tensor


def _parse_orbitals(
    vectors: Vectors, left: npt.ArrayLike, right: npt.ArrayLike, spaces: tuple[Space, Space]
) -> tuple[tuple[Floats, Floats], tuple[Space, Space]]:
    """Coefficients in tile order, and the spaces of their orbitals."""
    given = [np.asarray(side) for side in (left, right)]
    remedy = "Pass matrices (functions, orbitals), and a Space with as many elements for each."
    for side, matrix in zip(("left", "right"), given, strict=True):
        if matrix.ndim != 2 or matrix.dtype.kind not in "fiu" or len(matrix) != vectors.size:
            raise InputError(
                f"The orbitals {side}= have shape {matrix.shape} and type {matrix.dtype}. Expected real numbers for "
                f"{vectors.size} functions. {remedy}"
            )
        if not np.isfinite(matrix).all():
            raise InputError(f"The orbitals {side}= are not all finite. Expected finite numbers. {remedy}")
    modes = tuple(spaces) if isinstance(spaces, (list, tuple)) else (spaces, spaces)
    counts = [matrix.shape[1] for matrix in given]
    if not all(isinstance(mode, Space) for mode in modes) or [mode.size for mode in modes] != counts:
        raise InputError(
            f"spaces={spaces!r:.80} do not fit {counts[0]} and {counts[1]} orbitals. Expected two of these sizes. "
            f"{remedy}"
        )
    first, second = (np.ascontiguousarray(m[:, s.order], np.float64) for m, s in zip(given, modes, strict=True))
    return (first, second), (modes[0], modes[1])


def _parse_symmetric(matrices: tuple[Floats, Floats], modes: tuple[Space, Space]) -> Symmetry:
    if modes[0] != modes[1] or not np.array_equal(*matrices):
        raise InputError(
            "symmetric=True was given with different orbitals or tiles. Expected the same on both sides. Leave it away."
        )
    return Symmetry(((1, 2), 1))


def _parse_at_once(at_once: int | None, size: int) -> int:
    if at_once is None:
        return max(SLICE_BYTES // (WORD * size * size), 1)
    remedy = "Pass a number such as at_once=64, or leave it away."
    number = parse_integer(at_once, "at_once=", remedy)
    if number < 1:
        raise InputError(f"at_once={number} vectors cannot be a slice. Expected at least 1. {remedy}")
    return number


def _fill(arena: Arena, pattern: Pattern, slices: Iterator[Floats], matrices: tuple[Floats, Floats]) -> None:
    """Transform slices of vectors and put each into the blocks that this process answers for."""
    offsets = pattern.spaces[0].offsets
    parts: list[list[tuple[int, Floats]]] = [[] for _ in range(pattern.spaces[0].ntiles)]
    for row, part in arena.parts(pattern):
        parts[int(pattern.index[row, 0])].append((row, part))
    begin = 0
    for given in slices:
        end = begin + len(given)
        made = _transform_slice(given, *matrices)
        if pattern.symmetry is not None:
            made = (made + made.transpose(0, 2, 1)) / 2  # to the last bit
        for tile in range(int(np.searchsorted(offsets, begin, side="right")) - 1, int(np.searchsorted(offsets, end))):
            first, last = max(begin, int(offsets[tile])), min(end, int(offsets[tile + 1]))
            for row, part in parts[tile]:
                here = part[first - offsets[tile] : last - offsets[tile]]
                here[...] = made[first - begin : last - begin, *_orbitals_of(pattern, row)]
        begin = end


def _orbitals_of(pattern: Pattern, row: int) -> tuple[slice, ...]:
    """Where a block lies among the orbitals of both sides."""
    tiles = zip(pattern.spaces[1:], pattern.index[row, 1:].tolist(), strict=True)
    return tuple(slice(int(space.offsets[tile]), int(space.offsets[tile + 1])) for space, tile in tiles)


def _transform_slice(given: Floats, left: Floats, right: Floats) -> Floats:
    """B(Q, ij) of some vectors; the side with fewer orbitals comes first."""
    square = pyscf_module().lib.unpack_tril(given)
    if left.shape[1] <= right.shape[1]:
        half = np.matmul(square, left).transpose(0, 2, 1)
        whole: Floats = np.matmul(half, right)
    else:
        whole = np.matmul(left.T, np.matmul(square, right))
    return whole
