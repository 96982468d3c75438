"""Operations on patterns that need no element of any tensor."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np

from tilewise.errors import InputError
from tilewise.patterns.expansion import expand
from tilewise.patterns.keys import lexical_order, rows_of_keys
from tilewise.patterns.structure import Pattern

__all__ = [
    "above",
    "equal_structure",
    "intersection",
    "scaled",
    "transposed",
    "union",
    "without_symmetry",
]


def without_symmetry(pattern: Pattern) -> Pattern:
    """The pattern with all blocks of the full tensor listed and no symmetry.

    Examples
    --------
    >>> from tilewise.patterns import Pattern, Symmetry, without_symmetry
    >>> from tilewise.spaces import Space
    >>> occ = Space([2, 3])
    >>> without_symmetry(Pattern.dense((occ, occ), Symmetry(((0, 1), -1)))).nnz_blocks
    4
    """
    if pattern.symmetry is None:
        return pattern
    full = expand(pattern)
    return Pattern.trusted(pattern.spaces, full.index, full.norms)


def union(left: Pattern, right: Pattern) -> Pattern:
    """The pattern of a sum: blocks of either, norms added where both have one.

    The symmetry stays if both have the same; otherwise the result lists all blocks.

    Examples
    --------
    >>> from tilewise.patterns import Pattern, union
    >>> from tilewise.spaces import Space
    >>> occ = Space([2, 3])
    >>> both = union(Pattern((occ,), [[0]], [1.0]), Pattern((occ,), [[0], [1]], [2.0, 4.0]))
    >>> both.norms.tolist()
    [3.0, 4.0]
    """
    left, right = _alike(left, right, "added")
    index = np.concatenate([left.index, right.index])
    norms = np.concatenate([left.norms, right.norms])
    order = lexical_order(index, left.ntiles)
    index = index[order]
    fresh = np.ones(len(index), dtype=np.bool_)
    fresh[1:] = (index[1:] != index[:-1]).any(axis=1)
    sums = np.bincount(np.cumsum(fresh) - 1, weights=norms[order]).astype(np.float64, copy=False)
    return Pattern.trusted(left.spaces, index[fresh], sums, left.symmetry)


def intersection(left: Pattern, right: Pattern) -> Pattern:
    """Blocks that both patterns have, each with the smaller of its two norm bounds.

    Examples
    --------
    >>> from tilewise.patterns import Pattern, intersection
    >>> from tilewise.spaces import Space
    >>> occ = Space([2, 3])
    >>> intersection(Pattern((occ,), [[0]], [1.0]), Pattern.dense((occ,))).norms.tolist()
    [1.0]
    """
    left, right = _alike(left, right, "intersected")
    rows = rows_of_keys(right.keys(), left.keys())
    shared = np.flatnonzero(rows >= 0)
    norms = np.minimum(left.norms[shared], right.norms[rows[shared]])
    return Pattern.trusted(left.spaces, left.index[shared], norms, left.symmetry)


def scaled(pattern: Pattern, factor: complex) -> Pattern:
    """The pattern of a multiple: norms times |factor|; zero times an unknown norm is zero.

    Examples
    --------
    >>> from tilewise.patterns import Pattern, scaled
    >>> from tilewise.spaces import Space
    >>> scaled(Pattern((Space([2]),), [[0]], [3.0]), -2).norms.tolist()
    [6.0]
    """
    size = abs(factor)
    if not math.isfinite(size):
        raise InputError(
            f"The factor of a pattern is {factor!r}. A finite number is expected. Check how it was computed."
        )
    norms = pattern.norms * size if size else np.zeros(pattern.nnz_blocks)
    return Pattern.trusted(pattern.spaces, pattern.index, norms, pattern.symmetry)


def transposed(pattern: Pattern, axes: Sequence[int] | None = None) -> Pattern:
    """The pattern of `np.transpose(T, axes)`; symmetry groups move with their modes.

    Examples
    --------
    >>> from tilewise.patterns import Pattern, transposed
    >>> from tilewise.spaces import Space
    >>> p = Pattern((Space([2, 3]), Space([4])), [(1, 0)])
    >>> transposed(p).index.tolist()
    [[0, 1]]
    """
    modes = _parse_axes(axes, pattern.ndim)
    if modes == list(range(pattern.ndim)):
        return pattern
    spaces = tuple(pattern.spaces[mode] for mode in modes)
    symmetry = None if pattern.symmetry is None else pattern.symmetry.relabelled(modes)
    index = pattern.index[:, modes]
    if symmetry is not None:
        # A transpose may turn the order of modes inside a group; sorted again, blocks are the unique ones.
        index = symmetry.ascending(index)
    order = lexical_order(index, [space.ntiles for space in spaces])
    return Pattern.trusted(spaces, np.ascontiguousarray(index[order]), pattern.norms[order], symmetry)


def equal_structure(left: Pattern, right: Pattern) -> bool:
    """Whether two patterns have equal spaces, symmetry and blocks, whatever their norms.

    Examples
    --------
    >>> from tilewise.patterns import Pattern, equal_structure, scaled
    >>> from tilewise.spaces import Space
    >>> p = Pattern((Space([2]),), [[0]], [3.0])
    >>> equal_structure(p, scaled(p, 5.0)), p == scaled(p, 5.0)
    (True, False)
    """
    if left is right:
        return True
    if left.spaces != right.spaces or left.symmetry != right.symmetry:
        return False
    return left.index is right.index or np.array_equal(left.index, right.index)


def above(pattern: Pattern, threshold: float) -> Pattern:
    """The blocks whose norm bound is above the threshold; unknown norms always are.

    Examples
    --------
    >>> from tilewise.patterns import Pattern, above
    >>> from tilewise.spaces import Space
    >>> p = Pattern((Space([2, 3, 4]),), [[0], [1], [2]], [1e-9, 1.0, float("inf")])
    >>> above(p, 1e-6).index.tolist()
    [[1], [2]]
    """
    if not 0 <= threshold < math.inf:
        raise InputError(
            f"The threshold on norms is {threshold!r}. A non-negative, finite number is expected. "
            "Pass, for example, 1e-8."
        )
    kept = pattern.norms > threshold
    if kept.all():
        return pattern
    return Pattern.trusted(pattern.spaces, pattern.index[kept], pattern.norms[kept], pattern.symmetry)


def _alike(left: Pattern, right: Pattern, verb: str) -> tuple[Pattern, Pattern]:
    """Both patterns over the same spaces and with one symmetry, listing all blocks where theirs differ."""
    if left.spaces != right.spaces:
        raise InputError(
            f"Patterns over different spaces cannot be {verb}: {_difference(left, right)}. Equal tile sizes "
            "and labels in every mode are expected. Bring one tensor to the other's tiles with tw.retile."
        )
    if left.symmetry == right.symmetry:
        return left, right
    return without_symmetry(left), without_symmetry(right)


def _difference(left: Pattern, right: Pattern) -> str:
    """The first thing in which the spaces of two patterns differ."""
    if left.ndim != right.ndim:
        return f"they have {left.ndim} and {right.ndim} modes"
    pairs = enumerate(zip(left.spaces, right.spaces, strict=True))
    return next(f"mode {mode} has {one!r} and {other!r}" for mode, (one, other) in pairs if one != other)


def _parse_axes(axes: Sequence[int] | None, ndim: int) -> list[int]:
    if axes is None:
        return list(range(ndim))[::-1]
    try:
        modes = [operator.index(axis) for axis in axes]
    except TypeError:
        modes = []
    if sorted(axis % ndim if -ndim <= axis < ndim else axis for axis in modes) != list(range(ndim)):
        raise InputError(
            f"axes is {axes!r} for {ndim} modes. Each mode from 0 to {ndim - 1} is expected once. "
            "Pass a permutation, as to numpy.transpose."
        )
    return [axis % ndim for axis in modes]
