"""Numbers that a user gives along with tensors: factors, thresholds, growths."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewise.errors import InputError
from tilewise.plans.propagation import nonnegative
from tilewise.tensors.protocol import Scalar

NUMBERS = (int, float, complex, np.number)
"""What counts as a number."""


def parse_factor(name: str, value: Any, dtype: np.dtype[Any]) -> Scalar:
    """A finite factor of elements of the given type; `name` goes into the error.

    A complex factor of real elements is refused unless it is real.
    """
    if type(value) is int and -9 < value < 9:  # what most calls give
        return value
    size = _size(value)
    if not size <= float(np.finfo(dtype).max):
        raise InputError(
            f"{name}={value!r} is no factor of {dtype.name} elements. Expected a finite number that the type can hold. "
            "Check how it was computed."
        )
    number = value.item() if isinstance(value, np.number) else value
    if isinstance(number, np.number):  # long doubles are no Python numbers
        number = complex(number) if np.iscomplexobj(number) else float(number)
    if isinstance(number, complex) and dtype.kind != "c":
        if number.imag:
            raise InputError(
                f"{name}={value!r} is complex, but the elements are {dtype.name}. Expected a real number. Make the "
                "tensors complex with astype('complex128') first."
            )
        return number.real
    return number  # type: ignore[no-any-return]


def _size(value: Any) -> float:
    """The absolute value, or NaN if there is none."""
    if not isinstance(value, NUMBERS):
        return math.nan
    try:
        return abs(complex(value))
    except OverflowError:
        return math.nan


def parse_bound(name: str, value: Any, remedy: str) -> float:
    """A real number >= 0, perhaps infinite; `name` and `remedy` go into the error."""
    if (number := nonnegative(value)) is None:
        raise InputError(f"{name}={value!r:.40} is no bound. Expected a number >= 0. {remedy}")
    return number
