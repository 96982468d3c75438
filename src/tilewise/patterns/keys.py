"""Block indices as single integers: mixed-radix keys, their order and their lookup."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError

__all__ = ["block_keys", "blocks_of_keys", "fits_keys", "key_strides", "lexical_order", "rows_of_keys"]

_Ints = npt.NDArray[np.int64]


def fits_keys(counts: Sequence[int]) -> bool:
    """Whether every block of a tensor with that many tiles per mode has a 64-bit key."""
    return math.prod(counts) < 2**63


def key_strides(counts: Sequence[int]) -> list[int]:
    """Weight of each mode's tile number in a key; the last mode counts by one."""
    strides = [1] * len(counts)
    for mode in range(len(counts) - 2, -1, -1):
        strides[mode] = strides[mode + 1] * counts[mode + 1]
    return strides


def block_keys(index: _Ints, counts: Sequence[int], modes: Sequence[int] | None = None) -> _Ints:
    """One integer per block, over all its modes or some; keys are ordered as the blocks are lexicographically."""
    if not fits_keys(counts):
        raise InputError(
            f"A tensor with {' x '.join(map(str, counts))} tiles has {math.prod(counts):.3g} blocks. "
            "Block keys are 64-bit, so at most 2**63 - 1 blocks can be addressed. Use fewer, larger tiles."
        )
    keys = np.zeros(len(index), dtype=np.int64)
    for mode, count, stride in zip(
        range(len(counts)) if modes is None else modes, counts, key_strides(counts), strict=True
    ):
        if count > 1:
            keys += index[:, mode] if stride == 1 else index[:, mode] * stride
    return keys


def lexical_order(index: _Ints, counts: Sequence[int]) -> _Ints:
    """The stable permutation that sorts blocks lexicographically, also where keys do not fit."""
    if fits_keys(counts):
        return np.argsort(block_keys(index, counts), kind="stable")
    return np.lexsort(index.T[::-1])


def blocks_of_keys(keys: _Ints, counts: Sequence[int]) -> _Ints:
    """Blocks of the given keys, as an array (blocks, modes)."""
    index = np.empty((len(keys), len(counts)), dtype=np.int64)
    rest = keys
    for mode in range(len(counts) - 1, 0, -1):
        rest, index[:, mode] = np.divmod(rest, counts[mode])
    if counts:
        index[:, 0] = rest
    return index


def rows_of_keys(sorted_keys: _Ints, wanted: _Ints) -> _Ints:
    """Position of each wanted key in ascending keys, or -1."""
    if not sorted_keys.size:
        return np.full(wanted.shape, -1, dtype=np.int64)
    rows = np.searchsorted(sorted_keys, wanted)
    rows[rows == sorted_keys.size] = 0
    return np.where(sorted_keys[rows] == wanted, rows, -1)
