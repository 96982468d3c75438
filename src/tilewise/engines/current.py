"""Which engine is in use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tilewise.tensors import Engine

_current: ContextVar[Engine | None] = ContextVar("tilewise_engine", default=None)


def chosen_engine() -> Engine | None:
    """The engine that was chosen here; None for the default."""
    return _current.get()


@contextmanager
def using(engine: Engine | None) -> Iterator[None]:
    """Use an engine inside a ``with`` block; None for the default."""
    token = _current.set(engine)
    try:
        yield
    finally:
        _current.reset(token)
