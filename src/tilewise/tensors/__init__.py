"""Block-sparse tensors: patterns with elements."""

from __future__ import annotations

from tilewise.tensors.protocol import Engine
from tilewise.tensors.tensor import BlockTensor

__all__ = ["BlockTensor", "Engine"]
