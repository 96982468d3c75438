"""Index ranges cut into tiles, their labels, the selection rules the labels obey, and pairs of elements."""

from __future__ import annotations

from tilewise.spaces.pairs import Pairs
from tilewise.spaces.selection import Rule, allowed_blocks
from tilewise.spaces.tiling import Space

__all__ = ["Pairs", "Rule", "Space", "allowed_blocks"]
