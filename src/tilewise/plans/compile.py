"""How loops are compiled: without the interpreter lock, cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a loop of the inspector on first use; unlike the engines' loops, these make the arrays they return."""
    return compile_loop(function)


def compile_loop(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a loop with some of Numba's options; where nothing can be written, every process compiles for itself."""
    try:
        return njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's takes files
        return njit(nogil=True, error_model="numpy", **options)(function)
