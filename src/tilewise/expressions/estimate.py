"""What a product of block-sparse operands costs, estimated from patterns before any order is chosen.

Every tensor is described by its element density d: the elements in its non-zero blocks over all elements.
For the product of two tensors with M = (product of the extents of all their indices) dense multiplications,
whose summed indices have K tile combinations,

    multiplications = p M      and      density of the product = 1 - (1 - p)^K,

where p is the probability that a multiplication meets two non-zero elements. For two given operands p is
counted exactly on their patterns; with an intermediate it is taken as d_A d_B, as if blocks were placed
independently. The density of a product of two given operands is counted too, if it has few enough block
products.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import expm1, log1p, prod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tilewise.expressions.parse import Expression, check_spaces
from tilewise.spaces import Space

COUNTED_PRODUCTS = 1 << 16
"""Up to this many block products of two operands, the blocks of their result are counted, not estimated."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class BlockList(Protocol):
    """What is needed of a pattern: its spaces and the tile numbers of its non-zero blocks."""

    @property
    def spaces(self) -> tuple[Space, ...]:
        """The space of each mode."""

    @property
    def index(self) -> Integers:
        """One row per non-zero block, one column per mode."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated sparsity of an operand or of a product of several."""

    operands: int
    """The set of operands multiplied, as a bitmap."""
    indices: frozenset[str]
    """The indices that are left."""
    density: float
    """The non-zero elements over all elements."""
    elements: float
    """The number of non-zero elements."""


class Estimator:
    """Estimates the products of an expression's operands, for any order of multiplication.

    Only numbers are kept, no array of the patterns: searches may hold on to an estimator.
    """

    def __init__(self, expression: Expression, patterns: Sequence[BlockList]) -> None:
        spaces = check_spaces(expression, [pattern.spaces for pattern in patterns])
        self._extents = {index: float(space.size) for index, space in spaces.items()}
        self._tiles = {index: float(space.ntiles) for index, space in spaces.items()}
        self._sets = tuple(map(frozenset, expression.operands))
        self._output = frozenset(expression.output)
        self._left: dict[int, frozenset[str]] = {}
        blocks = [
            _reduce(operand, pattern, self.indices_left(1 << number), spaces)
            for number, (operand, pattern) in enumerate(zip(expression.operands, patterns, strict=True))
        ]
        self.operands = tuple(self._of_blocks(1 << number, entry) for number, entry in enumerate(blocks))
        self._pairs = dict(self._count_pairs(blocks))

    def indices_left(self, operands: int) -> frozenset[str]:
        """The indices that a product of `operands` keeps: those the output or another operand has."""
        found = self._left.get(operands)
        if found is None:
            inside = [indices for number, indices in enumerate(self._sets) if operands >> number & 1]
            outside = [indices for number, indices in enumerate(self._sets) if not operands >> number & 1]
            found = self._left[operands] = frozenset().union(*inside) & self._output.union(*outside)
        return found

    def multiply(self, left: Estimate, right: Estimate) -> tuple[Estimate, float]:
        """The product of two estimated tensors, and the number of scalar multiplications."""
        both = left.operands | right.operands
        counted = self._pairs.get(both)
        if counted is not None:
            return counted
        either = left.indices | right.indices
        share = left.density * right.density
        return self._estimated(both, either, share), share * self._extent(either)

    def _estimated(self, operands: int, either: frozenset[str], share: float) -> Estimate:
        indices = self.indices_left(operands)
        density = fill(share, prod(self._tiles[index] for index in sorted(either - indices)))
        return Estimate(operands, indices, density, density * self._extent(indices))

    def _of_blocks(self, operands: int, blocks: _Blocks) -> Estimate:
        elements = float(blocks.elements.sum())
        density = self._density(elements, blocks.letters)
        return Estimate(operands, frozenset(blocks.letters), density, elements)

    def _count_pairs(self, blocks: Sequence[_Blocks]) -> Iterable[tuple[int, tuple[Estimate, float]]]:
        """Count the pairs that share an index; for the others the formula is exact."""
        for second, right in enumerate(blocks):
            for first, left in enumerate(blocks[:second]):
                if not set(left.letters).isdisjoint(right.letters):
                    both = 1 << first | 1 << second
                    yield both, self._count_pair(both, _Join(left, right))

    def _count_pair(self, operands: int, join: _Join) -> tuple[Estimate, float]:
        indices = self.indices_left(operands)
        either = frozenset(join.left.letters + join.right.letters)
        if join.products > COUNTED_PRODUCTS:
            share = self._density(join.multiplications, either)
            return self._estimated(operands, either, share), join.multiplications
        elements = join.result_elements(indices)
        density = self._density(elements, indices)
        return Estimate(operands, indices, density, elements), join.multiplications

    def _extent(self, indices: Iterable[str]) -> float:
        # Sorted: a set's order differs between processes, and a product rounded otherwise could break a tie.
        return prod(self._extents[index] for index in sorted(indices))

    def _density(self, elements: float, indices: Iterable[str]) -> float:
        extent = self._extent(indices)
        return elements / extent if extent else 0.0


def lowest_bit(operands: int) -> int:
    """The first operand of a bitmap, as a bitmap."""
    return operands & -operands


def fill(share: float, tiles: float) -> float:
    """The probability 1 - (1 - share)^tiles that at least one of `tiles` products is there."""
    if share >= 1.0:
        return 1.0 if tiles else 0.0
    return -expm1(tiles * log1p(-share))


@dataclass(frozen=True)
class _Blocks:
    """The non-zero blocks of an operand whose diagonals and lone sums are taken."""

    letters: tuple[str, ...]
    """The indices, each once."""
    index: Integers
    """The tile numbers, one row per block."""
    spaces: dict[str, Space]
    """The space of each index of the expression."""

    def column(self, letter: str) -> Integers:
        """The tile numbers of one mode."""
        column: Integers = self.index[:, self.letters.index(letter)]
        return column

    def extents(self, letters: Iterable[str]) -> Floats:
        """For each block, the product of its extents along `letters`."""
        result = np.ones(len(self.index))
        for letter in letters:
            result *= self.spaces[letter].sizes[self.column(letter)]
        return result

    @cached_property
    def elements(self) -> Floats:
        """The number of elements of each block."""
        return self.extents(self.letters)


def _reduce(operand: tuple[str, ...], pattern: BlockList, kept: frozenset[str], spaces: dict[str, Space]) -> _Blocks:
    """Blocks on the diagonals of repeated indices, with the indices that nothing else has summed out."""
    index = np.asarray(pattern.index, dtype=np.int64)
    for mode, letter in enumerate(operand):
        first = operand.index(letter)
        if first != mode:
            index = index[index[:, first] == index[:, mode]]
    letters = tuple(dict.fromkeys(letter for letter in operand if letter in kept))
    columns = [index[:, operand.index(letter)] for letter in letters]
    if len(letters) < len(set(operand)):
        keys = _keys(columns, [spaces[letter].ntiles for letter in letters], len(index))
        _, places = np.unique(keys, return_index=True)
        columns = [column[places] for column in columns]
        return _Blocks(letters, _stack(columns, len(places)), spaces)
    return _Blocks(letters, _stack(columns, len(index)), spaces)


def _stack(columns: Sequence[Integers], rows: int) -> Integers:
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0), dtype=np.int64)


class _Join:
    """The block products of two operands, matched on the tiles of the indices they share."""

    def __init__(self, left: _Blocks, right: _Blocks) -> None:
        self.left, self.right = left, right
        shared = [letter for letter in left.letters if letter in right.letters]
        columns = [np.concatenate([left.column(i), right.column(i)]) for i in shared]
        rows = len(left.index) + len(right.index)
        keys = _keys(columns, [left.spaces[i].ntiles for i in shared], rows)
        values, inverse = np.unique(keys, return_inverse=True)
        self._left_keys, self._right_keys = np.split(inverse, [len(left.index)])
        self._right_counts = np.bincount(self._right_keys, minlength=len(values))
        right_only = [letter for letter in right.letters if letter not in shared]
        weights = np.bincount(self._right_keys, weights=right.extents(right_only), minlength=len(values))
        self.multiplications = float(left.elements @ weights[self._left_keys])
        """The scalar multiplications, exactly."""
        self.products = int(self._right_counts[self._left_keys].sum())
        """The block products, exactly."""

    def result_elements(self, indices: frozenset[str]) -> float:
        """The elements in the distinct result blocks, whose indices are `indices`."""
        order = np.argsort(self._right_keys, kind="stable")
        starts = np.cumsum(self._right_counts) - self._right_counts
        counts = self._right_counts[self._left_keys]
        left_rows = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(left_rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        right_rows = order[starts[self._left_keys][left_rows] + within]
        from_left = [letter for letter in self.left.letters if letter in indices]
        from_right = [i for i in self.right.letters if i in indices and i not in from_left]
        columns = [self.left.column(i)[left_rows] for i in from_left]
        columns += [self.right.column(i)[right_rows] for i in from_right]
        tiles = [self.left.spaces[i].ntiles for i in from_left + from_right]
        _, places = np.unique(_keys(columns, tiles, len(left_rows)), return_index=True)
        extents = self.left.extents(from_left)[left_rows[places]]
        return float(extents @ self.right.extents(from_right)[right_rows[places]])


def _keys(columns: Sequence[Integers], tiles: Sequence[int], rows: int) -> Integers:
    """One integer per row, equal where the rows are; renumbered on the way before it could overflow."""
    keys = np.zeros(rows, dtype=np.int64)
    span = 1
    for column, count in zip(columns, tiles, strict=True):
        if span * count >= 1 << 62:
            values, keys = np.unique(keys, return_inverse=True)
            span = len(values)
        keys = keys * count + column
        span *= count
    return keys
