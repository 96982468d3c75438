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


class ConvergenceError(TilewiseError, RuntimeError):
    """Something was asked for that only converged amplitudes give; the text says why they are not."""


class NonFiniteError(TilewiseError, ArithmeticError):
    """Elements that are infinite or no numbers; the text names the tensor, the block and the term that made them.

    Parameters
    ----------
    text : str
        What is wrong, and the remedy.
    tensor, term : str
        Names of the tensor and of the term; empty if nobody knows.
    block : tuple of int
        The first such block.
    """

    def __init__(self, text: str, tensor: str = "", block: tuple[int, ...] = (), term: str = "") -> None:
        super().__init__(text)
        self.tensor = tensor
        self.block = block
        self.term = term


class Interrupted(TilewiseError):
    """A signal asked the run to end; the text says where it goes on.

    Parameters
    ----------
    text : str
        What happened, and the remedy.
    signal : str
        Name of the signal, such as ``"SIGTERM"``.
    """

    def __init__(self, text: str, signal: str = "") -> None:
        super().__init__(text)
        self.signal = signal
