"""Equal square blocks as one array in CSR order, and which of them meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from problems import Floats, Ints, Operand, each_stack

CHUNK_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class Stack:
    """A block-sparse matrix of equal square blocks in CSR order."""

    data: Floats
    """Elements, shape (blocks, size, size)."""
    indices: Ints
    """Tile column of each block."""
    starts: Ints
    """First block of each tile row, and the number of blocks."""

    @property
    def rows(self) -> Ints:
        """Tile row of each block."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))


def stacked(operand: Operand) -> Stack:
    """All blocks of an operand whose tiles have one size."""
    order = np.lexsort((operand.cols, operand.rows))
    rows, cols = operand.rows[order], operand.cols[order]
    parts = each_stack(replace(operand, rows=rows, cols=cols), int(operand.row_sizes[0]))
    data = np.concatenate([part for _, _, part in parts])
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(operand.row_sizes)))])
    return Stack(data, cols, starts)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of blocks that meet, sorted by the block of C they add to."""

    a: Ints
    """Block of A of each pair."""
    b: Ints
    """Block of B of each pair."""
    first: Ints
    """First pair of each block of C."""
    target: Ints
    """Tile row times the number of tile columns plus tile column, of each block of C."""


def meeting_pairs(a: Stack, b: Stack, columns: int) -> Pairs:
    """Join the columns of A with the rows of B; `columns` is the number of tile columns of B."""
    partners = np.diff(b.starts)[a.indices]
    left = np.repeat(np.arange(len(a.indices)), partners)
    before = np.concatenate([[0], np.cumsum(partners)[:-1]])
    right = np.arange(len(left)) + np.repeat(b.starts[a.indices] - before, partners)
    target = a.rows[left] * columns + b.indices[right]
    order = np.argsort(target, kind="stable")
    target = target[order]
    first = np.flatnonzero(np.concatenate([[True], target[1:] != target[:-1]]))
    return Pairs(left[order], right[order], first, target[first])


def chunks(pairs: Pairs, size: int) -> Iterator[tuple[slice, slice]]:
    """Cut the pairs, at blocks of C, into pieces whose products fill about 16 MB.

    Gives (pairs, blocks of C) as slices.
    """
    step = max(256, CHUNK_BYTES // (8 * size * size))
    edges = np.append(pairs.first, len(pairs.a))
    low = 0
    while low < len(pairs.first):
        high = max(low + 1, int(np.searchsorted(edges, edges[low] + step, side="right")) - 1)
        yield slice(int(edges[low]), int(edges[high])), slice(low, high)
        low = high
