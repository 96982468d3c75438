"""Engines by name, the default one, and the context manager that chooses one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from inspect import signature
from typing import Any

from tilewise.engines.current import chosen_engine, using
from tilewise.engines.device import DeviceEngine
from tilewise.engines.mpi import MpiEngine
from tilewise.engines.threads import ThreadsEngine
from tilewise.errors import InputError
from tilewise.tensors import Engine

ENGINES = ("threads", "device", "mpi")
"""Names that `engine` takes."""


@lru_cache(maxsize=1)
def _default() -> Engine:
    return ThreadsEngine()


def current_engine() -> Engine:
    """The engine that new tensors and contractions use."""
    return chosen_engine() or _default()


def make_engine(name: str, **options: Any) -> Engine:
    """An engine by its name."""
    if name not in ENGINES:
        raise InputError(f"There is no engine {name!r}. Expected one of {', '.join(ENGINES)}. Correct the name.")
    made = {"threads": ThreadsEngine, "device": DeviceEngine, "mpi": MpiEngine}[name]
    known = [option for option in signature(made).parameters if option != "blas"]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            f"The {name} engine has no option {unknown[0]!r}. Expected {', '.join(f'{option}=' for option in known)}. "
            "Correct the option."
        )
    return made(**options)


@contextmanager
def engine(name: str = "threads", **options: Any) -> Iterator[Engine]:
    """Use an engine inside a ``with`` block.

    Parameters
    ----------
    name : str
        ``"threads"``: workers of this process; ``"device"``: devices with memory of their own; ``"mpi"``: the ranks of
        a job under ``mpiexec``, each with workers of its own.
    **options
        ``workers``: how many; all cores that this process may use by default.  ``progress``: a function that is
        called every few seconds of a run with how far it has come; ``progress=print`` writes a line each time.  For
        devices: ``capacity`` and what `tilewise.engines.device.DeviceEngine` lists.

    Examples
    --------
    >>> import tilewise as tw
    >>> with tw.engine("threads", workers=1) as e:
    ...     e.workers
    1
    """
    made = make_engine(name, **options)
    try:
        with using(made):
            yield made
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            made.abandon(leaving)
        raise
