"""The default engine: one context variable, and the context manager that sets it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from tilewise.engines.threads import ThreadsEngine
from tilewise.errors import InputError
from tilewise.tensors import Engine

ENGINES = ("threads",)
"""Names that `engine` takes."""

_current: ContextVar[Engine | None] = ContextVar("tilewise_engine", default=None)


@lru_cache(maxsize=1)
def _default() -> Engine:
    return ThreadsEngine()


def current_engine() -> Engine:
    """The engine that new tensors and contractions use."""
    return _current.get() or _default()


def make_engine(name: str, **options: Any) -> Engine:
    """An engine by its name."""
    if name not in ENGINES:
        raise InputError(f"There is no engine {name!r}. Expected one of {', '.join(ENGINES)}. Correct the name.")
    unknown = sorted(set(options) - {"workers"})
    if unknown:
        raise InputError(f"The threads engine has no option {unknown[0]!r}. Expected workers=. Correct the option.")
    return ThreadsEngine(**options)


@contextmanager
def engine(name: str = "threads", **options: Any) -> Iterator[Engine]:
    """Use an engine inside a ``with`` block.

    Parameters
    ----------
    name : str
        ``"threads"``: workers of this process.
    **options
        ``workers``: how many; all cores that this process may use by default.

    Examples
    --------
    >>> import tilewise as tw
    >>> with tw.engine("threads", workers=1) as e:
    ...     e.workers
    1
    """
    token = _current.set(make_engine(name, **options))
    try:
        yield current_engine()
    finally:
        _current.reset(token)
