"""Making tensors: `zeros`, `random`, `from_dense`, `from_blocks`, `from_function`, `load`, on the engine in use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from tilewise.engines.base import current_engine
from tilewise.errors import InputError
from tilewise.patterns import Pattern, Symmetry
from tilewise.spaces import Space
from tilewise.spaces.integers import parse_seed
from tilewise.tensors import BlockTensor
from tilewise.tensors.create import join_blocks, make_random, make_zeros, parse_modes, split_dense
from tilewise.tensors.files import load_tensor
from tilewise.tensors.generated import Maker, make_generated


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
    if not _is_given(pattern, spaces):
        pattern = Pattern.empty(parse_modes(spaces))
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
    number = parse_seed(seed)
    if not _is_given(pattern, spaces, symmetry):
        pattern = Pattern.random(parse_modes(spaces), density, number, symmetry)
    return make_random(pattern, dtype, number, current_engine())


def from_dense(
    array: npt.ArrayLike, spaces: Sequence[Space], threshold: float = 0.0, *, symmetry: Symmetry | None = None
) -> BlockTensor:
    """Cut a dense array into blocks; those whose norm is not above the threshold are dropped."""
    return split_dense(array, spaces, threshold, symmetry, current_engine())


def from_blocks(
    blocks: Mapping[tuple[int, ...], Any], spaces: Sequence[Space], *, symmetry: Symmetry | None = None
) -> BlockTensor:
    """A tensor from a mapping of block index to array.

    Examples
    --------
    >>> import numpy as np, tilewise as tw
    >>> i = tw.Space([2, 3])
    >>> tw.from_blocks({(0, 1): np.full((2, 3), 2.0)}, (i, i)).block((0, 1)).sum().item()
    12.0
    """
    return join_blocks(blocks, spaces, symmetry, current_engine())


def from_function(
    make_block: Maker,
    spaces: Sequence[Space] | None = None,
    *,
    pattern: Pattern | None = None,
    dtype: npt.DTypeLike = np.float64,
    cost: float | Sequence[float] = 0.0,
    thread_safe: bool = True,
    working_bytes: int = 0,
) -> BlockTensor:
    """A tensor whose blocks are made when a contraction needs them, and dropped after their last use.

    Parameters
    ----------
    make_block : callable
        ``make_block(block_index)`` returns the block as an array; `block_index` is a tuple of tile numbers.
    spaces : sequence of Space, optional
        One per mode; not needed with a pattern.
    pattern : Pattern, optional
        The blocks there are; all by default.  Finite norms in it are promises: they let `tol` drop blocks unseen,
        and a block that breaks its promise is an error.
    dtype : dtype
        Element type of the tensor.
    cost : float or sequence of float
        Seconds it takes to make a block: one number, or one per block in the order of ``pattern.index``.
    thread_safe : bool
        Whether several threads may call the function at once.
    working_bytes : int
        Most bytes that a call of the function holds at any time besides the block that it returns; they count towards
        the memory of a contraction as the block does.

    Examples
    --------
    >>> import numpy as np, tilewise as tw
    >>> i = tw.Space([2, 3])
    >>> t = tw.from_function(lambda block: np.full([i.sizes[b] for b in block], sum(block)), (i, i))
    >>> t.block((1, 1)).sum().item()
    18.0
    """
    if pattern is None or spaces is None:
        if not _is_given(pattern, spaces):
            pattern = Pattern.dense(parse_modes(spaces))
    elif _is_given(pattern, None) and parse_modes(spaces) != pattern.spaces:
        raise InputError(
            f"from_function was given the spaces {tuple(spaces)} and a pattern over {pattern.spaces}. Expected equal "
            "spaces, tile by tile. Leave spaces away: a pattern has its own."
        )
    return make_generated(make_block, pattern, dtype, cost, thread_safe, current_engine(), working_bytes)


def load(path: str | os.PathLike[str], *, on_disk: bool = False) -> BlockTensor:
    """Read a tensor that `BlockTensor.save` wrote.

    Parameters
    ----------
    path : str or Path
        The file.
    on_disk : bool
        Leave the elements in the file: contractions read the blocks they need, when they need them, so that the
        tensor may be larger than memory.  `BlockTensor.copy` brings all of it to memory.

    Notes
    -----
    A file that is truncated, damaged or of another kind is a `StorageError`, with ``on_disk=True`` also later, when
    a damaged block is read.  Nothing in a file is executed.
    """
    return load_tensor(path, on_disk, current_engine())


def redistribute(tensor: BlockTensor, layout: str) -> BlockTensor:
    """A tensor whose blocks other ranks own; under another engine than ``"mpi"``, the tensor itself.

    Parameters
    ----------
    tensor : BlockTensor
        The tensor.
    layout : str
        ``"cyclic"``: blocks go round the ranks.  ``"cyclic2d"``: tiles of the first half of the modes along one side of
        a grid of ranks, of the others along its other side.  ``"column"``: by the tile of the last mode, dealt by
        bytes.  ``"weight"``: neighbouring blocks together, equal bytes for each rank.  ``"replicated"``: every rank has
        every block.

    Examples
    --------
    >>> import tilewise as tw
    >>> i = tw.Space([2, 3])
    >>> tw.redistribute(tw.random((i, i)), "column").shape
    (5, 5)
    """
    if not isinstance(tensor, BlockTensor):
        raise InputError(
            f"redistribute was given a {type(tensor).__name__}. Expected a BlockTensor. Make one of an array with "
            "tw.from_dense(array, spaces)."
        )
    return tensor.engine.spread(tensor, layout)


def _is_given(
    pattern: Pattern | None, spaces: Sequence[Space] | None, symmetry: Symmetry | None = None
) -> TypeGuard[Pattern]:
    """Whether there is a pattern; it must stand alone."""
    if pattern is None:
        if spaces is None:
            raise InputError(
                "Neither spaces nor a pattern were given. Expected one of them. Pass spaces=(...) or pattern=p."
            )
        return False
    if not isinstance(pattern, Pattern):
        raise InputError(
            f"pattern= is a {type(pattern).__name__}. Expected a Pattern. Pass tensor.pattern, or make one with "
            "tw.Pattern."
        )
    if spaces is not None or symmetry is not None:
        raise InputError(
            "Both spaces (or a symmetry) and a pattern were given. Expected one of them: a pattern has its own spaces "
            "and symmetry. Leave the others away."
        )
    return True
