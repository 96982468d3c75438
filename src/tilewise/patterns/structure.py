"""`Pattern`: the non-zero blocks of a tensor, a norm bound for each, and the tensor's symmetry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError, TilewiseError
from tilewise.patterns import generators
from tilewise.patterns.keys import block_keys, lexical_order, rows_of_keys
from tilewise.patterns.parse import check_inside, parse_index, parse_norms, parse_spaces
from tilewise.patterns.permutation import Symmetry
from tilewise.spaces import Rule, Space
from tilewise.spaces.integers import parse_integers

__all__ = ["Pattern"]

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Pattern:
    """The non-zero blocks of a tensor, a norm bound for each, and the tensor's symmetry.

    Parameters
    ----------
    spaces : sequence of Space
        One per mode; none for a scalar.
    index : array_like of int, shape (blocks, ndim)
        Tile per mode of each non-zero block, in any order, none twice. With a symmetry these are the
        unique blocks: tile numbers do not decrease within a group of modes.
    norms : array_like of float, optional
        Upper bound of the Frobenius norm of each block; infinite means unknown, as does None.
    symmetry : Symmetry, optional
        Groups of modes with a sign.

    Examples
    --------
    >>> from tilewise.patterns import Pattern
    >>> from tilewise.spaces import Space
    >>> occ, vir = Space([2, 3], name="occ"), Space([4, 4, 1], name="vir")
    >>> p = Pattern((occ, vir), [(1, 2), (0, 1)], norms=[0.5, 2.0])
    >>> p.index.tolist(), p.norms.tolist(), p.nnz_elements
    ([[0, 1], [1, 2]], [2.0, 0.5], 11)
    """

    spaces: tuple[Space, ...]
    """Space of each mode."""
    index: _Ints
    """Tile per mode of each unique block (nnz_blocks, ndim), lexicographically sorted, read-only."""
    norms: _Floats
    """Upper bound of each block's Frobenius norm, infinite where unknown, read-only."""
    symmetry: Symmetry | None
    """Permutational symmetry, None without."""

    def __init__(
        self,
        spaces: Sequence[Space],
        index: npt.ArrayLike,
        norms: npt.ArrayLike | None = None,
        symmetry: Symmetry | None = None,
    ) -> None:
        modes, symmetry = parse_spaces(spaces, symmetry)
        blocks = parse_index(index, modes, symmetry)
        bounds = parse_norms(norms, len(blocks))
        order = lexical_order(blocks, [space.ntiles for space in modes])
        blocks = blocks[order]
        same = np.flatnonzero((blocks[1:] == blocks[:-1]).all(axis=1))
        if same.size:
            raise InputError(
                f"Block {tuple(blocks[same[0]].tolist())} is listed more than once. "
                "Each non-zero block appears once. Drop the repetition, or add patterns with union()."
            )
        self._assign(modes, blocks, bounds[order], symmetry)

    def _assign(self, spaces: tuple[Space, ...], index: _Ints, norms: _Floats, symmetry: Symmetry | None) -> None:
        index.flags.writeable = False
        norms.flags.writeable = False
        self.__dict__.update(spaces=spaces, index=index, norms=norms, symmetry=symmetry)

    @classmethod
    def trusted(
        cls,
        spaces: tuple[Space, ...],
        index: _Ints,
        norms: _Floats | None = None,
        symmetry: Symmetry | None = None,
    ) -> Pattern:
        """Make a pattern of arrays known to be right: sorted, unique, int64 and float64, contiguous.

        Nothing is checked or copied, and the arrays become read-only; `check` says whether they were right.
        """
        pattern = object.__new__(cls)
        pattern._assign(spaces, index, np.full(len(index), np.inf) if norms is None else norms, symmetry)
        return pattern

    @classmethod
    def dense(cls, spaces: Sequence[Space], symmetry: Symmetry | None = None) -> Pattern:
        """All blocks (the unique ones of a symmetric tensor), with unknown norms."""
        return cls.allowed(spaces, symmetry=symmetry)

    @classmethod
    def empty(cls, spaces: Sequence[Space], symmetry: Symmetry | None = None) -> Pattern:
        """No block at all."""
        modes, symmetry = parse_spaces(spaces, symmetry)
        return cls.trusted(modes, np.zeros((0, len(modes)), dtype=np.int64), None, symmetry)

    @classmethod
    def random(
        cls,
        spaces: Sequence[Space],
        density: float,
        seed: int = 0,
        symmetry: Symmetry | None = None,
        norms: float | None = None,
    ) -> Pattern:
        """Remove random blocks until one more removal would take the element density under `density`.

        This is the synthetic set of Herault et al. (2020), section 5.1. With a symmetry, unique blocks
        are removed and the density is that of the full tensor.

        Parameters
        ----------
        spaces : sequence of Space
            One per mode.
        density : float
            Least fraction of elements in non-zero blocks, from 0 to 1.
        seed : int
            Seed of the random numbers; the same seed gives the same pattern.
        symmetry : Symmetry, optional
            Groups of modes with a sign.
        norms : float, optional
            Norm bound of every block; unknown without.

        Examples
        --------
        >>> from tilewise.patterns import Pattern
        >>> from tilewise.spaces import Space
        >>> p = Pattern.random((Space([2] * 10), Space([3] * 10)), density=0.25)
        >>> p.nnz_blocks, p.density
        (25, 0.25)
        """
        modes, symmetry = parse_spaces(spaces, symmetry)
        index = generators.random_blocks(modes, density, seed, symmetry)
        return cls.trusted(modes, index, parse_norms(norms, len(index)), symmetry)

    @classmethod
    def decaying(
        cls,
        spaces: Sequence[Space],
        length: float = 2.0,
        cut: float = 0.0,
        *,
        norm: float = 1.0,
        pairs: Sequence[tuple[int, int]] | None = None,
        symmetry: Symmetry | None = None,
    ) -> Pattern:
        """Blocks whose norms fall by a factor e per `length` tiles of distance, down to `cut`.

        Tiles of spaces with different numbers of tiles are placed side by side, stretched to the longest.

        Parameters
        ----------
        spaces : sequence of Space
            One per mode.
        length : float
            Number of tiles over which norms fall by e.
        cut : float
            Blocks whose norm bound is not above `cut` are zero.
        norm : float
            Norm bound of blocks at distance 0.
        pairs : sequence of (int, int), optional
            Pairs of modes whose distances add up; without it the distance is that of the farthest two modes.
        symmetry : Symmetry, optional
            Groups of modes with a sign; the norm of a unique block is that at its own place.

        Examples
        --------
        >>> from tilewise.patterns import Pattern
        >>> from tilewise.spaces import Space
        >>> band = Pattern.decaying([Space([3] * 100)] * 2, length=2.0, cut=0.2)     # |i - j| <= 3
        >>> band.nnz_blocks
        688
        """
        modes, symmetry = parse_spaces(spaces, symmetry)
        index, norms = generators.decaying_blocks(modes, length, cut, norm, pairs, symmetry)
        return cls.trusted(modes, index, norms, symmetry)

    @classmethod
    def allowed(
        cls,
        spaces: Sequence[Space],
        *,
        irrep: int | None = None,
        spin: Sequence[int] | None = None,
        charge: Sequence[int] | None = None,
        rules: Sequence[Rule] = (),
        symmetry: Symmetry | None = None,
    ) -> Pattern:
        """The blocks that selection rules on the labels of the tiles allow, with unknown norms.

        Parameters
        ----------
        spaces : sequence of Space
            One per mode, with the labels that the rules name.
        irrep : int, optional
            Target of the XOR of all irreps, 0 for a totally symmetric tensor.
        spin, charge : sequence of int, optional
            Sign (+1, -1, or 0 to leave it out) of each mode in the sum of labels, which must be zero.
        rules : sequence of Rule
            Further rules, such as those with other targets.
        symmetry : Symmetry, optional
            Groups of modes with a sign; rules must treat the modes of one group alike.

        Examples
        --------
        >>> from tilewise.patterns import Pattern
        >>> from tilewise.spaces import Space
        >>> occ = Space([2, 2, 1, 1], spin=[1, -1, 1, -1], irrep=[0, 0, 1, 1])
        >>> Pattern.allowed((occ, occ), irrep=0, spin=(1, -1)).index.tolist()
        [[0, 0], [1, 1], [2, 2], [3, 3]]
        """
        modes, symmetry = parse_spaces(spaces, symmetry)
        every = list(rules)
        every += [] if irrep is None else [Rule("irrep", irrep)]
        every += [] if spin is None else [Rule("spin", signs=tuple(spin))]
        every += [] if charge is None else [Rule("charge", signs=tuple(charge))]
        return cls.trusted(modes, generators.selected_blocks(modes, every, symmetry), None, symmetry)

    @classmethod
    def from_mask(cls, spaces: Sequence[Space], mask: npt.ArrayLike, symmetry: Symmetry | None = None) -> Pattern:
        """The blocks where a boolean array with one entry per block of the full tensor is true."""
        modes, symmetry = parse_spaces(spaces, symmetry)
        return cls.trusted(modes, generators.masked_blocks(modes, mask, symmetry), None, symmetry)

    @property
    def ndim(self) -> int:
        """Number of modes."""
        return len(self.spaces)

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per mode."""
        return tuple(space.size for space in self.spaces)

    @property
    def ntiles(self) -> tuple[int, ...]:
        """Tiles per mode."""
        return tuple(space.ntiles for space in self.spaces)

    @property
    def nnz_blocks(self) -> int:
        """Number of unique non-zero blocks."""
        return len(self.index)

    @cached_property
    def block_shapes(self) -> _Ints:
        """Elements per mode of each unique block (nnz_blocks, ndim)."""
        shapes = np.empty_like(self.index)
        for mode, space in enumerate(self.spaces):
            np.take(space.sizes, self.index[:, mode], out=shapes[:, mode])
        shapes.flags.writeable = False
        return shapes

    @cached_property
    def block_sizes(self) -> _Ints:
        """Elements of each unique block."""
        sizes = np.ones(self.nnz_blocks, dtype=np.int64)
        for mode, space in enumerate(self.spaces):
            sizes *= space.sizes[self.index[:, mode]]
        sizes.flags.writeable = False
        return sizes

    @cached_property
    def nnz_elements(self) -> int:
        """Elements in the unique non-zero blocks, which are those that are stored."""
        return int(self.block_sizes.sum())

    @cached_property
    def density(self) -> float:
        """Fraction of the full tensor's elements that lie in non-zero blocks; 0.0 if there are none."""
        elements = math.prod(self.shape)
        stored = self.block_sizes if self.symmetry is None else self.block_sizes * self.multiplicity
        return int(stored.sum()) / elements if elements else 0.0

    @property
    def multiplicity(self) -> _Ints:
        """Number of blocks of the full tensor that each unique block stands for."""
        return (self.symmetry or Symmetry()).multiplicity(self.index)

    @cached_property
    def norm(self) -> float:
        """Upper bound of the Frobenius norm of the full tensor, infinite if any block's is unknown."""
        largest = float(self.norms.max(initial=0.0))
        if largest in (0.0, math.inf):
            return largest
        # Scaled first: squares of tiny norms would vanish, and the sum would be no bound.
        return largest * math.sqrt(float((self.multiplicity * (self.norms / largest) ** 2).sum()))

    def nbytes(self, dtype: npt.DTypeLike = np.float64) -> int:
        """Bytes of the stored elements."""
        return self.nnz_elements * np.dtype(dtype).itemsize

    def keys(self) -> _Ints:
        """One ascending 64-bit integer per unique block: its tile numbers as digits in mixed radix."""
        return self._keys

    @cached_property
    def _keys(self) -> _Ints:
        keys = block_keys(self.index, self.ntiles)
        keys.flags.writeable = False
        return keys

    def find(self, blocks: npt.ArrayLike) -> _Ints:
        """Row of each block of an array (..., ndim) among the unique blocks, or -1 where it is zero."""
        remedy = f"Pass {self.ndim} tile numbers per block."
        wanted = parse_integers(blocks, "The blocks to find", remedy)
        if not wanted.ndim or wanted.shape[-1] != self.ndim:
            raise InputError(
                f"The blocks to find have shape {wanted.shape}. The last axis has {self.ndim} entries, "
                f"one per mode. {remedy}"
            )
        places = wanted.shape[:-1]
        rows = wanted.reshape(math.prod(places), self.ndim)
        check_inside(rows, self.spaces)
        return rows_of_keys(self.keys(), block_keys(rows, self.ntiles)).reshape(places)

    def row(self, block: Sequence[int]) -> int:
        """Row of one unique block, or -1 where it is zero."""
        key = 0
        good = len(block) == self.ndim
        for tile, space in zip(block, self.spaces, strict=False):
            good = good and isinstance(tile, (int, np.integer)) and 0 <= tile < space.ntiles
            key = key * space.ntiles + int(tile) if good else -1
        if not good:
            return int(self.find(block))  # which says what is wrong
        keys = self.keys()
        row = int(keys.searchsorted(key))
        return row if row < keys.size and keys[row] == key else -1

    def check(self) -> None:
        """Raise a `TilewiseError` if the pattern breaks any of its own rules; for tests and for `trusted`."""
        for array, dtype, ndim in ((self.index, np.int64, 2), (self.norms, np.float64, 1)):
            flags = array.flags
            if array.dtype != dtype or array.ndim != ndim or flags.writeable or not flags.c_contiguous:
                raise TilewiseError(
                    f"A pattern holds an array of {array.dtype} with {array.ndim} dimensions and flags\n"
                    f"{flags}\n"
                    f"A read-only, C-contiguous array of {np.dtype(dtype)} with {ndim} is expected. "
                    "Correct the code that made it."
                )
        again = Pattern(self.spaces, self.index, self.norms, self.symmetry)
        if not np.array_equal(again.index, self.index) or again.symmetry != self.symmetry:
            raise TilewiseError(
                "The blocks of a pattern are not sorted, or its symmetry has no groups. Lexicographic order "
                "and None for no symmetry are expected. Correct the code that made it."
            )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Pattern):
            return NotImplemented
        return (
            self.spaces == other.spaces
            and self.symmetry == other.symmetry
            and np.array_equal(self.index, other.index)
            and np.array_equal(self.norms, other.norms)
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.spaces, self.symmetry, self.index.tobytes()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Pattern.trusted, (self.spaces, self.index, self.norms, self.symmetry)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape)) or "scalar"
        symmetry = "" if self.symmetry is None else f", {self.symmetry!r}"
        blocks = f"{self.nnz_blocks} block{'' if self.nnz_blocks == 1 else 's'}"
        return f"Pattern({shape}, {blocks}, density {self.density:.3g}{symmetry})"
