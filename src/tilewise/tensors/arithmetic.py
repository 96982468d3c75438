"""Sums, multiples, permutations and maps of tensors."""

from __future__ import annotations

import math
import operator
import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.expressions import Reduction
from tilewise.patterns import Pattern, scaled, transposed, union
from tilewise.plans import inspect_reduction
from tilewise.plans.propagation import scaled_error
from tilewise.spaces.differences import modes_text
from tilewise.tensors.protocol import Scalar
from tilewise.tensors.scalars import parse_bound, parse_factor
from tilewise.tensors.storage import data_dtype
from tilewise.tensors.tensor import BlockTensor

Array = npt.NDArray[Any]


def combined(left: BlockTensor, right: BlockTensor, factor: Scalar) -> BlockTensor:
    """``left + factor * right``; blocks of either are stored."""
    _check_same_spaces(left, right)
    left, right = left.loaded(), right.loaded()
    dtype = np.result_type(left.dtype, right.dtype)
    bound = left.error_bound + scaled_error(abs(factor), right.error_bound)
    same = left.symmetry == right.symmetry and np.array_equal(left.pattern.index, right.pattern.index)
    if same and left.arena.matches(right.arena):
        return _with_norms(left, left.arena.own + dtype.type(factor) * right.arena.own, left.pattern, bound)
    pattern = union(left.pattern, right.pattern)
    out = BlockTensor(pattern, left.engine.allocate(pattern, dtype, zero=True), left.engine, bound)
    for tensor, weight in ((left, 1), (right, factor)):
        _accumulate(tensor, weight, out)
    return out


def _check_same_spaces(left: BlockTensor, right: BlockTensor) -> None:
    if left.spaces != right.spaces:
        raise InputError(
            f"Tensors over {left.spaces} and {right.spaces} cannot be added: {modes_text(left.spaces, right.spaces)}. "
            "Expected equal spaces, tile by tile. Use tw.retile() on one of them, or transpose() it."
        )


def _accumulate(tensor: BlockTensor, weight: Scalar, out: BlockTensor) -> None:
    """Add a multiple of a tensor to one whose pattern holds all of its blocks."""
    if out.symmetry == tensor.symmetry:
        # Unique blocks go to unique blocks, so the symmetry plays no part.
        pattern = tensor.pattern
        plain = Pattern.trusted(pattern.spaces, pattern.index, pattern.norms)
        target = Pattern.trusted(pattern.spaces, out.pattern.index, out.pattern.norms)
        source = BlockTensor(plain, tensor.arena, tensor.engine)
        sink = BlockTensor(target, out.arena, out.engine)
    else:
        source, sink = tensor, out
    names = _names(source.ndim)
    plan = inspect_reduction(Reduction(names, names), source.pattern, out.dtype, workers=out.engine.workers)
    out.engine.run(plan, [source], out=sink, alpha=weight, beta=1)
    out.replace_norms(np.array(sink.pattern.norms))


def _names(modes: int) -> tuple[str, ...]:
    """A name for each mode: letters, and numbers where these are too few."""
    letters = string.ascii_letters
    return tuple(letters[:modes]) + tuple(map(str, range(len(letters), modes)))


def _with_norms(like: BlockTensor, own: Array, pattern: Pattern, bound: float) -> BlockTensor:
    made = BlockTensor(pattern, like.arena.like(own), like.engine, bound)
    made.replace_norms(made.arena.norms())
    return made


def scaled_tensor(tensor: BlockTensor, factor: Scalar) -> BlockTensor:
    """A multiple of a tensor."""
    tensor = tensor.loaded()
    kind = _scaled_dtype(tensor.dtype, factor)
    number = parse_factor("factor", factor, kind)
    own = tensor.arena.own * kind.type(number)
    bound = scaled_error(abs(number), tensor.error_bound)
    limits = np.finfo(kind)
    pattern = scaled(tensor.pattern, abs(number) * (1 + 4 * float(limits.eps)))
    if np.any((pattern.norms > 0) & (pattern.norms < 1e6 * float(limits.tiny))):
        # The smallest numbers have few digits: rounding may enlarge them by more than the factor allows for.
        return _with_norms(tensor, own, pattern, bound)
    return BlockTensor(pattern, tensor.arena.like(own), tensor.engine, bound)


def _scaled_dtype(dtype: np.dtype[Any], factor: Scalar) -> np.dtype[Any]:
    """NumPy's rule for Python numbers: they change the kind of the elements, not their precision."""
    if dtype.kind == "c" or not np.iscomplexobj(factor):
        return dtype
    return np.dtype(np.complex64 if dtype == np.float32 else np.complex128)


def mapped(
    tensor: BlockTensor, function: Callable[[Array, tuple[int, ...]], Array], growth: float | None
) -> BlockTensor:
    """Apply a function to each stored block; see `BlockTensor.map`."""
    if growth is not None:
        growth = parse_bound("growth", growth, "Give the largest factor by which the function enlarges an error.")
    if not callable(function):
        raise InputError(
            f"map was given {function!r}, which is no function. Expected function(block, offsets), which returns an "
            "array of the block's shape. Pass a function."
        )
    where = tensor.arena if tensor.in_memory else tensor.engine.allocate(tensor.pattern, tensor.dtype, zero=False)
    arrays = where.agree(lambda: _map_blocks(tensor, function, where.rows))
    assert arrays is not None
    kinds = set().union(*where.gather({array.dtype for array in arrays}))
    dtype = data_dtype(np.result_type(*kinds)) if kinds else tensor.dtype
    own = np.concatenate(arrays).astype(dtype) if arrays else np.zeros(0, dtype)
    bound = scaled_error(math.inf if growth is None else growth, tensor.error_bound)
    made = BlockTensor(tensor.pattern, where.like(own), tensor.engine, bound)
    made.replace_norms(made.arena.norms())
    return made


def _map_blocks(
    tensor: BlockTensor, function: Callable[[Array, tuple[int, ...]], Array], rows: npt.NDArray[np.int64]
) -> list[Array]:
    """What a function makes of some blocks."""
    arrays = []
    for row in rows.tolist():
        index, block = tuple(tensor.pattern.index[row].tolist()), tensor.read_only(row)
        at = tuple(int(s.offsets[t]) for s, t in zip(tensor.spaces, index, strict=True))
        value = np.asarray(function(block, at))
        data_dtype(value.dtype)
        if value.shape != block.shape:
            raise InputError(
                f"The function given to map returned an array of shape {value.shape} for block {index}. "
                f"Expected the block's shape {block.shape}. Return one value per element."
            )
        if not np.isfinite(value).all():
            raise InputError(
                f"The function given to map returned a value that is not finite in block {index}. Expected finite "
                "numbers. Check for divisions by zero."
            )
        arrays.append(value.ravel())
    return arrays


def parse_axes(axes: Sequence[Any], ndim: int) -> tuple[int, ...]:
    """Axes as a user gives them: none, several numbers, or one sequence."""
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], Sequence | np.ndarray)):
        axes = () if axes[0] is None else tuple(axes[0])
    if not axes:
        return tuple(range(ndim))[::-1]
    try:
        given = [operator.index(a) for a in axes]
    except TypeError:
        given = []
    order = tuple(a + ndim if a < 0 else a for a in given)
    if sorted(order) != list(range(ndim)):
        raise InputError(
            f"transpose{tuple(axes)} is no permutation of the modes. Expected each of 0 to {ndim - 1} once. "
            "Correct the axes."
        )
    return order


def permuted(tensor: BlockTensor, axes: Sequence[Any]) -> BlockTensor:
    """The tensor with its modes in another order; symmetry goes along."""
    order = parse_axes(axes, tensor.ndim)
    if tensor.symmetry is None:
        names = _names(tensor.ndim)
        step = Reduction(names, tuple(names[a] for a in order))
        plan = inspect_reduction(step, tensor.pattern, tensor.dtype, workers=tensor.engine.workers)
        out = tensor.engine.run(plan, [tensor])
        out.error_bound = tensor.error_bound
        return out
    pattern = transposed(tensor.pattern, order)
    arena = tensor.engine.allocate(pattern, tensor.dtype, zero=False)
    back = [order.index(d) for d in range(tensor.ndim)]

    def fill() -> None:
        for row, part in arena.parts(pattern):
            part[...] = np.transpose(tensor.block(pattern.index[row][back].tolist()), order)

    arena.agree(fill)  # others may read it afterwards
    return BlockTensor(pattern, arena, tensor.engine, tensor.error_bound)
