"""Tensors x(p, q, r, s) = x(r, s, p, q) as matrices over symmetric and antisymmetric pairs, and back.

The products of such tensors over two modes, sum_cd x(i, c, j, d) y(a, c, b, d), are products of these matrices: the
symmetric and the antisymmetric pairs do not mix, and each half has a quarter of the elements that matter, so that a
product takes a quarter of the operations (see `kernels.folds` for the formula).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tilewise.engines.kernels.atomics import take
from tilewise.engines.kernels.folds import fold_block, unfold_block
from tilewise.engines.threads import hosting
from tilewise.engines.views import frozen
from tilewise.patterns import Pattern, Symmetry, expand
from tilewise.spaces import Pairs, Space
from tilewise.tensors import BlockTensor, Engine

__all__ = ["Folding", "fold", "folded_block", "folded_pattern", "for_each_block", "unfold"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Item = TypeVar("Item")

NOTHING = frozen(np.zeros(0))
"""Stands for a block that is zero."""


@dataclass(frozen=True, slots=True, eq=False)
class Folding:
    """Pairs of one sign of the modes 0 and 2 (rows), and of the modes 1 and 3 (columns)."""

    rows: Pairs
    """Pairs of the modes 0 and 2."""
    cols: Pairs
    """Pairs of the modes 1 and 3."""
    turned: bool = False
    """Whether the matrix is kept transposed, with the pairs of the modes 1 and 3 first."""

    @classmethod
    def of(cls, rows: Space, cols: Space, sign: int) -> Folding:
        """All pairs of one sign."""
        return cls(Pairs.of(rows, sign), Pairs.of(cols, sign))

    @property
    def sign(self) -> int:
        """+1 for symmetric pairs, -1 for antisymmetric ones."""
        return self.rows.sign

    @property
    def spaces(self) -> tuple[Space, Space]:
        """Those of the matrix."""
        return self.in_order(self.rows.space, self.cols.space)

    def parts(self, index: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """The parts of rows and of columns that a block of the matrix is made of."""
        row, col = self.in_order(*index)
        return product(self.rows.parts(row), self.cols.parts(col))

    def sources(self, parts: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The two blocks of the tensor that a part of rows and of columns is made of."""
        (p, r), (q, s) = self.rows.tiles[parts[0]].tolist(), self.cols.tiles[parts[1]].tolist()
        return (p, q, r, s), (p, s, r, q)

    def in_order(self, first: Item, second: Item) -> tuple[Item, Item]:
        """What belongs to rows and to columns, as the matrix is kept, or back."""
        return (second, first) if self.turned else (first, second)

    def block_of(self, parts: tuple[int, int]) -> tuple[int, int]:
        """The block of the matrix that a part of rows and of columns belongs to."""
        row, col = (
            int(pairs.tile_of(np.array(part))) for pairs, part in zip((self.rows, self.cols), parts, strict=True)
        )
        return self.in_order(row, col)

    def place(self, parts: tuple[int, int], shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Where a part begins in a block of this shape, and the distance between its rows and between its columns."""
        row_step, col_step = self.in_order(shape[1], 1)
        begin = int(self.rows.begin[parts[0]]) * row_step + int(self.cols.begin[parts[1]]) * col_step
        return begin, row_step, col_step


def folded_pattern(pattern: Pattern, folding: Folding, symmetry: Symmetry | None = None) -> Pattern:
    """The blocks of the matrix of a tensor with this pattern."""
    blocks = expand(pattern).index
    rows = folding.rows.number(blocks[:, 0], blocks[:, 2])
    cols = folding.cols.number(blocks[:, 1], blocks[:, 3])
    index = np.unique(np.stack(folding.in_order(rows, cols), axis=1), axis=0)
    index = index[(index >= 0).all(axis=1)]
    if symmetry is not None:
        index = index[index[:, 0] <= index[:, 1]]
    return Pattern(folding.spaces, index, None, symmetry)


def folded_block(tensor: BlockTensor, folding: Folding, index: tuple[int, int], out: Array | None = None) -> Array:
    """A block of the matrix of a tensor."""
    shape = tuple(int(space.sizes[tile]) for space, tile in zip(folding.spaces, index, strict=True))
    made = np.empty(shape) if out is None else out
    for parts in folding.parts(index):
        _fold_part(tensor, folding, parts, made)
    return made


def _fold_part(tensor: BlockTensor, folding: Folding, parts: tuple[int, int], out: Array) -> None:
    """Fill what a block has of a part of rows and of columns."""
    first, second = folding.sources(parts)
    same_rows, same_cols = first[0] == first[2], first[1] == first[3]
    x = find_block(tensor, first)
    y = x if same_cols else find_block(tensor, second)
    sizes = [int(space.sizes[tile]) for space, tile in zip(tensor.spaces, first, strict=True)]
    shown = np.zeros(sizes) if x is None else x
    other = shown if y is None else y
    fold_block(
        _plain(shown),
        _plain(other),
        x is not None,
        y is not None,
        folding.sign,
        same_rows,
        same_cols,
        out.reshape(-1),
        folding.place(parts, out.shape),
    )


def find_block(tensor: BlockTensor, index: tuple[int, ...]) -> Array | None:
    """A block without a copy where that can be; None if it is zero."""
    if tensor.symmetry is not None:
        unique = tensor.symmetry.locate(index)[0]
        return tensor.block(index) if tensor.pattern.row(unique) >= 0 else None
    row = tensor.pattern.row(index)
    return None if row < 0 else tensor.read_only(row)


def fold(tensor: BlockTensor, folding: Folding, symmetry: Symmetry | None = None) -> BlockTensor:
    """The matrix of a tensor over pairs of one sign."""
    pattern = folded_pattern(tensor.pattern, folding, symmetry)
    arena = tensor.engine.allocate(pattern, tensor.dtype, zero=False)
    parts = list(arena.parts(pattern))

    def fill(number: int) -> None:
        row, part = parts[number]
        folded_block(tensor, folding, tuple(pattern.index[row].tolist()), part)

    arena.agree(lambda: for_each_block(tensor.engine, [part.size for _, part in parts], fill))
    made = BlockTensor(pattern, arena, tensor.engine, tensor.error_bound)
    made.replace_norms(arena.norms())
    return made


def unfold(plus: BlockTensor, minus: BlockTensor, foldings: tuple[Folding, Folding], out: BlockTensor) -> None:
    """Add to a tensor what its matrices over symmetric and antisymmetric pairs say of it."""
    arena = out.arena
    parts = list(arena.parts(out.pattern))

    def add(number: int) -> None:
        row, part = parts[number]
        unfolded_block(plus, minus, foldings, tuple(out.pattern.index[row].tolist()), part)

    arena.agree(lambda: for_each_block(out.engine, [part.size for _, part in parts], add))
    out.error_bound += plus.error_bound + minus.error_bound
    out.replace_norms(arena.norms())


def unfolded_block(
    plus: BlockTensor, minus: BlockTensor, foldings: tuple[Folding, Folding], index: tuple[int, ...], out: Array
) -> None:
    """Add to one block of a tensor what its matrices say of it."""
    p, q, r, s = index
    halves, places = [], []
    for matrix, folding in zip((plus, minus), foldings, strict=True):
        parts = int(folding.rows.part(np.array(p), np.array(r))), int(folding.cols.part(np.array(q), np.array(s)))
        block = None if min(parts) < 0 else find_block(matrix, folding.block_of(parts))
        halves.append(block)
        places.append((0, 0, 0) if block is None else folding.place(parts, block.shape))
    even, odd = halves
    if even is None and odd is None:
        return
    unfold_block(
        NOTHING if even is None else frozen(even.reshape(-1)),
        NOTHING if odd is None else frozen(odd.reshape(-1)),
        (places[0], places[1]),
        even is not None,
        odd is not None,
        p == r,
        q == s,
        (p < r, q < s),
        out,
    )


def _plain(block: Array) -> Array:
    """A block in C order: compiled code is made for that alone."""
    return np.ascontiguousarray(block)


def for_each_block(engine: Engine, sizes: Sequence[int], work: Callable[[int], None]) -> None:
    """Do something for each of some blocks of these sizes, with all workers."""

    def loop(worker: int, queues: Ints, stop: Ints) -> None:
        while not stop[0] and (number := take(queues, worker)) >= 0:
            work(number)

    hosting(engine).run_loop(loop, np.asarray(sizes, np.float64))
