"""`BlockTensor`: a pattern, its elements, and a bound on what screening has taken from them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError, TilewiseError
from tilewise.patterns import Pattern, Symmetry, expand
from tilewise.spaces import Space
from tilewise.spaces.integers import parse_integer
from tilewise.tensors.protocol import Engine, Scalar
from tilewise.tensors.scalars import NUMBERS
from tilewise.tensors.storage import Arena, Storage, frobenius_norm, parse_dtype

Array = npt.NDArray[Any]


class BlockTensor:
    """A block-sparse tensor: the non-zero blocks of a pattern, stored dense.

    Made by `zeros`, `random`, `from_dense`, `from_blocks` and by `einsum`, not by hand.  The elements of a tensor
    made by `from_function` or opened with `load` are not in memory: a contraction brings what it needs, when it
    needs it, and `copy` brings everything.

    Examples
    --------
    >>> import numpy as np, tilewise as tw
    >>> i = tw.Space([2, 3], name="i")
    >>> t = tw.from_dense(np.diag([1.0, 2.0, 0.0, 0.0, 0.0]), (i, i))
    >>> t.pattern.nnz_blocks, t.block((0, 0)).tolist()
    (1, [[1.0, 0.0], [0.0, 2.0]])
    """

    __slots__ = ("_pattern", "engine", "error_bound", "storage")
    __array_ufunc__ = None

    def __init__(self, pattern: Pattern, storage: Storage, engine: Engine, error_bound: float = 0.0) -> None:
        self._pattern = pattern
        self.storage = storage
        self.engine = engine
        self.error_bound = error_bound

    @property
    def pattern(self) -> Pattern:
        """Which blocks are stored, and a bound on the norm of each."""
        return self._pattern

    @property
    def in_memory(self) -> bool:
        """Whether the elements are in memory, not made on demand or read from a file."""
        return isinstance(self.storage, Arena)

    @property
    def arena(self) -> Arena:
        """The elements of a tensor that is in memory."""
        if not isinstance(self.storage, Arena):
            raise TilewiseError(
                "The elements of this tensor are not in memory. Expected a tensor whose are. Bring them there with "
                "copy()."
            )
        return self.storage

    @property
    def spaces(self) -> tuple[Space, ...]:
        """The space of each mode."""
        return self._pattern.spaces

    @property
    def symmetry(self) -> Symmetry | None:
        """Permutational symmetry; only unique blocks are stored."""
        return self._pattern.symmetry

    @property
    def ndim(self) -> int:
        """Number of modes."""
        return self._pattern.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per mode."""
        return self._pattern.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.storage.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the stored elements, or of those that would be made on demand."""
        return self._pattern.nbytes(self.dtype)

    @property
    def density(self) -> float:
        """Fraction of all elements that lie in non-zero blocks."""
        return self._pattern.density

    def check(self) -> None:
        """Raise if storage and pattern do not fit together, or a norm is below the truth."""
        self._pattern.check()
        if not self.in_memory:
            return  # each block is checked when it is read
        sizes = self._pattern.block_sizes[self.arena.rows]
        if len(self.arena.own) != sizes.sum() or not np.array_equal(self.arena.own_offsets, np.cumsum(sizes) - sizes):
            raise TilewiseError("The arena does not hold the pattern's blocks one after the other. Correct its maker.")
        true = self.arena.norms()
        low = self._pattern.norms < true * (1 - 1e-9)
        if low.any():
            block = tuple(self._pattern.index[np.argmax(low)].tolist())
            raise TilewiseError(f"The norm bound of block {block} is below its norm. Correct its maker.")

    def _view(self, row: int) -> Array:
        """A stored block: a view of what is in memory, or a copy of what is not."""
        shape = self._pattern.block_shapes[row]
        size = math.prod(shape.tolist())
        if isinstance(self.storage, Arena) and (found := self.storage.view(row, size)) is not None:
            return found.reshape(shape)
        values = np.empty(size, self.dtype)
        self.storage.read(row, values)
        return values.reshape(shape)

    def block(self, index: Sequence[int]) -> Array:
        """A copy of one block; zeros where the block is zero.

        Parameters
        ----------
        index : sequence of int
            Tile of each mode.
        """
        where = self._parse_block(index)
        unique, axes, sign = where, tuple(range(self.ndim)), 1.0
        if self.symmetry is not None:
            unique, axes, sign = self.symmetry.locate(where)
        row = self._pattern.row(unique)
        if row < 0:
            return np.zeros([int(s.sizes[t]) for s, t in zip(self.spaces, where, strict=True)], self.dtype)
        return np.array(np.transpose(self._view(row), axes) * self.dtype.type(sign), order="C")

    def _parse_block(self, index: Sequence[int]) -> tuple[int, ...]:
        given = tuple(index) if isinstance(index, Iterable) else (index,)
        where = tuple(parse_integer(t, f"A tile of block index {given}", "Count tiles from 0.") for t in given)
        if len(where) != self.ndim:
            raise InputError(
                f"Block index {where} has {len(where)} entries. This tensor has {self.ndim} modes. "
                "Give one tile per mode."
            )
        for mode, (tile, space) in enumerate(zip(where, self.spaces, strict=True)):
            if not 0 <= tile < space.ntiles:
                raise InputError(
                    f"Block index {where} asks for tile {tile} of mode {mode}. Expected 0 to {space.ntiles - 1} "
                    f"of {space!r}. Count tiles, not elements."
                )
        return where

    def blocks(self) -> Iterator[tuple[tuple[int, ...], Array]]:
        """The stored blocks (the unique ones of a symmetric tensor): index and a read-only view of each."""
        for row, index in enumerate(self._pattern.index.tolist()):
            yield tuple(index), self.read_only(row)

    def read_only(self, row: int) -> Array:
        """A stored block that cannot be written to, by its number."""
        view = self._view(row)
        view.flags.writeable = False
        return view

    def to_dense(self) -> Array:
        """All elements as one NumPy array; memory for the full shape is needed."""
        dense = np.zeros(self.shape, self.dtype)
        full = expand(self._pattern)
        for index, source, perm, sign in zip(
            full.index.tolist(), full.source.tolist(), full.perm.tolist(), full.sign.tolist(), strict=True
        ):
            where = tuple(
                slice(int(s.offsets[t]), int(s.offsets[t + 1])) for s, t in zip(self.spaces, index, strict=True)
            )
            dense[where] = self.dtype.type(sign) * np.transpose(self._view(source), full.perms[perm])
        return dense

    def item(self) -> Any:
        """The value of a tensor without modes, as a Python number."""
        if self.ndim:
            raise InputError(
                f"item() of a tensor with {self.ndim} modes. Only a scalar tensor is one number. "
                "Contract all modes first, or use block()."
            )
        return self._view(0).item() if self._pattern.nnz_blocks else self.dtype.type(0).item()

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise TypeError(
            "A BlockTensor is not converted to a NumPy array silently. Its dense form may be far larger than its "
            "blocks. Call to_dense() if that is what you want."
        )

    def norm(self) -> float:
        """The Frobenius norm."""
        if isinstance(self.storage, Arena):
            norms = self.storage.frobenius_norms()
        else:
            norms = np.array([frobenius_norm(self._view(row)) for row in range(self._pattern.nnz_blocks)])
        largest = float(norms.max(initial=0.0))
        if largest in (0.0, math.inf):
            return largest
        # Scaled first: squares may vanish or overflow where the norm does not.
        squares = (norms / largest) ** 2
        if self.symmetry is not None:
            squares *= self._pattern.multiplicity
        return largest * math.sqrt(float(squares.sum()))

    def copy(self) -> BlockTensor:
        """A tensor of its own with the same elements, in memory."""
        if self.in_memory:
            return self._like(self.arena.own.copy())
        arena = self.engine.allocate(self._pattern, self.dtype, zero=False)
        self.read_into(arena)
        made = BlockTensor(self._pattern, arena, self.engine, self.error_bound)
        made.replace_norms(arena.norms())
        return made

    def read_into(self, arena: Arena) -> None:
        """Copy the elements to another arena; each process reads those that it answers for there."""

        def read() -> None:
            for row, part in arena.parts(self._pattern):
                self.storage.read(row, part.reshape(-1))

        arena.agree(read)

    def loaded(self) -> BlockTensor:
        """The tensor itself if it is in memory, else a copy that is."""
        return self if self.in_memory else self.copy()

    def conj(self) -> BlockTensor:
        """The complex conjugate (a copy if real)."""
        held = self.loaded()
        return held._like(np.conj(held.arena.own))

    def astype(self, dtype: npt.DTypeLike) -> BlockTensor:
        """The tensor with another element type.

        Complex to real is an error: take `.map(lambda block, at: block.real)` where that is meant.
        """
        kind = parse_dtype(dtype)
        if self.dtype.kind == "c" and kind.kind != "c":
            raise InputError(
                f"astype({kind.name}) would drop the imaginary parts of a {self.dtype.name} tensor. A complex type is "
                "expected. Take the real part with map(lambda block, at: block.real)."
            )
        if not self.in_memory:
            return self.copy().astype(kind)
        with np.errstate(over="ignore"):
            made = self._like(self.arena.own.astype(kind))
        if np.finfo(kind).eps <= np.finfo(self.dtype).eps:
            return made
        norms = made.arena.norms()
        if norms.max(initial=0.0) == np.inf:
            block = tuple(self._pattern.index[np.argmax(norms)].tolist())
            raise InputError(
                f"Elements of block {block} are too large for {kind.name}. Expected a type that can hold them. Scale "
                f"the tensor first, or keep {self.dtype.name}."
            )
        made.replace_norms(np.maximum(norms, self._pattern.norms))
        return made

    def _like(self, own: Array) -> BlockTensor:
        return BlockTensor(self._pattern, self.arena.like(own), self.engine, self.error_bound)

    def map(self, function: Callable[[Array, tuple[int, ...]], Array], *, growth: float | None = None) -> BlockTensor:
        """Apply a function to each stored block.

        Parameters
        ----------
        function : callable
            ``function(block, offsets)`` returns an array of the block's shape; `offsets` is the number of the
            block's first element in each mode.
        growth : float, optional
            The factor by which the function can enlarge an error of its elements; without it the result of a
            tensor that has an error bound has none (it is infinite).

        Examples
        --------
        >>> import numpy as np, tilewise as tw
        >>> i = tw.Space([2, 1])
        >>> t = tw.from_dense(np.ones((3, 3)), (i, i))
        >>> level = np.array([1.0, 2.0, 4.0])
        >>> def divide(block, at):
        ...     rows, cols = (level[a : a + n] for a, n in zip(at, block.shape))
        ...     return block / (rows[:, None] + cols)
        >>> t.map(divide).block((1, 1)).tolist()
        [[0.125]]
        """
        from tilewise.tensors.arithmetic import mapped

        return mapped(self, function, growth)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tensor to a file that `tilewise.load` reads.

        The file is HDF5 with checksums. It appears whole or not at all: until the last byte is on the disk, what
        the path held before stays as it was.

        Examples
        --------
        >>> import tempfile, tilewise as tw
        >>> i = tw.Space([2, 3], name="i")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tw.random((i, i)).save(f"{folder}/t.h5")
        ...     tw.load(f"{folder}/t.h5").shape
        (5, 5)
        """
        from tilewise.tensors.files import save_tensor

        save_tensor(self, path)

    def transpose(self, *axes: int) -> BlockTensor:
        """The tensor with its modes in another order; without axes they are reversed."""
        from tilewise.tensors.arithmetic import permuted

        return permuted(self, axes)

    def __add__(self, other: BlockTensor) -> BlockTensor:
        return self._combine(other, 1)

    def __sub__(self, other: BlockTensor) -> BlockTensor:
        return self._combine(other, -1)

    def _combine(self, other: object, factor: int) -> BlockTensor:
        from tilewise.tensors.arithmetic import combined

        return combined(self, other, factor) if isinstance(other, BlockTensor) else NotImplemented

    def __mul__(self, factor: Scalar) -> BlockTensor:
        if not isinstance(factor, NUMBERS):
            return NotImplemented
        from tilewise.tensors.arithmetic import scaled_tensor

        return scaled_tensor(self, factor)

    __rmul__ = __mul__

    def __truediv__(self, factor: Scalar) -> BlockTensor:
        if not isinstance(factor, NUMBERS):
            return NotImplemented
        if factor == 0:
            raise InputError(
                f"A tensor cannot be divided by {factor!r}. Expected a divisor that is not zero. Check the divisor."
            )
        return self * (1 / factor)

    def __neg__(self) -> BlockTensor:
        return self * -1

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape)) or "scalar"
        symmetry = "" if self.symmetry is None else f", {self.symmetry!r}"
        blocks = self._pattern.nnz_blocks
        return (
            f"BlockTensor({shape}, {self.dtype.name}, {blocks} block{'' if blocks == 1 else 's'}, "
            f"density {self.density:.3g}, {self.nbytes / 1e6:.3g} MB{symmetry})"
        )

    def _repr_html_(self) -> str:
        from tilewise.tensors.html import tensor_html

        return tensor_html(self)

    def replace_norms(self, norms: npt.NDArray[np.float64]) -> None:
        """Set the blocks' norm bounds after their elements were changed in place."""
        pattern = self._pattern
        self._pattern = Pattern.trusted(pattern.spaces, pattern.index, norms, pattern.symmetry)
