"""`expand`: from the unique blocks of a symmetric pattern to all blocks of the tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.patterns.keys import lexical_order
from tilewise.patterns.permutation import Symmetry
from tilewise.patterns.structure import Pattern

__all__ = ["Expansion", "expand"]

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Expansion:
    """All blocks of the full tensor and where each comes from.

    Block b of the full tensor is `sign[b] * np.transpose(unique_block[source[b]], perms[perm[b]])`.
    """

    index: _Ints
    """Tile per mode of each block (blocks, ndim), lexicographically sorted."""
    source: _Ints
    """Row of the unique block in the pattern."""
    perm: _Ints
    """Row of `perms` with the axes to transpose by."""
    perms: _Ints
    """Table of axes (permutations, ndim); row 0 is the identity."""
    sign: npt.NDArray[np.float64]
    """+1.0 or -1.0 per block."""
    norms: npt.NDArray[np.float64]
    """Upper bound of each block's Frobenius norm."""

    def taken(self, rows: _Ints) -> Expansion:
        """Some of the blocks; `rows` ascend."""
        parts = (self.index[rows], self.source[rows], self.perm[rows], self.perms, self.sign[rows], self.norms[rows])
        return _frozen(Expansion(*parts))


def expand(pattern: Pattern) -> Expansion:
    """List all blocks of the full tensor with the unique block, permutation and sign that give each.

    Without symmetry `index` and `norms` are the pattern's own arrays. A block whose tiles are equal
    within a group comes once, from the permutation that moves none of the equal modes past another:
    it is stored full, and holds the symmetry inside itself.

    Examples
    --------
    >>> from tilewise.patterns import Pattern, Symmetry, expand
    >>> from tilewise.spaces import Space
    >>> occ = Space([2, 3])
    >>> full = expand(Pattern((occ, occ), [(0, 1), (1, 1)], symmetry=Symmetry(((0, 1), -1))))
    >>> full.index.tolist(), full.source.tolist(), full.sign.tolist()
    ([[0, 1], [1, 0], [1, 1]], [0, 0, 1], [1.0, -1.0, 1.0])
    """
    if pattern.symmetry is None:
        return _identity(pattern)
    perms, signs = pattern.symmetry.operations(pattern.ndim)
    rows = [np.flatnonzero(_first_of_its_kind(pattern.index, axes, pattern.symmetry)) for axes in perms]
    source = np.concatenate(rows)
    perm = np.repeat(np.arange(len(perms)), [len(part) for part in rows])
    index = np.concatenate([pattern.index[part][:, axes] for part, axes in zip(rows, perms, strict=True)])
    order = lexical_order(index, [space.ntiles for space in pattern.spaces])
    source, perm = source[order], perm[order]
    index = np.ascontiguousarray(index[order])
    return _frozen(Expansion(index, source, perm, perms, signs[perm], pattern.norms[source]))


def _identity(pattern: Pattern) -> Expansion:
    blocks = pattern.nnz_blocks
    source = np.arange(blocks, dtype=np.int64)
    perms = np.arange(pattern.ndim, dtype=np.int64).reshape(1, -1)
    perm = np.zeros(blocks, dtype=np.int64)
    return _frozen(Expansion(pattern.index, source, perm, perms, np.ones(blocks), pattern.norms))


def _first_of_its_kind(index: _Ints, axes: _Ints, symmetry: Symmetry) -> npt.NDArray[np.bool_]:
    """Unique blocks that this permutation of modes brings to a place no other chosen one does.

    Permutations that differ by an exchange of equal tiles lead to the same block; the one taken keeps
    modes with equal tiles in ascending order.
    """
    chosen = np.ones(len(index), dtype=np.bool_)
    for modes, _ in symmetry.groups:
        sources = [int(axes[mode]) for mode in modes]
        for at, left in enumerate(sources):
            for right in sources[at + 1 :]:
                if left > right:
                    chosen &= index[:, left] != index[:, right]
    return chosen


def _frozen(expansion: Expansion) -> Expansion:
    for name in Expansion.__slots__:
        getattr(expansion, name).flags.writeable = False
    return expansion
