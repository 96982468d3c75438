"""Blocks made on demand by a function of the user."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import GeneratorError, InputError
from tilewise.patterns import Pattern
from tilewise.plans.propagation import NORM_LENIENCE
from tilewise.spaces.integers import parse_integer
from tilewise.tensors.create import check_block
from tilewise.tensors.protocol import Engine
from tilewise.tensors.storage import all_finite, check_bytes, data_dtype, frobenius_norm, parse_dtype
from tilewise.tensors.tensor import BlockTensor

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Maker = Callable[[tuple[int, ...]], npt.ArrayLike]

_inside: ContextVar[Mapping[int, threading.RLock]] = ContextVar("tilewise_inside", default=MappingProxyType({}))
"""For each storage whose function is at work here, what keeps the reads that it asks for apart."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A storage that calls a function for each block it is asked for, and keeps none."""

    pattern: Pattern
    """The blocks there are; their norm bounds are promises of the function."""
    function: Maker
    """Makes a block of its index."""
    dtype: np.dtype[Any]
    """Element type."""
    parallel: bool
    """Whether several threads may call the function at once."""
    seconds: Floats
    """What making each block is said to cost; zero if nothing was said."""
    working_bytes: int
    """What making a block is said to take besides the block."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held until a block is copied, if the function is not thread safe."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Generated:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process has a lock of its own."""
        return Generated, (self.pattern, self.function, self.dtype, self.parallel, self.seconds, self.working_bytes)

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest block until it is copied, with what making and checking it takes besides.

        NumPy makes double precision unless it is told otherwise, and so would a function for single precision.
        """
        elements = int(self.pattern.block_sizes.max(initial=0))
        wide = np.result_type(self.dtype, np.float64)
        return elements * wide.itemsize + max(check_bytes(elements, self.dtype), self.working_bytes)

    def read(self, row: int, out: Array) -> None:
        """Make a block; one at a time if the function is not thread safe.

        A function may ask for other blocks of its own tensor, and for contractions with it, whose threads have the
        context of this one: those that it asks for wait for each other, and not for it.
        """
        if self.parallel:
            self._read(row, out)
            return
        inside = _inside.get()
        with inside.get(id(self), self.lock):
            token = _inside.set(MappingProxyType({**inside, id(self): threading.RLock()}))
            try:
                self._read(row, out)
            finally:
                _inside.reset(token)

    def _read(self, row: int, out: Array) -> None:
        index = tuple(self.pattern.index[row].tolist())
        value = self._make(index)
        self._check(row, index, value)
        with np.errstate(over="ignore"):
            out.reshape(value.shape)[...] = value
        if out.dtype.itemsize < value.dtype.itemsize and not all_finite(out):
            raise GeneratorError(
                f"The function given to from_function made block {index} with elements too large for {out.dtype.name}. "
                "Expected a type that can hold them. Scale the block, or pass another dtype= to from_function."
            )

    def _make(self, index: tuple[int, ...]) -> Array:
        try:
            value = self.function(index)
            if isinstance(value, np.ma.MaskedArray):
                raise TypeError("a masked array has elements that are not there")
            return np.asarray(value)
        except Exception as error:
            raise GeneratorError(
                f"The function given to from_function raised {type(error).__name__} for block {index}: {error}. "
                "Expected an array with the block's elements. Correct the function; the error above says where."
            ) from error

    def _check(self, row: int, index: tuple[int, ...], value: Array) -> None:
        """Raise unless the array is what was promised for this block."""
        try:
            kind = data_dtype(value.dtype)
            check_block(value, index, tuple(self.pattern.block_shapes[row].tolist()), self.pattern.symmetry)
        except InputError as error:
            raise GeneratorError(
                f"What the function given to from_function made for block {index} cannot be used. {error}"
            ) from None
        if kind.kind == "c" and self.dtype.kind != "c":
            raise GeneratorError(
                f"The function given to from_function returned {kind.name} elements for block {index}. Expected "
                f"{self.dtype.name}, as from_function was told. Pass dtype='{kind.name}' to it."
            )
        norm, bound = frobenius_norm(value), float(self.pattern.norms[row])
        if norm > bound * (1 + NORM_LENIENCE):
            raise GeneratorError(
                f"The function given to from_function made block {index} with norm {norm:.6g}. The pattern promises at "
                f"most {bound:.6g}, and products may have been dropped because of it. Correct the pattern's norms."
            )


def make_generated(
    function: Maker,
    pattern: Pattern,
    dtype: npt.DTypeLike,
    cost: float | Sequence[float] | Floats,
    thread_safe: bool,
    engine: Engine,
    working_bytes: int = 0,
) -> BlockTensor:
    """A tensor whose blocks are made when they are needed."""
    if not callable(function):
        raise InputError(
            f"from_function was given {function!r:.60}, which is no function. Expected make_block(block_index), which "
            "returns the block as an array. Pass a function."
        )
    kind, seconds, besides = parse_dtype(dtype), parse_cost(cost, pattern), parse_working_bytes(working_bytes)
    return BlockTensor(pattern, Generated(pattern, function, kind, bool(thread_safe), seconds, besides), engine)


def parse_cost(cost: Any, pattern: Pattern) -> Floats:
    """Seconds for each block, from one number for all or one for each."""
    try:
        seconds = np.broadcast_to(np.asarray(cost, np.float64), pattern.nnz_blocks)
    except (TypeError, ValueError):
        seconds = np.full(1, np.nan)
    if not (seconds >= 0).all() or not np.isfinite(seconds).all():
        raise InputError(
            f"cost={cost!r:.60} is no cost of {pattern.nnz_blocks} blocks. Expected seconds per block: one number >= "
            "0, or one for each block in the order of pattern.index. Correct it."
        )
    return seconds


def parse_working_bytes(working_bytes: Any) -> int:
    """Bytes that making a block takes besides it."""
    remedy = "Pass bytes as an integer, or leave it away."
    number = parse_integer(working_bytes, "working_bytes=", remedy)
    if number < 0:
        raise InputError(f"working_bytes={number} is no amount of memory. Expected at least 0. {remedy}")
    return number
