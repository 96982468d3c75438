"""Index ranges cut into tiles, their labels, and the selection rules the labels obey."""

from __future__ import annotations

from tilewise.spaces.selection import Rule, allowed_blocks
from tilewise.spaces.tiling import Space

__all__ = ["Rule", "Space", "allowed_blocks"]
