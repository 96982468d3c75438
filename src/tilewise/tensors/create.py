"""Making tensors: empty, random, from a dense array, from blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.patterns import Pattern, Symmetry
from tilewise.spaces import Space
from tilewise.tensors.protocol import Engine
from tilewise.tensors.storage import Arena, block_norms, parse_dtype
from tilewise.tensors.tensor import BlockTensor

Array = npt.NDArray[Any]


def make_zeros(pattern: Pattern, dtype: npt.DTypeLike, engine: Engine) -> BlockTensor:
    """A tensor whose blocks are there and hold zeros."""
    kind = parse_dtype(dtype)
    known = Pattern.trusted(pattern.spaces, pattern.index, np.zeros(pattern.nnz_blocks), pattern.symmetry)
    return BlockTensor(known, Arena.allocate(pattern, kind, zero=True), engine)


def make_random(pattern: Pattern, dtype: npt.DTypeLike, seed: int, engine: Engine) -> BlockTensor:
    """A tensor with elements drawn uniformly from [-1, 1); blocks with a finite norm bound are scaled to it."""
    kind = parse_dtype(dtype)
    arena = Arena.allocate(pattern, kind, zero=False)
    rng = np.random.default_rng(seed)
    real = arena.data.view(arena.data.real.dtype)
    step = 1 << 20
    for begin in range(0, len(real), step):
        real[begin : begin + step] = rng.uniform(-1.0, 1.0, len(real[begin : begin + step]))
    tensor = BlockTensor(pattern, arena, engine)
    _symmetrise_diagonals(tensor)
    norms = block_norms(arena.data, arena.offsets)
    known = np.isfinite(pattern.norms)
    if known.any():
        factor = np.where(known & (norms > 0), pattern.norms / np.where(norms > 0, norms, 1), 1.0)
        arena.data[...] *= np.repeat(factor, pattern.block_sizes).astype(real.dtype)
        norms = block_norms(arena.data, arena.offsets)
    tensor.replace_norms(norms)
    return tensor


def _symmetrise_diagonals(tensor: BlockTensor) -> None:
    """Blocks with equal tiles in a group hold the symmetry inside themselves."""
    if tensor.symmetry is None:
        return
    for row, index in enumerate(tensor.pattern.index.tolist()):
        view = tensor._view(row)
        symmetrise_block(view, index, tensor.symmetry)


def symmetrise_block(block: Array, index: Sequence[int], symmetry: Symmetry) -> None:
    """Project a block, in place, on what the symmetry says of exchanges of its equal tiles."""
    operations, signs = symmetry.operations(block.ndim)
    total, count = np.zeros_like(block), 0
    for axes, sign in zip(operations, signs, strict=True):
        if all(index[d] == index[a] for d, a in enumerate(axes)):
            total += block.dtype.type(sign) * np.transpose(block, axes)
            count += 1
    block[...] = total / count


def split_dense(
    array: npt.ArrayLike, spaces: Sequence[Space], threshold: float, symmetry: Symmetry | None, engine: Engine
) -> BlockTensor:
    """Cut a dense array into blocks; those whose norm is not above the threshold are dropped."""
    dense = np.asarray(array)
    kind = parse_dtype(dense.dtype)
    candidates = Pattern.dense(spaces, symmetry=symmetry)
    if dense.shape != candidates.shape:
        raise InputError(
            f"An array of shape {dense.shape} does not fit spaces of sizes {candidates.shape}. Expected one axis per "
            "space, as long as the space. Check the order of the spaces."
        )
    if not threshold >= 0:
        raise InputError(
            f"threshold={threshold} is not a norm. Expected a number >= 0. Use 0 to keep what is non-zero."
        )
    if not np.isfinite(dense).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(dense))[0])
        raise InputError(
            f"The element at {where} is {dense[where]}. Expected finite numbers. Clean the array before it is cut."
        )
    if symmetry is not None:
        _check_symmetric(dense, symmetry)
    kept, parts = [], []
    for index in candidates.index.tolist():
        part = dense[tuple(slice(int(s.offsets[t]), int(s.offsets[t + 1])) for s, t in zip(spaces, index, strict=True))]
        if float(np.linalg.norm(part)) > threshold:
            kept.append(index)
            parts.append(part.ravel())
    found = np.array(kept, np.int64).reshape(len(kept), len(spaces))
    data = np.concatenate(parts).astype(kind) if parts else np.zeros(0, kind)
    return _finish(Pattern.trusted(tuple(spaces), found, None, candidates.symmetry), data, engine)


def _check_symmetric(dense: Array, symmetry: Symmetry) -> None:
    scale = float(np.abs(dense).max(initial=0.0))
    for axes, sign in zip(*symmetry.operations(dense.ndim), strict=True):
        off = float(np.abs(dense - sign * np.transpose(dense, axes)).max(initial=0.0))
        if off > 1e-10 * scale:
            raise InputError(
                f"The array is not symmetric under the modes {tuple(axes.tolist())} with sign {sign:+.0f}: elements "
                f"differ by up to {off:.3g}. Expected {symmetry!r}. Symmetrise the array, or leave out the symmetry."
            )


def join_blocks(
    blocks: Mapping[tuple[int, ...], npt.ArrayLike],
    spaces: Sequence[Space],
    symmetry: Symmetry | None,
    engine: Engine,
) -> BlockTensor:
    """A tensor from given blocks."""
    pattern = Pattern(spaces, np.array(list(blocks), np.int64).reshape(len(blocks), len(spaces)), None, symmetry)
    arrays = {tuple(int(t) for t in index): np.asarray(value) for index, value in blocks.items()}
    kind = parse_dtype(np.result_type(*[a.dtype for a in arrays.values()])) if arrays else np.dtype(np.float64)
    data = np.empty(pattern.nnz_elements, kind)
    end = 0
    for index, shape in zip(pattern.index.tolist(), pattern.block_shapes.tolist(), strict=True):
        value = arrays[tuple(index)]
        if value.shape != tuple(shape):
            raise InputError(
                f"Block {tuple(index)} has shape {value.shape}. Expected {tuple(shape)}, the sizes of its tiles. "
                "Check the block, or its index."
            )
        if not np.isfinite(value).all():
            raise InputError(
                f"Block {tuple(index)} holds a value that is not finite. Expected finite numbers. Clean it."
            )
        begin, end = end, end + math.prod(shape)
        data[begin:end] = value.ravel()
    return _finish(pattern, data, engine)


def _finish(pattern: Pattern, data: Array, engine: Engine) -> BlockTensor:
    arena = Arena(data, np.cumsum(pattern.block_sizes) - pattern.block_sizes)
    tensor = BlockTensor(pattern, arena, engine)
    tensor.replace_norms(block_norms(data, arena.offsets))
    return tensor
