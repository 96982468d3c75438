"""How the loops are compiled: without the interpreter lock, without reference counts, cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewise.plans.compile import compile_loop


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a loop on first use."""
    return _compile(function)


def inlined(function: Callable[..., Any]) -> Any:
    """The same, as a part of the loop that calls it: a call would copy every field of every record it is given."""
    return _compile(function, forceinline=True)


def compiled_fast(function: Callable[..., Any]) -> Any:
    """The same, for sums whose order of additions is the compiler's choice (one order, fixed when compiled)."""
    return _compile(function, fastmath={"reassoc", "contract", "nsz"})


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a loop that owns nothing.

    All arrays come from the caller, so reference counts are left out: they are atomic, and threads that share
    arrays would wait for each other at every access.  Divisions by zero do not occur and are not looked for.
    """
    return compile_loop(function, _nrt=False, **options)
