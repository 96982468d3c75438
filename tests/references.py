"""Dense references: what tensors, patterns and results are, worked out element by element."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.patterns import Pattern
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor

Array = npt.NDArray[Any]


def place(spaces: tuple[Space, ...], index: tuple[int, ...]) -> tuple[slice, ...]:
    """Where a block lies in the dense array."""
    return tuple(slice(int(s.offsets[t]), int(s.offsets[t + 1])) for s, t in zip(spaces, index, strict=True))


def dense(tensor: BlockTensor) -> Array:
    """The dense array, from the stored blocks and the definition of the symmetry.

    Several permutations lead to one block where tiles are equal, and stored blocks are symmetric only up to
    rounding: the permutation that keeps equal tiles in order counts.
    """
    array = np.zeros(tensor.shape, tensor.dtype)
    operations: list[tuple[tuple[int, ...], float]] = [(tuple(range(tensor.ndim)), 1.0)]
    if tensor.symmetry is not None:
        axes, signs = tensor.symmetry.operations(tensor.ndim)
        operations = list(zip(map(tuple, axes.tolist()), signs.tolist(), strict=True))
    groups = () if tensor.symmetry is None else tensor.symmetry.groups
    for index, block in tensor.blocks():
        for order, sign in operations:
            pairs = [(order[a], order[b]) for modes, _ in groups for a, b in combinations(modes, 2)]
            if any(a > b and index[a] == index[b] for a, b in pairs):
                continue
            moved = tuple(index[a] for a in order)
            array[place(tensor.spaces, moved)] = block.dtype.type(sign) * block.transpose(order)
    return array


def tile_mask(pattern: Pattern) -> npt.NDArray[np.int64]:
    """Ones where blocks of the full tensor are stored or follow by symmetry; one entry per block."""
    mask = np.zeros(pattern.ntiles, np.int64)
    axes = [tuple(range(pattern.ndim))]
    if pattern.symmetry is not None:
        axes = [tuple(a) for a in pattern.symmetry.operations(pattern.ndim)[0].tolist()]
    for index in pattern.index.tolist():
        for order in axes:
            mask[tuple(index[a] for a in order)] = 1
    return mask


def element_mask(pattern: Pattern) -> npt.NDArray[np.int64]:
    """Ones where elements of the full tensor lie in non-zero blocks."""
    tiles, mask = tile_mask(pattern), np.zeros(pattern.shape, np.int64)
    for index in product(*map(range, pattern.ntiles)):
        mask[place(pattern.spaces, index)] = tiles[index]
    return mask


def true_norm(array: Array) -> float:
    """The Frobenius norm, also of elements whose squares vanish or overflow."""
    largest = float(np.abs(array).max(initial=0.0))
    if largest in (0.0, math.inf):
        return largest
    wide = array.astype(np.complex128)
    # Part by part: a complex division by the smallest numbers overflows on its way.
    squares = (wide.real / largest) ** 2 + (wide.imag / largest) ** 2
    return largest * math.sqrt(math.fsum(squares.ravel().tolist()))


def assert_sound(tensor: BlockTensor) -> None:
    """The tensor's own check, and that no norm bound is below the block's norm."""
    tensor.check()
    for (index, block), bound in zip(tensor.blocks(), tensor.pattern.norms.tolist(), strict=True):
        assert bound >= true_norm(block) * (1 - 1e-14), f"block {index}"


def precision(dtype: npt.DTypeLike) -> float:
    """Relative error that results of a type may have."""
    return 1e-12 if np.dtype(dtype).name in ("float64", "complex128") else 1e-5


def assert_close(tensor: BlockTensor, expected: Array, scale: float) -> None:
    """Same type, same shape, and elements equal relative to a scale; norms not below the truth."""
    assert tensor.dtype == expected.dtype
    assert tensor.shape == expected.shape
    assert_sound(tensor)
    assert true_norm(dense(tensor) - expected) <= precision(expected.dtype) * scale


def stored_bytes(tensor: BlockTensor) -> tuple[bytes, bytes, bytes, float]:
    """All that a tensor is, for "nothing was changed" and "the same bits"."""
    pattern = tensor.pattern
    data = b"".join(block.tobytes() for _, block in tensor.blocks())
    return data, pattern.index.tobytes(), pattern.norms.tobytes(), tensor.error_bound
