"""DIIS: the combination of the last amplitudes whose step would be the smallest.

P. Pulay, Chem. Phys. Lett. 73 (1980) 393; for coupled cluster G. E. Scuseria, T. J. Lee and H. F. Schaefer III,
Chem. Phys. Lett. 130 (1986) 236.

Sums are made block by block, and the blocks' parts are added without rounding: numbers do not depend on how many ranks
there are, who owns a block, or whether vectors are in memory or in files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError, NonFiniteError
from tilewise.patterns import Pattern
from tilewise.plans.propagation import scaled_error
from tilewise.spaces.integers import parse_integer
from tilewise.tensors import BlockTensor
from tilewise.tensors.drafts import parse_scratch
from tilewise.tensors.files import ScratchFile
from tilewise.tensors.storage import CHUNK_ELEMENTS, Arena, Result

__all__ = ["Amplitudes", "Diis", "Footprint", "combine", "difference", "mix"]

Amplitudes = dict[str, BlockTensor]
"""Tensors by their names, such as ``t1`` and ``t2``."""

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PIECE_ELEMENTS = 1 << 15
"""About how many elements are worked on at once, to stay in a cache."""

THREAD_ELEMENTS = 1 << 17
"""Elements that are worth a thread of their own."""

NOISE = 1e-13
"""Part of the squared norm of a step that is taken for noise: above the rounding of scalar products."""


# Sums of tensors, element by element


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some neighbouring blocks of those that a process works on."""

    rows: Ints
    """Their numbers."""
    first: Ints
    """First element of each block in the piece."""
    begin: int
    """First element of the piece among all those that the process works on."""
    end: int
    """One past its last."""


def _pieces(rows: Ints, sizes: Ints) -> Iterator[_Piece]:
    """Cut blocks with so many elements each into pieces that are small, or a single block."""
    ends = np.cumsum(sizes)
    begins = ends - sizes
    at = 0
    while at < len(rows):
        last = max(int(np.searchsorted(ends, begins[at] + PIECE_ELEMENTS, side="right")), at + 1)
        yield _Piece(rows[at:last], begins[at:last] - begins[at], int(begins[at]), int(ends[last - 1]))
        at = last


class _Reader:
    """The elements of some blocks of a tensor: a view of those in memory, or a copy of those in a file or elsewhere."""

    def __init__(self, tensor: BlockTensor, rows: Ints) -> None:
        self.tensor = tensor
        self.own = None
        if isinstance(tensor.storage, Arena) and np.array_equal(tensor.storage.rows, rows):
            self.own = tensor.storage.own

    def part(self, piece: _Piece, room: Array) -> Array:
        """The elements of a piece; `room` has space for those that are not here."""
        if self.own is not None:
            return self.own[piece.begin : piece.end]
        out = room[: piece.end - piece.begin]
        for row, begin, end in zip(piece.rows.tolist(), piece.first, np.append(piece.first[1:], len(out)), strict=True):
            self.tensor.storage.read(row, out[begin:end])
        return out


def _room(pieces: Sequence[_Piece], readers: Sequence[_Reader], dtype: np.dtype[Any]) -> Array:
    """Space for the largest piece that one of the readers has to copy."""
    copies = any(reader.own is None for reader in readers)
    return np.empty(max((piece.end - piece.begin for piece in pieces), default=0) if copies else 0, dtype)


def _on_threads(work: Callable[[Sequence[_Piece]], Result], pieces: Sequence[_Piece], workers: int) -> list[Result]:
    """Have threads work on neighbouring pieces each; what they made of them, in order."""
    count = _thread_count(sum(piece.end - piece.begin for piece in pieces), workers)
    if count == 1:
        return [work(pieces)]
    bounds = np.linspace(0, len(pieces), count + 1).astype(int).tolist()
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, [pieces[begin:end] for begin, end in pairwise(bounds)]))


def _thread_count(elements: int, workers: int) -> int:
    """How many threads are worth their start."""
    return max(1, min(workers, elements // THREAD_ELEMENTS))


def combine(terms: Sequence[tuple[float, BlockTensor]], like: BlockTensor, into: Arena | None = None) -> BlockTensor:
    """A sum of multiples of tensors, in memory.

    Parameters
    ----------
    terms : sequence of (float, BlockTensor)
        Factors and tensors with the blocks of `like`, in memory or not; they are added in this order.
    like : BlockTensor
        A tensor in memory whose pattern and owners the sum gets.
    into : Arena, optional
        Storage for it that is there already, with owners of its own.

    Examples
    --------
    >>> import numpy as np, tilewise as tw
    >>> from tilewise.chemistry.diis import combine
    >>> i = tw.Space([1, 2])
    >>> t = tw.from_dense(np.eye(3), (i, i))
    >>> combine([(3.0, t), (-1.0, t)], t).to_dense().tolist()
    [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]
    """
    arena = _blank(like) if into is None else into
    arena.agree(lambda: _fill(arena, like.pattern, terms, like.engine.workers))  # others may read it afterwards
    bound = math.fsum(scaled_error(abs(factor), tensor.error_bound) for factor, tensor in terms)
    made = BlockTensor(like.pattern, arena, like.engine, bound)
    made.replace_norms(arena.norms())
    return made


def _blank(like: BlockTensor) -> Arena:
    """Storage with the same owners whose elements are still to be written."""
    if like.engine.ranks == 1:
        return like.engine.allocate(like.pattern, like.dtype, zero=False)
    arena, count = like.arena, len(like.arena.own)
    if arena.owner is None:
        return arena.like(np.empty(count, like.dtype))
    return arena.like(np.broadcast_to(like.dtype.type(0), count))  # it is copied: one zero stands for all


def _fill(arena: Arena, pattern: Pattern, terms: Sequence[tuple[float, BlockTensor]], workers: int) -> None:
    rows, factors = arena.rows, [factor for factor, _ in terms]
    readers = [_Reader(tensor, rows) for _, tensor in terms]

    def work(pieces: Sequence[_Piece]) -> None:
        room, product = _room(pieces, readers, arena.dtype), np.empty(PIECE_ELEMENTS, arena.dtype)
        for piece in pieces:
            out = arena.own[piece.begin : piece.end]
            for number, (factor, reader) in enumerate(zip(factors, readers, strict=True)):
                _add(out, reader.part(piece, room), factor, product if number else None)

    _on_threads(work, list(_pieces(rows, pattern.block_sizes[rows])), workers)


def _add(out: Array, values: Array, factor: float, product: Array | None) -> None:
    """Add a multiple of values, by way of `product`; without it, put the multiple in the place of what is there."""
    for at in range(0, len(out), PIECE_ELEMENTS):
        part = slice(at, at + PIECE_ELEMENTS)
        if product is None:
            np.multiply(values[part], factor, out=out[part])
        else:
            out[part] += np.multiply(values[part], factor, out=product[: len(out[part])])


def mix(
    weights: Mapping[int, float],
    vectors: Mapping[int, Amplitudes],
    like: Amplitudes,
    into: Mapping[str, Arena | None] | None = None,
) -> Amplitudes:
    """A sum of amplitudes that have numbers, in the order of these; see `combine`."""
    order, into = sorted(weights), into or {}
    return {
        name: combine([(weights[number], vectors[number][name]) for number in order], tensor, into.get(name))
        for name, tensor in like.items()
    }


def difference(new: Amplitudes, old: Amplitudes) -> Amplitudes:
    """``new - old``, with the owners of the new ones."""
    return {name: combine([(1.0, tensor), (-1.0, old[name])], tensor) for name, tensor in new.items()}


# Scalar products


def _overlaps(left: BlockTensor, rights: Sequence[BlockTensor], home: Arena) -> list[float]:
    """Scalar products (their real parts) of a tensor with others; each process adds up what is its own of `home`."""
    parts = home.agree(lambda: _own_overlaps(left, rights, home.rows))
    assert parts is not None
    every = home.gather(parts)
    return [math.fsum(part for each in every for part in each[number]) for number in range(len(rights))]


def _own_overlaps(left: BlockTensor, rights: Sequence[BlockTensor], rows: Ints) -> list[list[float]]:
    """What the blocks of this process add to each scalar product, without rounding: the sum of a few numbers."""
    pattern = left.pattern
    weights = None if pattern.symmetry is None else pattern.multiplicity[rows]
    first, readers = _Reader(left, rows), [_Reader(right, rows) for right in rights]

    def work(pieces: Sequence[_Piece]) -> Floats:
        rooms = _room(pieces, [first], left.dtype), _room(pieces, readers, left.dtype)
        product = np.empty(PIECE_ELEMENTS * (2 if left.dtype.kind == "c" else 1))
        sums = [np.zeros((len(readers), 0))]
        with np.errstate(over="ignore", invalid="ignore"):  # the result tells
            for piece in pieces:
                values = first.part(piece, rooms[0])
                parts = (reader.part(piece, rooms[1]) for reader in readers)
                sums.append(np.array([_block_sums(values, part, piece.first, product) for part in parts]))
        return np.concatenate(sums, axis=1)

    pieces = list(_pieces(rows, pattern.block_sizes[rows]))
    found = np.concatenate(_on_threads(work, pieces, left.engine.workers), axis=1)
    return [_exact_sum(row if weights is None else row * weights) for row in found]


def _block_sums(left: Array, right: Array, first: Ints, product: Floats) -> Floats:
    """Scalar products of blocks that begin at `first`; a block that is larger than `product` comes alone."""
    reals = left.real.dtype
    parts = left.dtype.itemsize // reals.itemsize
    x, y = left.view(reals), right.view(reals)
    if len(x) <= len(product):
        found: Floats = np.add.reduceat(np.multiply(x, y, out=product[: len(x)], dtype=np.float64), parts * first)
        return found
    sums = []
    for at in range(0, len(x), len(product)):
        part = slice(at, at + len(product))
        filled = np.multiply(x[part], y[part], out=product[: len(x[part])], dtype=np.float64)
        sums.append(float(np.add.reduce(filled)))
    return np.array([math.fsum(sums)])


def _exact_sum(values: Floats) -> list[float]:
    """Numbers whose sum is that of the values without rounding: the rounded sum, what it lacks, what that lacks."""
    if not np.isfinite(values).all():
        return [math.nan]
    rest, parts = values.tolist(), []
    try:
        while found := math.fsum(rest):
            parts.append(found)
            rest.append(-found)
    except OverflowError:
        return [math.nan]
    return parts


# Extrapolation


def extrapolation_weights(overlaps: Floats) -> Floats:
    """Weights c, summing to 1, of the combination of steps with the least norm: they minimise c.B.c.

    B is scaled to a unit diagonal first. Steps fall by orders of magnitude, and their overlaps by twice as many:
    unscaled, everything that the last steps say would be lost below the rounding of the first. Of each step a part of
    `NOISE` of its squared norm is taken for noise that nothing cancels. This keeps weights of steps that depend on each
    other from growing without limit, and costs nothing where they cancel as they should.
    """
    lengths = np.sqrt(overlaps.diagonal())
    if not lengths.all():  # the amplitudes that a step of zero leads to are the solution
        return np.asarray(np.eye(len(lengths))[np.flatnonzero(lengths == 0)[-1]])
    scale = lengths.min() / lengths
    angles = overlaps / np.outer(lengths, lengths)
    found = scale * np.linalg.solve(angles + NOISE * np.eye(len(lengths)), scale)
    return np.asarray(found / found.sum(), np.float64)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What DIIS needs once its space is filled."""

    held_bytes: int
    """Memory between two updates."""
    peak_bytes: int
    """Memory during an update: what is held, the two arguments, the result, and buffers."""
    disk_bytes: int
    """Scratch files."""

    @classmethod
    def of(
        cls,
        patterns: Sequence[Pattern],
        dtype: npt.DTypeLike = np.float64,
        *,
        space: int,
        on_disk: bool,
        workers: int = 1,
        nbytes: int | None = None,
    ) -> Footprint:
        """Before anything is allocated.

        Parameters
        ----------
        patterns : sequence of Pattern
            Those of the amplitudes.
        dtype : dtype
            Element type.
        space : int
            Largest number of amplitudes that are combined.
        on_disk : bool
            Whether they are in scratch files.
        workers : int
            Threads, each with buffers of its own.
        nbytes : int, optional
            Bytes that a rank has of one set of amplitudes; all of them by default.
        """
        if space < 2:
            return cls(0, 0, 0)
        size = sum(pattern.nbytes(dtype) for pattern in patterns) if nbytes is None else nbytes
        buffers = max(_buffer_bytes(pattern, np.dtype(dtype), on_disk, workers) for pattern in patterns)
        if on_disk:
            return cls(0, 3 * size + buffers, 2 * space * size)
        held = 2 * (space - 1) * size
        return cls(held, held + 3 * size + buffers, 0)


def _buffer_bytes(pattern: Pattern, dtype: np.dtype[Any], reads: bool, workers: int) -> int:
    """Memory that sums, scalar products and norms need besides the tensors."""
    largest = int(pattern.block_sizes.max(initial=0))
    piece = max(largest, min(PIECE_ELEMENTS, pattern.nnz_elements))
    wide = np.result_type(dtype, np.float64).itemsize
    squares = max(largest, min(CHUNK_ELEMENTS, pattern.nnz_elements)) * wide * (1 if dtype.itemsize == wide else 2)
    each = PIECE_ELEMENTS * wide + (piece * dtype.itemsize if reads else 0)
    return max(_thread_count(pattern.nnz_elements, workers) * each, squares)


class Diis:
    """Remembers the amplitudes of the last iterations and their steps, and extrapolates to a step of zero.

    Parameters
    ----------
    space : int
        Largest number of amplitudes that are combined; 0 or 1 turns extrapolation off.
    start : int
        Number of updates that only pass amplitudes through.
    on_disk : bool
        Keep vectors in scratch files: then only the arguments and the result of an update are in memory.
    scratch : str or Path, optional
        Folder for these files; the system's temporary folder by default. They have no name and are gone with this
        object or the process.

    Attributes
    ----------
    numbers : list of int
        Which iterations are remembered, at most one less than `space`.
    weights : dict of int to float
        Of which amplitudes the last result is the sum, and how much of each.
    overlaps : array
        Scalar products of the steps that are remembered.

    Notes
    -----
    What is given to `update` is kept, not copied, and must not be changed afterwards. The result has the same bits for
    any number of ranks, and in memory and on disk.

    Examples
    --------
    >>> import numpy as np, tilewise as tw
    >>> from tilewise.chemistry.diis import Diis, difference
    >>> i = tw.Space([2])
    >>> x = {"t": tw.from_dense(np.array([1.0, 1.0]), (i,))}
    >>> diis = Diis()
    >>> for _ in range(3):  # solves t = 0.1 + [0.9, 0.5] t
    ...     new = {"t": x["t"].map(lambda block, at: 0.1 + np.array([0.9, 0.5]) * block)}
    ...     x = diis.update(new, difference(new, x))
    >>> x["t"].to_dense().round(12).tolist()
    [1.0, 0.2]
    """

    def __init__(
        self,
        space: int = 6,
        start: int = 0,
        *,
        on_disk: bool = False,
        scratch: str | os.PathLike[str] | None = None,
    ) -> None:
        self.space, self.start = _parse_number("space", space), _parse_number("start", start)
        self.on_disk = on_disk
        self.scratch = None if scratch is None else parse_scratch(scratch)
        self.numbers: list[int] = []
        self.weights: dict[int, float] = {}
        self.overlaps: Floats = np.zeros((0, 0))
        self._amplitudes: dict[int, Amplitudes] = {}
        self._steps: dict[int, Amplitudes] = {}
        self._peak_bytes = 0

    @property
    def room(self) -> int:
        """How many amplitudes are remembered between two updates: the next one brings one more."""
        return max(self.space - 1, 0)

    @property
    def vector_bytes(self) -> int:
        """Memory of this process that vectors take now."""
        kept = [*self._amplitudes.values(), *self._steps.values()]
        return sum(_own_bytes(amplitudes) for amplitudes in kept)

    @property
    def peak_bytes(self) -> int:
        """Most memory of this process that an update had in use, its arguments and result included."""
        return self._peak_bytes

    def update(self, amplitudes: Amplitudes, steps: Amplitudes, number: int | None = None) -> Amplitudes:
        """The best amplitudes to go on from.

        Parameters
        ----------
        amplitudes : dict of str to BlockTensor
            What an iteration has made.
        steps : dict of str to BlockTensor
            By how much they differ from what it was made of.
        number : int, optional
            Of the iteration, from 1; the one after the last by default.
        """
        if number is None:
            number = max(self.weights, default=0) + 1
        self.weights = {number: 1.0}
        if not self.room or number <= self.start:
            return amplitudes
        homes = self._homes(steps)
        row = self._overlaps_with(steps, homes)
        self._keep(number, amplitudes, steps, homes)
        self.overlaps = _bordered(self.overlaps, row)
        engine = next(iter(amplitudes.values())).engine
        found = engine.of_first(extrapolation_weights(self.overlaps))
        self.weights = {n: float(weight) for n, weight in zip(self.numbers, found, strict=True) if weight}
        made = amplitudes
        if self.weights != {number: 1.0}:
            vectors = self._amplitudes | {number: amplitudes}
            made = mix(self.weights, vectors, amplitudes, homes if self.on_disk else None)
        self._count(amplitudes, steps, made)
        self._forget(len(self.numbers) - self.room)  # now, so that the iteration has their memory
        return made

    def remember(self, number: int, amplitudes: Amplitudes, steps: Amplitudes) -> None:
        """Add vectors without extrapolating; `overlaps` has to be set afterwards."""
        self._keep(number, amplitudes, steps, self._homes(steps))

    def _homes(self, steps: Amplitudes) -> dict[str, Arena]:
        """Whose blocks each process adds up.

        A process reads only its own scratch files, whoever owns the blocks of new amplitudes: then it is always that of
        a new tensor, in which the result is made later.
        """
        if not self.on_disk:
            return {name: tensor.arena for name, tensor in steps.items()}
        return {name: t.engine.allocate(t.pattern, t.dtype, zero=False) for name, t in steps.items()}

    def _keep(self, number: int, amplitudes: Amplitudes, steps: Amplitudes, homes: Mapping[str, Arena]) -> None:
        self.numbers.append(number)
        self._amplitudes[number] = self._stored(amplitudes, homes)
        self._steps[number] = self._stored(steps, homes)

    def _forget(self, count: int) -> None:
        """Drop the oldest vectors."""
        for number in self.numbers[: max(count, 0)]:
            del self._amplitudes[number], self._steps[number]
        kept = slice(max(count, 0), None)
        self.numbers, self.overlaps = self.numbers[kept], self.overlaps[kept, kept]

    def _overlaps_with(self, steps: Amplitudes, homes: Mapping[str, Arena]) -> Floats:
        """Scalar products of new steps with the old ones and with themselves."""
        others = [*(self._steps[number] for number in self.numbers), steps]
        row = np.zeros(len(others))
        for name, tensor in steps.items():
            row += _overlaps(tensor, [each[name] for each in others], homes[name])
        if not np.isfinite(row).all():
            raise NonFiniteError(
                f"The steps given to DIIS have the scalar products {row}. Expected finite numbers. The iteration that "
                "made them has diverged: check its start."
            )
        return row

    def _stored(self, amplitudes: Amplitudes, homes: Mapping[str, Arena]) -> Amplitudes:
        if not self.on_disk:
            return amplitudes
        return {name: self._written(tensor, homes[name]) for name, tensor in amplitudes.items()}

    def _written(self, tensor: BlockTensor, home: Arena) -> BlockTensor:
        """A tensor whose blocks, those that this process adds up, are in a file."""
        pattern, rows = tensor.pattern, home.rows

        def write() -> ScratchFile:
            file = ScratchFile(pattern, tensor.dtype, self.scratch)
            pieces = list(_pieces(rows, pattern.block_sizes[rows]))
            reader = _Reader(tensor, rows)
            room = _room(pieces, [reader], tensor.dtype)
            for piece in pieces:
                values = reader.part(piece, room)
                for row, part in zip(piece.rows.tolist(), np.split(values, piece.first[1:]), strict=True):
                    file.write(row, part, float(pattern.norms[row]))
            return file

        file = home.agree(write)
        assert file is not None
        return BlockTensor(pattern, file.tensor(tensor.engine).storage, tensor.engine, tensor.error_bound)

    def _count(self, amplitudes: Amplitudes, steps: Amplitudes, made: Amplitudes) -> None:
        """Note the memory that an update has in use at its end, when it is most."""
        arguments = _own_bytes(amplitudes) + _own_bytes(steps) if self.on_disk else 0
        result = 0 if made is amplitudes else _own_bytes(made)
        buffers = max(_buffer_bytes(t.pattern, t.dtype, self.on_disk, t.engine.workers) for t in amplitudes.values())
        self._peak_bytes = max(self._peak_bytes, self.vector_bytes + arguments + result + buffers)


def _own_bytes(amplitudes: Amplitudes) -> int:
    """Memory of this process that tensors take."""
    return sum(int(tensor.arena.own.nbytes) for tensor in amplitudes.values() if tensor.in_memory)


def _bordered(matrix: Floats, row: Floats) -> Floats:
    """A symmetric matrix with one more row and column."""
    made = np.empty((len(row), len(row)))
    made[:-1, :-1] = matrix
    made[-1], made[:, -1] = row, row
    return made


def _parse_number(name: str, value: Any) -> int:
    number = parse_integer(value, f"{name}= of DIIS", "Pass a number such as 6.")
    if number < 0:
        raise InputError(f"{name}={number} of DIIS is negative. Expected an integer >= 0. Pass a number such as 6.")
    return number
