"""Making tensors: `zeros`, `random`, `from_dense`, `from_blocks`, on the engine in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.base import current_engine
from tilewise.errors import InputError
from tilewise.patterns import Pattern, Symmetry
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor
from tilewise.tensors.create import join_blocks, make_random, make_zeros, split_dense


def zeros(
    spaces: Sequence[Space] | None = None,
    dtype: npt.DTypeLike = np.float64,
    *,
    pattern: Pattern | None = None,
) -> BlockTensor:
    """A tensor of zeros: without blocks, or with the blocks of a pattern.

    Examples
    --------
    >>> import tilewise as tw
    >>> i = tw.Space([2, 3])
    >>> tw.zeros((i, i)).pattern.nnz_blocks, tw.zeros(pattern=tw.Pattern.dense((i, i))).pattern.nnz_blocks
    (0, 4)
    """
    if pattern is None:
        pattern = Pattern.empty(_given(spaces))
    return make_zeros(pattern, dtype, current_engine())


def random(
    spaces: Sequence[Space] | None = None,
    density: float = 1.0,
    seed: int = 0,
    dtype: npt.DTypeLike = np.float64,
    *,
    pattern: Pattern | None = None,
    symmetry: Symmetry | None = None,
) -> BlockTensor:
    """A tensor with random blocks of random elements in [-1, 1).

    Parameters
    ----------
    spaces : sequence of Space
        One per mode; not needed with a pattern.
    density : float
        Least fraction of elements in non-zero blocks.
    seed : int
        The same seed gives the same tensor.
    dtype : dtype
        float32, float64, complex64 or complex128.
    pattern : Pattern, optional
        The blocks instead of random ones; those with a finite norm are scaled to it.
    symmetry : Symmetry, optional
        Groups of modes with a sign.
    """
    if pattern is None:
        pattern = Pattern.random(_given(spaces), density, seed, symmetry)
    return make_random(pattern, dtype, seed, current_engine())


def from_dense(
    array: npt.ArrayLike, spaces: Sequence[Space], threshold: float = 0.0, *, symmetry: Symmetry | None = None
) -> BlockTensor:
    """Cut a dense array into blocks; those whose norm is not above the threshold are dropped."""
    return split_dense(array, tuple(spaces), threshold, symmetry, current_engine())


def from_blocks(
    blocks: Mapping[tuple[int, ...], Any], spaces: Sequence[Space], *, symmetry: Symmetry | None = None
) -> BlockTensor:
    """A tensor from a mapping of block index to array.

    Examples
    --------
    >>> import numpy as np, tilewise as tw
    >>> i = tw.Space([2, 3])
    >>> tw.from_blocks({(0, 1): np.ones((2, 3))}, (i, i)).norm() ** 2
    6.000000000000001
    """
    return join_blocks(blocks, tuple(spaces), symmetry, current_engine())


def _given(spaces: Sequence[Space] | None) -> Sequence[Space]:
    if spaces is None:
        raise InputError(
            "Neither spaces nor a pattern were given. Expected one of them. Pass spaces=(...) or pattern=p."
        )
    return spaces
