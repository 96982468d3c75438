"""Making tensors: empty, random, from a dense array, from blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.patterns import Pattern, Symmetry
from tilewise.patterns.parse import parse_spaces
from tilewise.spaces import Space
from tilewise.spaces.integers import parse_integer
from tilewise.tensors.protocol import Engine
from tilewise.tensors.scalars import parse_bound
from tilewise.tensors.storage import (
    Arena,
    all_finite,
    block_offsets,
    data_dtype,
    frobenius_norm,
    parse_dtype,
)
from tilewise.tensors.tensor import BlockTensor

Array = npt.NDArray[Any]

DRAWN = 1 << 20
"""Random numbers that are drawn at once."""


def make_zeros(pattern: Pattern, dtype: npt.DTypeLike, engine: Engine) -> BlockTensor:
    """A tensor whose blocks are there and hold zeros."""
    kind = parse_dtype(dtype)
    known = Pattern.trusted(pattern.spaces, pattern.index, np.zeros(pattern.nnz_blocks), pattern.symmetry)
    return BlockTensor(known, engine.allocate(pattern, kind, zero=True), engine)


def make_random(pattern: Pattern, dtype: npt.DTypeLike, seed: int, engine: Engine) -> BlockTensor:
    """A tensor with elements drawn uniformly from [-1, 1); blocks with a finite norm bound are scaled to it."""
    kind = parse_dtype(dtype)
    arena = engine.allocate(pattern, kind, zero=False)
    _draw(arena, block_offsets(pattern), seed)
    tensor = BlockTensor(pattern, arena, engine)
    if pattern.symmetry is not None:
        for row, part in arena.parts(pattern):
            symmetrise_block(part, pattern.index[row].tolist(), pattern.symmetry)
    norms = arena.norms()
    known = np.isfinite(pattern.norms)
    if known.any():
        factor = np.where(known & (norms > 0), pattern.norms / np.where(norms > 0, norms, 1), 1.0)
        arena.own[...] *= np.repeat(factor[arena.rows], pattern.block_sizes[arena.rows]).astype(arena.own.real.dtype)
        norms = arena.norms()
    tensor.replace_norms(norms)
    return tensor


def _draw(arena: Arena, places: npt.NDArray[np.int64], seed: int) -> None:
    """Fill an arena with random numbers, each the one that its place among all elements of the tensor has.

    A generator that skips the numbers of others gives every process its share of one sequence.
    """
    real = arena.own.view(arena.own.real.dtype)
    parts = 2 if arena.dtype.kind == "c" else 1
    place, begin = places[arena.rows] * parts, arena.own_offsets * parts
    first = np.flatnonzero(np.diff(place - begin, prepend=-1))  # of blocks that follow each other in the tensor too
    source = np.random.PCG64(seed)
    draw, at = np.random.Generator(source), 0
    for where, low, high in zip(place[first], begin[first], np.append(begin[first], len(real))[1:], strict=True):
        source.advance(int(where) - at)
        at = int(where + high - low)
        for part in np.split(real[low:high], range(DRAWN, int(high - low), DRAWN)):
            part[...] = draw.uniform(-1.0, 1.0, len(part))


def symmetrise_block(block: Array, index: Sequence[int], symmetry: Symmetry) -> None:
    """Give a block, in place, what the symmetry says of exchanges of its equal tiles.

    Each element is a copy of the first of those it is exchanged with, so that the symmetry is exact; those that
    are exchanged with their own negative are zero.
    """
    operations, signs = _exchanges(index, symmetry)
    places = np.arange(block.size).reshape(block.shape)
    images = np.stack([np.transpose(places, axes).ravel() for axes in operations])
    first = images.argmin(axis=0)
    own = np.where(images == places.ravel(), signs[:, None], 0).sum(axis=0)
    values = block.ravel()[images[first, np.arange(block.size)]] * signs[first]
    block[...] = np.where(own == 0, 0, values).reshape(block.shape)


def _exchanges(index: Sequence[int], symmetry: Symmetry) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The permutations of modes, with their signs, that take a block to itself."""
    operations, signs = symmetry.operations(len(index))
    tiles = np.asarray(index)
    own = (tiles[operations] == tiles).all(axis=1)
    return operations[own], signs[own]


def parse_modes(spaces: object) -> tuple[Space, ...]:
    """One space per mode as a user gives them."""
    given: Any = spaces if isinstance(spaces, (Space, Iterable)) else (spaces,)
    return parse_spaces(given, None)[0]


def split_dense(
    array: npt.ArrayLike, spaces: Sequence[Space], threshold: float, symmetry: Symmetry | None, engine: Engine
) -> BlockTensor:
    """Cut a dense array into blocks; those whose norm is not above the threshold are dropped."""
    modes = parse_modes(spaces)
    dense = _parse_array(array, "The array")
    kind = data_dtype(dense.dtype)
    candidates = Pattern.dense(modes, symmetry=symmetry)
    least = parse_bound("threshold", threshold, "Use 0 to keep what is non-zero.")
    _check_dense(dense, candidates)
    every = candidates.index.tolist()
    kept = [index for index in every if frobenius_norm(_cut(dense, modes, index)) > least]
    found = np.array(kept, np.int64).reshape(len(kept), len(modes))
    pattern = Pattern.trusted(modes, found, None, candidates.symmetry)
    return _filled(pattern, kind, lambda row: _cut(dense, modes, kept[row]), engine)


def _cut(dense: Array, modes: Sequence[Space], index: Sequence[int]) -> Array:
    """The elements of one block."""
    return dense[tuple(slice(int(s.offsets[t]), int(s.offsets[t + 1])) for s, t in zip(modes, index, strict=True))]


def _parse_array(value: npt.ArrayLike, what: str) -> Array:
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        why = str(error).rstrip(".")
        raise InputError(
            f"{what} cannot be read as an array: {why}. Expected numbers in rows of equal length. Correct it."
        ) from error


def _check_dense(dense: Array, pattern: Pattern) -> None:
    if dense.shape != pattern.shape:
        raise InputError(
            f"An array of shape {dense.shape} does not fit spaces of sizes {pattern.shape}. Expected one axis per "
            "space, as long as the space. Check the order of the spaces."
        )
    if not np.isfinite(dense).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(dense))[0])
        raise InputError(
            f"The element at {where} is {dense[where]}. Expected finite numbers. Clean the array before it is cut."
        )
    if pattern.symmetry is not None:
        _check_symmetric(dense, (0,) * dense.ndim, pattern.symmetry, "The array")


def _check_symmetric(values: Array, index: Sequence[int], symmetry: Symmetry, what: str) -> None:
    """Raise if exchanges of equal tiles change elements by more than rounding can."""
    scale = float(np.abs(values).max(initial=0.0))
    room = scale * float(np.finfo(data_dtype(values.dtype)).eps) ** (2 / 3)
    wide = values.astype(np.result_type(values.dtype, np.float64), copy=False)
    for axes, sign in zip(*_exchanges(index, symmetry), strict=True):
        with np.errstate(over="ignore"):
            off = float(np.abs(wide - sign * np.transpose(wide, axes)).max(initial=0.0))
        if off > room:
            raise InputError(
                f"{what} is not symmetric under the modes {tuple(axes.tolist())} with sign {sign:+.0f}: elements "
                f"differ by up to {off:.3g}. Expected {symmetry!r}. Symmetrise it, or leave out the symmetry."
            )


def join_blocks(
    blocks: Mapping[tuple[int, ...], npt.ArrayLike],
    spaces: Sequence[Space],
    symmetry: Symmetry | None,
    engine: Engine,
) -> BlockTensor:
    """A tensor from given blocks."""
    modes = parse_modes(spaces)
    if not isinstance(blocks, Mapping):
        raise InputError(
            f"The blocks are a {type(blocks).__name__}. Expected a mapping of block index to array. Pass, for example, "
            "{(0, 1): array}."
        )
    arrays = {_parse_key(key, len(modes)): _parse_array(value, f"Block {key}") for key, value in blocks.items()}
    pattern = Pattern(modes, np.array(list(arrays), np.int64).reshape(len(arrays), len(modes)), None, symmetry)
    kinds = {array.dtype for array in arrays.values() if data_dtype(array.dtype)}
    kind = data_dtype(np.result_type(*kinds)) if kinds else np.dtype(np.float64)
    ordered = [tuple(index) for index in pattern.index.tolist()]
    for index, shape in zip(ordered, pattern.block_shapes.tolist(), strict=True):
        check_block(arrays[index], index, tuple(shape), pattern.symmetry)
    return _filled(pattern, kind, lambda row: arrays[ordered[row]], engine)


def _parse_key(key: object, ndim: int) -> tuple[int, ...]:
    """A block index as a user gives it."""
    tiles = tuple(key) if isinstance(key, Iterable) else (key,)
    if len(tiles) != ndim:
        raise InputError(
            f"Block index {key!r} has {len(tiles)} entries. Expected {ndim} tile numbers for {ndim} modes. "
            "Give one tile per mode."
        )
    return tuple(parse_integer(tile, f"A tile of block index {key!r}", "Count tiles from 0.") for tile in tiles)


def check_block(value: Array, index: tuple[int, ...], shape: tuple[int, ...], symmetry: Symmetry | None) -> None:
    """Raise unless an array can be that block of a tensor."""
    if value.shape != shape:
        raise InputError(
            f"Block {index} has shape {value.shape}. Expected {shape}, the sizes of its tiles. Check the block, or its "
            "index."
        )
    if not all_finite(value):
        raise InputError(f"Block {index} holds a value that is not finite. Expected finite numbers. Clean it.")
    if symmetry is not None:
        _check_symmetric(value, index, symmetry, f"Block {index}")


def _filled(pattern: Pattern, kind: np.dtype[Any], block: Callable[[int], Array], engine: Engine) -> BlockTensor:
    """A tensor with given blocks; each process copies those it answers for."""
    arena = engine.allocate(pattern, kind, zero=False)
    for row, part in arena.parts(pattern):
        part[...] = block(row)
    tensor = BlockTensor(pattern, arena, engine)
    tensor.replace_norms(arena.norms())
    return tensor
