"""Tensors that are not there yet: a plan can be made for what will be on disk or be made on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tilewise.errors import TilewiseError
from tilewise.patterns import Pattern
from tilewise.tensors.protocol import Engine
from tilewise.tensors.tensor import BlockTensor


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Stands for a storage that will be outside of memory."""

    dtype: np.dtype[Any]
    """Element type."""

    @property
    def parallel(self) -> bool:
        """As files are."""
        return True

    def read(self, row: int, out: npt.NDArray[Any]) -> NoReturn:
        """There is nothing to read."""
        raise TilewiseError(
            f"Block {row} of a tensor that only stands for one was read. Expected plans alone. Pass the tensor itself."
        )


def make_elsewhere(pattern: Pattern, engine: Engine, dtype: npt.DTypeLike = np.float64) -> BlockTensor:
    """A tensor for plans whose elements will be outside of memory."""
    return BlockTensor(pattern, Elsewhere(np.dtype(dtype)), engine)
