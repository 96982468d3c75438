"""Integrals that are given as an array, in memory or in a file, in one of PySCF's forms; and results in these forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.transform import ArraySource
from tilewise.errors import InputError
from tilewise.plans.transform import TilePairs
from tilewise.tensors import BlockTensor

__all__ = ["array_source", "count_functions", "pack_integrals"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Functions = tuple[Ints, Ints]

_FORMS = (
    "Expected four axes of one length, PySCF's two axes of n (n + 1) / 2 pairs (aosym='s4'), or its one axis of pairs "
    "of pairs (aosym='s8')."
)

_SAMPLES = 200


def count_functions(array: Any, antisymmetric: bool) -> int:
    """How many functions an array of integrals has; a look at some elements shows whether its symmetry is right."""
    shape = tuple(array.shape)
    if np.dtype(array.dtype).kind != "f":
        raise InputError(f"The integrals have type {array.dtype}. Expected real numbers. {_FORMS} Convert the array.")
    if antisymmetric and len(shape) != 4:
        raise InputError(f"Antisymmetric integrals have shape {shape}. Expected four axes of one length. Unpack them.")
    size = _count(shape)
    if size is None:
        raise InputError(f"The integrals have shape {shape}. {_FORMS} Correct the array.")
    if len(shape) == 4 and size:
        _check_samples(array, size, -1 if antisymmetric else 1)
    return size


def _count(shape: tuple[int, ...]) -> int | None:
    if len(shape) == 4 and len(set(shape)) == 1:
        return shape[0]
    pairs = shape[0] if len(shape) == 2 and shape[0] == shape[1] else None
    if len(shape) == 1:
        pairs = _root(shape[0])
    return None if pairs is None else _root(pairs)


def _root(pairs: int) -> int | None:
    """n for n (n + 1) / 2."""
    size = (math.isqrt(8 * pairs + 1) - 1) // 2
    return size if size * (size + 1) // 2 == pairs else None


def _check_samples(array: Any, size: int, sign: int) -> None:
    draw = np.random.default_rng(0)
    for p, q, r, s in draw.integers(size, size=(_SAMPLES, 4)).tolist():
        value = array[p, q, r, s]
        others = {
            "(qp|rs)": sign * array[q, p, r, s],
            "(pq|sr)": sign * array[p, q, s, r],
            "(rs|pq)": array[r, s, p, q],
        }
        for name, other in others.items():
            if abs(value - other) > 1e-8 * max(1.0, abs(value)):
                raise InputError(
                    f"The element {(p, q, r, s)} of the integrals is {value}, but {name} gives {other}. Expected "
                    f"(pq|rs) = {'-' if sign < 0 else ''}(qp|rs) = {'-' if sign < 0 else ''}(pq|sr) = (rs|pq). "
                    "Symmetrise the array, or pass antisymmetric= as it is."
                )


def array_source(array: Any, pairs: TilePairs) -> ArraySource:
    """Blocks of an array whose functions are in tile order."""

    def look_up(rows: Functions, columns: Functions) -> Array:
        return _pick(array, rows, columns)

    return ArraySource(pairs, np.arange(pairs.spaces[0].size), look_up)


def _pick(array: Any, rows: Functions, columns: Functions) -> Array:
    """The elements (rows | columns) as a matrix."""
    if len(array.shape) == 4:
        ranges = [(int(index.min()), int(index.max()) + 1) for index in (*rows, *columns)]
        part = np.asarray(array[tuple(slice(*each) for each in ranges)])
        p, q, r, s = (index - first for index, (first, _) in zip((*rows, *columns), ranges, strict=True))
        found: Array = part[p[:, None], q[:, None], r[None, :], s[None, :]]
        return found
    ij, kl = (_pair_number(*functions) for functions in (rows, columns))
    if len(array.shape) == 1:
        high, low = np.maximum.outer(ij, kl), np.minimum.outer(ij, kl)
        return np.asarray(_pick_flat(array, high * (high + 1) // 2 + low))
    first, last = int(kl.min()), int(kl.max()) + 1
    return np.stack([np.asarray(array[int(row), first:last])[kl - first] for row in ij])


def _pick_flat(array: Any, places: Ints) -> Array:
    if isinstance(array, np.ndarray):
        found: Array = array[places]
        return found
    first, last = int(places.min()), int(places.max()) + 1
    part: Array = np.asarray(array[first:last])[places - first]
    return part


def _pair_number(first: Ints, second: Ints) -> Ints:
    """PySCF's number of a pair: row by row of a lower triangle."""
    high, low = np.maximum(first, second), np.minimum(first, second)
    number: Ints = high * (high + 1) // 2 + low
    return number


def pack_integrals(tensor: BlockTensor, *, compact: bool = True) -> Array:
    """Integrals over orbitals as ``pyscf.ao2mo.kernel`` returns them: pairs against pairs, orbitals in their own order.

    Parameters
    ----------
    tensor : BlockTensor
        What `transform` returned.
    compact : bool
        Keep pairs p >= q only, where a pair of modes is symmetric; else all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from tilewise.chemistry import pack_integrals, transform
    >>> pack_integrals(transform(np.ones((3, 3, 3, 3)), np.eye(3))).shape
    (6, 6)
    """
    if not isinstance(tensor, BlockTensor) or tensor.ndim != 4:
        raise InputError(
            f"pack_integrals was given a {type(tensor).__name__}. Expected the BlockTensor with four modes that "
            "transform() returns. Pass that."
        )
    places = [np.argsort(space.order) for space in tensor.spaces]
    groups = [] if tensor.symmetry is None else [modes for modes, sign in tensor.symmetry.groups if sign > 0]
    sides = []
    for first in (0, 2):
        sizes = tensor.shape[first], tensor.shape[first + 1]
        if compact and (first, first + 1) in groups:
            p, q = np.tril_indices(sizes[0])
        else:
            p, q = (index.ravel() for index in np.indices(sizes))
        sides.append((places[first][p], places[first + 1][q]))
    return _pack(tensor, sides)


def _pack(tensor: BlockTensor, sides: list[Functions]) -> Array:
    """Put each block where its pairs are."""
    offsets = [space.offsets for space in tensor.spaces]
    tiles = [
        [np.searchsorted(offsets[2 * side + i], index, side="right") - 1 for i, index in enumerate(pair)]
        for side, pair in enumerate(sides)
    ]
    packed = np.zeros([len(pair[0]) for pair in sides], tensor.dtype)
    rows, columns = (_group(*pair) for pair in tiles)
    for ab, row in rows.items():
        for cd, column in columns.items():
            block = tensor.block((*ab, *cd))
            if block.any():
                p, q = (sides[0][m][row] - offsets[m][ab[m]] for m in (0, 1))
                r, s = (sides[1][m][column] - offsets[2 + m][cd[m]] for m in (0, 1))
                packed[np.ix_(row, column)] = block[p[:, None], q[:, None], r[None, :], s[None, :]]
    return packed


def _group(first: Ints, second: Ints) -> dict[tuple[int, int], Ints]:
    """The pairs of each pair of tiles."""
    if not len(first):
        return {}
    keys, inverse = np.unique(np.stack([first, second], axis=1), axis=0, return_inverse=True)
    order = np.argsort(inverse.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(inverse.ravel(), minlength=len(keys)))
    return {(int(p), int(q)): part for (p, q), part in zip(keys, np.split(order, ends[:-1]), strict=True)}
