"""Where the elements of a tensor lie: in memory, one block after the other in one array, or with a maker of blocks.

A tensor whose elements are not in memory has a storage that reads a block when it is asked for one: a
generator (`tilewise.tensors.generated`) or a file (`tilewise.tensors.files`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.patterns import Pattern

DTYPES = ("float32", "float64", "complex64", "complex128")
"""The element types of a tensor."""

NORM_SLACK = 1.0 + 1e-12
"""Factor that makes a computed norm an upper bound in spite of rounding."""

LEAST_SQUARE = 1e-280
"""Sums of squares below this may have lost elements whose own squares vanish."""

CHUNK_ELEMENTS = 1 << 15
"""About how many elements are squared at once, to stay in a cache."""

PART_ELEMENTS = 1 << 15
"""How many elements of one block are looked at at once: few, since what that takes counts towards a budget."""

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Result = TypeVar("Result")


class Storage(Protocol):
    """What holds or makes the elements of a tensor's stored blocks."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""

    @property
    def parallel(self) -> bool:
        """Whether several threads may read at once."""

    def read(self, row: int, out: Array) -> None:
        """Write the elements of a stored block to a one-dimensional array, perhaps of another element type."""


@dataclass(frozen=True, slots=True)
class Arena:
    """The blocks of a pattern in memory, each C-contiguous.

    Here they all belong to this process and lie in the pattern's order without gaps.  An engine of several processes
    has a kind of its own, in which each process answers for some of the blocks: what changes elements goes through
    `own`, `rows` and `norms`.
    """

    data: Array
    """Where the blocks lie."""
    offsets: Ints
    """First element of each block in it; negative for a block that has to be asked of another process."""

    @property
    def own(self) -> Array:
        """The elements that this process answers for, block after block."""
        return self.data

    @property
    def rows(self) -> Ints:
        """The blocks that they belong to, in ascending order."""
        return np.arange(len(self.offsets))

    @property
    def own_offsets(self) -> Ints:
        """First of its own elements of each of these blocks."""
        return self.offsets

    @property
    def owner(self) -> Ints | None:
        """The process that answers for each block; None if each has all of them to itself."""
        return None

    @property
    def complete(self) -> bool:
        """Whether every block lies where this process can see it."""
        return True

    def like(self, own: Array) -> Arena:
        """The same blocks with other elements; each process gives those that it answers for."""
        return Arena(own, self.offsets)

    def matches(self, other: Arena) -> bool:
        """Whether every process answers for the same blocks of another arena of the same pattern."""
        return type(self) is type(other)

    def gather(self, value: Any) -> list[Any]:
        """What each process that answers for blocks has to say."""
        return [value]

    def agree(self, work: Callable[[], Result], *, once: bool = False) -> Result | None:
        """Have every process that answers for blocks do something, or only one; what one raises, all raise."""
        return work()

    def norms(self) -> Floats:
        """Upper bounds on the Frobenius norms of all blocks."""
        return upper_norms(self.frobenius_norms())

    def frobenius_norms(self) -> Floats:
        """Frobenius norms of all blocks, right to rounding."""
        own = np.zeros(len(self.offsets))
        own[self.rows] = frobenius_norms(self.own, self.own_offsets)
        return np.asarray(sum(self.gather(own)))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.data.dtype

    @property
    def parallel(self) -> bool:
        """Any number of threads may read."""
        return True

    def view(self, row: int, size: int) -> Array | None:
        """The elements of a block; None if it has to be asked of another process."""
        begin = self.offsets[row]
        return self.data[begin : begin + size]

    def read(self, row: int, out: Array) -> None:
        """Copy the elements of a block."""
        out[...] = self.view(row, len(out))

    def norms_of(self, blocks: Ints) -> Floats:
        """Norms of some blocks that this process can see; where they are many, all are looked at in one go."""
        if len(blocks) > MANY_BLOCKS:
            return frobenius_norms(self.data, self.offsets)[blocks]
        ends = np.append(self.offsets[1:], len(self.data))
        return np.array([frobenius_norm(self.data[self.offsets[b] : ends[b]]) for b in blocks.tolist()])

    def parts(self, pattern: Pattern) -> Iterator[tuple[int, Array]]:
        """Each block that this process answers for: its number, and a view of its elements in its shape."""
        shapes = pattern.block_shapes
        for row, begin in zip(self.rows.tolist(), self.own_offsets.tolist(), strict=True):
            shape = shapes[row]
            yield row, self.own[begin : begin + math.prod(shape.tolist())].reshape(shape)

    @classmethod
    def allocate(cls, pattern: Pattern, dtype: npt.DTypeLike, *, zero: bool) -> Arena:
        """Storage of this process alone for a pattern's blocks; `zero=False` leaves them uninitialised."""
        make = np.zeros if zero else np.empty
        return cls(make(pattern.nnz_elements, dtype), block_offsets(pattern))


def block_offsets(pattern: Pattern) -> Ints:
    """First element of each block of a pattern whose blocks lie one after the other."""
    sizes = pattern.block_sizes
    offsets = np.cumsum(sizes) - sizes
    offsets.flags.writeable = False
    return offsets


def data_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The element type of a tensor made from data of the given type: integers become float64."""
    return np.dtype(np.float64) if dtype.kind in "iub" else parse_dtype(dtype)


def parse_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """An element type that a user asks for, in native byte order."""
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = None
    if kind is None or kind.name not in DTYPES:
        raise InputError(
            f"dtype {dtype if kind is None else kind.name} is not an element type of tensors. Expected one of "
            f"{', '.join(DTYPES)}. Convert the data with astype() first."
        )
    return kind.newbyteorder("=")


MANY_BLOCKS = 64
"""From this many blocks on, one pass over all elements is cheaper than a look at each block."""


def block_norms(data: Array, offsets: Ints) -> Floats:
    """Upper bounds on the Frobenius norms of blocks; infinite where an element is not finite."""
    return upper_norms(frobenius_norms(data, offsets))


def frobenius_norms(data: Array, offsets: Ints) -> Floats:
    """Frobenius norms of blocks, right to rounding; infinite where an element is not finite."""
    if len(data) <= CHUNK_ELEMENTS:
        return _norms_of_part(data, offsets)
    norms = np.zeros(len(offsets))
    ends = np.append(offsets[1:], len(data))
    first = 0
    while first < len(offsets):
        last = max(int(np.searchsorted(ends, offsets[first] + CHUNK_ELEMENTS, side="right")), first + 1)
        part = data[offsets[first] : ends[last - 1]]
        if len(part) > CHUNK_ELEMENTS:  # one block, which is not squared as a whole
            norms[first] = frobenius_norm(part)
        else:
            norms[first:last] = _norms_of_part(part, offsets[first:last] - offsets[first])
        first = last
    return norms


def frobenius_norm(block: Array) -> float:
    """The Frobenius norm of one block, right to rounding."""
    first = np.zeros(1, np.int64)
    return math.hypot(*(float(_norms_of_part(part, first)[0]) for part in _parts(block)))


def all_finite(block: Array) -> bool:
    """Whether every element is finite."""
    return all(bool(np.isfinite(part).all()) for part in _parts(block))


def check_bytes(elements: int, dtype: np.dtype[Any]) -> int:
    """Bytes that `frobenius_norm` and `all_finite` take besides: a part of the block squared, in double precision."""
    wide = np.result_type(dtype, np.float64)
    return min(elements, PART_ELEMENTS) * wide.itemsize * (1 if dtype == wide else 2)


def _parts(block: Array) -> Iterator[Array]:
    """All elements in small parts, without a copy of a block that is contiguous in any order."""
    flat = block.ravel(order="K")
    return (flat[begin : begin + PART_ELEMENTS] for begin in range(0, len(flat), PART_ELEMENTS))


def _norms_of_part(data: Array, offsets: Ints) -> Floats:
    if not len(offsets):
        return np.zeros(0)
    parts = 2 if data.dtype.kind == "c" else 1
    wide = data.view(data.real.dtype).astype(np.float64, copy=False)
    first = parts * offsets
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = np.add.reduceat(wide * wide, first)
        norms = np.sqrt(squares)
        if squares.min() >= LEAST_SQUARE and squares.max() < np.inf:
            return norms
        # Squares vanish or overflow: scaled by the largest element they do not.
        largest = np.maximum.reduceat(np.abs(wide), first)
        scale = np.where((largest > 0) & (largest < np.inf), largest, 1.0)
        each = wide / np.repeat(scale, np.diff(first, append=len(wide)))
        norms = scale * np.sqrt(np.add.reduceat(each * each, first))
    return np.where(np.isnan(norms), np.inf, norms)


def checked_norms(squares: Floats, arena: Arena, rows: Ints | None = None) -> Floats:
    """Upper bounds on the norms of blocks whose sums of squares are known.

    Parameters
    ----------
    squares : array of float
        Sums of squared elements; where they vanish or overflow the elements are looked at again.
    arena : Arena
        The elements.
    rows : array of int, optional
        The blocks that the squares belong to; all of the arena by default.
    """
    norms = np.sqrt(squares)
    doubtful = np.flatnonzero(~((squares >= LEAST_SQUARE) & (squares < np.inf)))
    if len(doubtful):
        blocks = doubtful if rows is None else rows[doubtful]
        norms[doubtful] = arena.norms_of(blocks)
    return upper_norms(norms)


def upper_norms(norms: Floats) -> Floats:
    """Norms with room for rounding, also of the smallest numbers, which have few digits."""
    with np.errstate(over="ignore"):
        return np.where(norms > 0, np.nextafter(norms * NORM_SLACK, np.inf), 0.0)
