"""The exceptions tilewise raises; every one is a `TilewiseError`."""

from __future__ import annotations


class TilewiseError(Exception):
    """Base of all errors raised on purpose by tilewise."""


class InputError(TilewiseError, ValueError):
    """An argument is wrong; the text names it, what was expected and the remedy."""


class MemoryBudgetError(TilewiseError, MemoryError):
    """A memory budget that no plan can meet; the text names both sizes.

    Parameters
    ----------
    text : str
        What is wrong, and the remedy.
    budget : int
        Bytes that were allowed.
    least_bytes : int
        The smallest budget that would do; 0 if nobody knows.
    """

    def __init__(self, text: str, budget: int = 0, least_bytes: int = 0) -> None:
        super().__init__(text)
        self.budget = budget
        self.least_bytes = least_bytes


class GeneratorError(TilewiseError, RuntimeError):
    """A function that makes blocks failed or made a block that cannot be used; the text names the block."""


class StorageError(TilewiseError, OSError):
    """A file cannot be written or read; the text names it and the cause."""


class MissingPackageError(TilewiseError, ImportError):
    """An optional package is needed; the text names the extra that brings it."""
