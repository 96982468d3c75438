"""Integers that come from a user: tile sizes, labels, block indices, modes."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError

__all__ = ["parse_integer", "parse_integers", "parse_seed"]


def parse_integer(value: object, what: str, remedy: str) -> int:
    """Return `value` as an int, or raise an `InputError` that names `what` and ends with `remedy`."""
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise InputError(f"{what} is {value!r}. It must be an integer. {remedy}")


def parse_count(name: str, value: object, noun: str) -> int:
    """How many of something a user asks for: one or more."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value < 1:  # type: ignore[operator]
        raise InputError(f"{name}={value!r} is no number of {noun}. Expected an integer >= 1. Correct it.")
    return operator.index(value)  # type: ignore[arg-type]


def parse_seed(value: object) -> int:
    """A seed of random numbers."""
    number = parse_integer(value, "seed", "Pass a number such as seed=0.")
    if number < 0:
        raise InputError(f"seed={number} is negative. Expected an integer >= 0. Pass a number such as seed=0.")
    return number


def parse_integers(values: npt.ArrayLike, what: str, remedy: str) -> npt.NDArray[np.int64]:
    """Return a fresh int64 copy of `values`, of any shape; `what` and `remedy` go into the error.

    Only integer types are taken: a float tile size or a boolean index is nearly always a slip (a
    division, a mask) that silent conversion would hide.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{what} cannot be read as integers: {error}. {remedy}") from error
    if array.size == 0:  # an empty list has no type of its own
        return np.zeros(array.shape, dtype=np.int64)
    if array.dtype.kind not in "iu" or _has_bool(values):
        kind = "bool" if _has_bool(values) else str(array.dtype)
        raise InputError(f"{what} are of type {kind}: {_excerpt(array)}. Integers are expected. {remedy}")
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{what} contain {array.max()}. Integers below 2**63 are expected. {remedy}")
    return array.astype(np.int64, order="C")


def _has_bool(values: object) -> bool:
    """Whether a list contains booleans, which NumPy would turn into 0 and 1 beside integers."""
    return isinstance(values, Sequence) and any(isinstance(value, (bool, np.bool_)) for value in values)


def _excerpt(array: npt.NDArray[np.generic]) -> str:
    """The first few values of an array, for an error text."""
    flat = array.reshape(-1)
    shown = ", ".join(str(value) for value in flat[:4].tolist())
    return f"[{shown}{', ...' if flat.size > 4 else ''}]"
