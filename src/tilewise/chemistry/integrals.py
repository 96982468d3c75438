"""What comes from PySCF: molecules, mean fields, and integrals over atomic functions."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from tilewise.chemistry.geometry import Geometry
from tilewise.errors import InputError, MissingPackageError, StorageError, TilewiseError
from tilewise.factories import from_function
from tilewise.plans.transform import TilePairs
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor

__all__ = [
    "AtomicOrbitals",
    "CoulombSource",
    "FittedVectors",
    "files_in",
    "fit_molecule",
    "fock_matrix",
    "function_integrals",
    "hartree_fock",
    "load_basis",
    "make_molecule",
    "one_thread",
    "orbital_irreps",
    "pair_bounds",
    "pyscf_module",
]

_Ints = npt.NDArray[np.int64]

_CONVERGENCE = 1e-11

_PURITY = 1e-11
"""Coefficients by which an orbital may differ from one of its irrep: blocks that vanish then are that small."""


def make_molecule(geometry: Geometry, basis: str, charge: int, *, symmetry: bool = False) -> Any:
    """A closed-shell PySCF molecule, with the core potentials that belong to the basis set.

    Parameters
    ----------
    geometry : Geometry
        The atoms.
    basis : str
        Name of a basis set that PySCF knows; names of files are not taken.
    charge : int
        Total charge.
    symmetry : bool
        Whether PySCF looks for a point group.
    """
    gto = _pyscf().gto
    symbols = sorted(set(geometry.symbols))
    functions = {symbol: load_basis(gto, basis, symbol) for symbol in symbols}
    potentials = {symbol: _load_potential(gto, basis, symbol) for symbol in symbols}
    mol = gto.Mole(
        atom=list(zip(geometry.symbols, geometry.coordinates.tolist(), strict=True)),
        unit="Angstrom",
        basis=functions,
        ecp={symbol: potential for symbol, potential in potentials.items() if potential},
        charge=charge,
        symmetry=symmetry,
        verbose=0,
    )
    mol.build(dump_input=False, parse_arg=False)
    mol.basis = basis  # PySCF finds the set for density fitting by the name
    return mol


def hartree_fock(mol: Any) -> Any:
    """The restricted Hartree-Fock mean field of a molecule, converged tightly enough for 1e-9 in its MP2."""
    mf = _pyscf().scf.RHF(mol)
    mf.conv_tol = _CONVERGENCE
    mf.max_cycle = 200
    mf.chkfile = None
    return mf.run()


def _pyscf() -> Any:
    try:
        import pyscf.gto
        import pyscf.gto.moleintor
        import pyscf.lib
        import pyscf.scf
        import pyscf.symm
    except ImportError as error:
        raise MissingPackageError(
            f"PySCF cannot be imported: {error}. Molecules and integrals come from it. "
            'Install it with: pip install "tilewise[chem]"'
        ) from error
    return pyscf


def load_basis(gto: Any, basis: str, symbol: str, examples: str = "sto-3g, 6-31g*, cc-pvdz or def2-svp") -> Any:
    """The functions of one element, or an error; PySCF fails in many ways on a name it does not know."""
    remedy = f"Use the name of a basis set such as {examples}."
    # PySCF takes text and files for a basis too, and evaluates what they hold.
    is_name = isinstance(basis, str) and re.fullmatch(r"[A-Za-z0-9*+(), _-]+", basis)
    if not is_name or Path(basis).is_file():
        raise InputError(f"basis={basis!r} is a file or no name. Expected a name that PySCF knows. {remedy}")
    if "gth" in basis.lower():
        raise InputError(
            f"The basis set {basis!r} belongs to pseudopotentials of solids. Expected one for molecules. {remedy}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            functions = gto.basis.load(basis, symbol)
    except (RuntimeError, LookupError, OSError, AssertionError, ValueError) as error:
        raise InputError(
            f"PySCF has no basis set {basis!r} for the element {symbol}. Expected one that has all elements "
            f"of the molecule. {remedy}"
        ) from error
    if not functions:
        raise InputError(f"The basis set {basis!r} has no function for {symbol}. Expected at least one. {remedy}")
    return functions


def _load_potential(gto: Any, basis: str, symbol: str) -> Any:
    """The core potential that a basis set has for an element, empty or None without one.

    PySCF does not add it by itself, and a valence basis without it gives a wrong energy.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gto.basis.load_ecp(basis, symbol)
    except RuntimeError:  # a name made up of parts, such as 6-31g(d,p), has no table of potentials
        return None


@dataclass(frozen=True, slots=True, eq=False)
class AtomicOrbitals:
    """The atomic functions of a molecule in tiles of neighbouring atoms."""

    mol: Any
    """A copy of the PySCF molecule with its shells in tile order."""
    space: Space
    """The functions, clustered by their atoms."""
    order: _Ints
    """Permutation of PySCF's functions into tile order."""
    shells: _Ints
    """First shell of each tile, and their number at the end."""

    @classmethod
    def of(cls, mol: Any, tile: int) -> AtomicOrbitals:
        """Cluster the functions of a molecule into tiles of about `tile` functions."""
        atom = np.asarray(mol._bas)[:, 0].astype(np.int64)
        starts = np.asarray(mol.ao_loc_nr(), dtype=np.int64)
        by_atom = np.argsort(atom, kind="stable")
        lengths = np.diff(starts)[by_atom]
        centres = np.unique(atom)  # atoms without functions of their own carry no tile
        counts = np.bincount(atom, weights=np.diff(starts))[centres].astype(np.int64)
        ntiles = min(len(centres), max(1, round(starts[-1] / tile)))
        space = Space.clustered(mol.atom_coords()[centres], ntiles, "ao", functions=counts)
        place = np.argsort(space.order)[np.cumsum(lengths) - lengths]
        shells = by_atom[np.argsort(place)]
        order = np.concatenate([np.arange(starts[s], starts[s + 1]) for s in shells])
        sorted_mol = mol.copy()
        sorted_mol._bas = mol._bas[shells]
        return cls(sorted_mol, space, order, np.searchsorted(np.sort(place), space.offsets))


def _schwarz_factors(functions: AtomicOrbitals) -> npt.NDArray[np.float64]:
    """F(PQ) for every pair of tiles, from the diagonal (pq|pq) shell by shell."""
    mol, ntiles = functions.mol, functions.space.ntiles
    tile = np.repeat(np.arange(ntiles), np.diff(functions.shells))
    squares = np.zeros((ntiles, ntiles))
    # Waking PySCF's threads for each of these tiny pieces would cost more than the pieces.
    with _pyscf().lib.with_omp_threads(1):
        for i, j in combinations_with_replacement(range(mol.nbas), 2):
            block = mol.intor("int2e", shls_slice=(i, i + 1, j, j + 1) * 2)
            total = float(np.einsum("pqpq->", block))
            squares[tile[i], tile[j]] += total
            if i != j:
                squares[tile[j], tile[i]] += total
    # The factor covers the rounding of the sums.
    factors: npt.NDArray[np.float64] = np.sqrt(np.maximum(squares, 0.0)) * (1 + 1e-10)
    return factors


@dataclass(frozen=True, slots=True, eq=False)
class CoulombSource:
    """AO integrals (pq|rs) made block by block: pairs of tiles against pairs of tiles.

    Each thread that reads computes by itself, so that several can read at once.
    """

    functions: AtomicOrbitals
    """The functions in tile order."""
    pairs: TilePairs
    """Pairs of their tiles."""
    needed: npt.NDArray[np.bool_] | None
    """Blocks that are not negligible; None if all are needed."""
    tables: Any
    """What libcint looks up, made once."""

    @classmethod
    def of(
        cls, functions: AtomicOrbitals, pairs: TilePairs, needed: npt.NDArray[np.bool_] | None = None
    ) -> CoulombSource:
        """The integrals of some functions."""
        mol = functions.mol
        tables = _pyscf().gto.moleintor.make_cintopt(mol._atm, mol._bas, mol._env, mol._add_suffix("int2e"))
        return cls(functions, pairs, needed, tables)

    def read(self, row: int, column: int, out: npt.NDArray[np.float64]) -> None:
        """Compute the integrals of a row pair and a column pair."""
        mol, pyscf = self.functions.mol, _pyscf()
        tiles = [*self.pairs.tiles[row].tolist(), *self.pairs.tiles[column].tolist()]
        shells = tuple(bound for tile in tiles for bound in self.functions.shells[tile : tile + 2].tolist())
        packed = self.pairs.is_diagonal(row), self.pairs.is_diagonal(column)
        form = {(True, True): "s4", (True, False): "s2ij", (False, True): "s2kl"}.get(packed, "s1")
        with pyscf.lib.with_omp_threads(1):
            pyscf.gto.moleintor.getints4c(
                mol._add_suffix("int2e"),
                mol._atm,
                mol._bas,
                mol._env,
                shls_slice=shells,
                aosym=form,
                cintopt=self.tables,
                out=out,
            )


@dataclass(frozen=True, slots=True, eq=False)
class FittedVectors:
    """Density-fitted integrals of a mean field: (pq|rs) = sum_Q B(Q, pq) B(Q, rs)."""

    fitting: Any
    """PySCF's object."""
    count: int
    """How many Q there are."""

    @classmethod
    def of(cls, mf: Any) -> FittedVectors:
        """The vectors of a mean field that fits the density; they are made if they are not there yet."""
        fitting = mf.with_df
        if not hasattr(fitting, "get_naoaux"):
            raise InputError(
                f"{type(mf).__name__} has integrals by {type(fitting).__name__}. Expected density fitting, or none. "
                "Make the mean field with density_fit(), or pass mf.mol for the integrals themselves."
            )
        return cls.built(fitting)

    @classmethod
    def built(cls, fitting: Any) -> FittedVectors:
        """The vectors of PySCF's object; they are made if they are not there yet."""
        with _fitting_errors(fitting):
            if getattr(fitting, "_cderi", None) is None:
                fitting.build()
            return cls(fitting, int(fitting.get_naoaux()))

    @property
    def held_bytes(self) -> int:
        """Bytes of the vectors, if they are in memory."""
        vectors = self.fitting._cderi
        return int(vectors.nbytes) if isinstance(vectors, np.ndarray) else 0

    def bring(self, at_once: int) -> Iterator[npt.NDArray[np.float64]]:
        """All vectors, at most so many at a time, over pairs p >= q."""
        with _fitting_errors(self.fitting):
            yield from self.fitting.loop(blksize=at_once)


def pair_bounds(functions: AtomicOrbitals, pairs: TilePairs) -> npt.NDArray[np.float64]:
    """A number for each pair of tiles; the norm of a block of integrals is at most the product of two of them.

    Schwarz' inequality, |(pq|rs)|^2 <= (pq|pq) (rs|rs), summed over the functions of the tiles.
    """
    factors = _schwarz_factors(functions)
    bounds: npt.NDArray[np.float64] = factors[pairs.tiles[:, 0], pairs.tiles[:, 1]]
    return bounds


def orbital_irreps(mol: Any, coefficients: npt.NDArray[np.float64]) -> _Ints | None:
    """The irrep of each orbital, such that products are XORs; None if the molecule or the orbitals have no symmetry.

    Irreps of linear molecules are those of the largest subgroup of D2h.
    """
    if not getattr(mol, "symmetry", False) or mol.irrep_id is None:
        return None
    overlap = mol.intor_symmetric("int1e_ovlp")
    symm = _pyscf().symm
    found = np.asarray(symm.label_orb_symm(mol, mol.irrep_id, mol.symm_orb, coefficients, overlap, check=False))
    for irrep, adapted in zip(mol.irrep_id, mol.symm_orb, strict=True):
        own = coefficients[:, found == irrep]
        within = adapted.T @ overlap
        fitted = adapted @ np.linalg.solve(within @ adapted, within @ own)
        if np.abs(fitted - own).max(initial=0.0) > _PURITY:
            return None
    return found.astype(np.int64) % 10


def pyscf_module() -> Any:
    """PySCF, or an error that names the extra: for modules of this folder, which do not import it themselves."""
    return _pyscf()


@contextmanager
def files_in(folder: str | None) -> Iterator[None]:
    """Have PySCF write its temporary files into a folder; into the one that it is set to, without."""
    param = _pyscf().lib.param
    before = param.TMPDIR
    param.TMPDIR = before if folder is None else folder
    try:
        yield
    finally:
        param.TMPDIR = before


@contextmanager
def _fitting_errors(fitting: Any) -> Iterator[None]:
    """Say which folder it is that the vectors of PySCF's object cannot be written to or read from."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TilewiseError):
            raise
        raise StorageError(
            f"Fitted vectors cannot be written to a file in {_folder_of(fitting)} or read from it: "
            f"{os.strerror(error.errno) if error.errno else error}. Expected a folder that stays, on a disk with room "
            "for all of them. Name one with scratch=, or with PYSCF_TMPDIR for those that a mean field makes itself."
        ) from error


def _folder_of(fitting: Any) -> str:
    """Where PySCF's object has its file, or would have it."""
    files = [getattr(fitting, name, None) for name in ("_cderi", "_cderi_to_save")]
    names = [getattr(file, "name", file) for file in files]
    return next((str(Path(name).parent) for name in names if isinstance(name, str)), str(_pyscf().lib.param.TMPDIR))


def fit_molecule(mol: Any, auxbasis: str | None = None, memory: int | None = None) -> FittedVectors:
    """Density-fitted integrals of a molecule, made with an auxiliary basis set that PySCF knows by its name.

    By default it is the one that PySCF pairs with the molecule's basis set for correlation energies.  Vectors that take
    more than `memory` bytes are in a file.
    """
    gto = _pyscf().gto
    import pyscf.df
    import pyscf.lib

    if auxbasis is not None:
        for symbol in sorted({mol.atom_pure_symbol(atom) for atom in range(mol.natm)}):
            load_basis(gto, auxbasis, symbol, "cc-pvdz-ri, def2-svp-ri or weigend")
    fitting = pyscf.df.DF(mol, pyscf.df.make_auxbasis(mol, mp2fit=True) if auxbasis is None else auxbasis)
    fitting.verbose = 0
    if memory is not None:
        fitting.max_memory = memory * 1e-6 + pyscf.lib.current_memory()[0]  # PySCF's limits are those of a process
    return FittedVectors.built(fitting)


def function_integrals(functions: AtomicOrbitals) -> BlockTensor:
    """(pq|rs) over functions in tile order, as a tensor whose blocks are made when they are needed."""
    mol, pyscf = functions.mol, _pyscf()
    tables = pyscf.gto.moleintor.make_cintopt(mol._atm, mol._bas, mol._env, mol._add_suffix("int2e"))

    def make(index: tuple[int, ...]) -> npt.NDArray[np.float64]:
        shells = tuple(bound for tile in index for bound in functions.shells[tile : tile + 2].tolist())
        with pyscf.lib.with_omp_threads(1):
            block: npt.NDArray[np.float64] = pyscf.gto.moleintor.getints4c(
                mol._add_suffix("int2e"), mol._atm, mol._bas, mol._env, shls_slice=shells, aosym="s1", cintopt=tables
            )
        return block

    return from_function(make, (Space(functions.space.sizes, "ao"),) * 4)


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Have libraries compute on the calling thread alone, if that is wanted: bits depend on how threads part work."""
    if not wanted:
        yield
        return
    with _pyscf().lib.with_omp_threads(1), threadpool_limits(1, "blas"):
        yield


def fock_matrix(mf: Any) -> npt.NDArray[np.float64]:
    """The Fock matrix over the orbitals of a mean field, frozen ones included."""
    if hasattr(mf, "fock"):
        return np.asarray(mf.fock, np.float64)
    coefficients = np.asarray(mf.mo_coeff)
    occupied = coefficients[:, np.asarray(mf.mo_occ) > 0]
    with one_thread():  # several add up in no fixed order
        density = 2.0 * occupied @ occupied.T
        # What PySCF's own methods take: an embedding, such as a solvent, is part of it; shifts of levels are not.
        fock = mf.get_fock(vhf=mf.get_veff(mf.mol, density), dm=density)
        orbitals: npt.NDArray[np.float64] = coefficients.T @ np.asarray(fock) @ coefficients
    return orbitals
