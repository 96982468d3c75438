"""The exceptions tilewise raises; every one is a `TilewiseError`."""

from __future__ import annotations


class TilewiseError(Exception):
    """Base of all errors raised on purpose by tilewise."""


class InputError(TilewiseError, ValueError):
    """An argument is wrong; the text names it, what was expected and the remedy."""


class MemoryBudgetError(TilewiseError, MemoryError):
    """A memory budget that no plan can meet; the text names both sizes."""


class MissingPackageError(TilewiseError, ImportError):
    """An optional package is needed; the text names the extra that brings it."""
