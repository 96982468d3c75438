"""How the inspector's loops are compiled: without the interpreter lock, cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a loop on first use; unlike the engines' loops, these make the arrays they return."""
    return njit(nogil=True, cache=True, error_model="numpy")(function)
