"""Which blocks of a tensor are non-zero, a norm bound for each, and the tensor's permutational symmetry."""

from __future__ import annotations

from tilewise.patterns.algebra import (
    above,
    equal_structure,
    intersection,
    scaled,
    transposed,
    union,
    without_symmetry,
)
from tilewise.patterns.expansion import Expansion, expand
from tilewise.patterns.permutation import Symmetry
from tilewise.patterns.structure import Pattern

__all__ = [
    "Expansion",
    "Pattern",
    "Symmetry",
    "above",
    "equal_structure",
    "expand",
    "intersection",
    "scaled",
    "transposed",
    "union",
    "without_symmetry",
]
