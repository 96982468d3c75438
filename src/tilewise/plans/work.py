"""The work of a plan: operands with all their blocks, and what is done with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tilewise.expressions import Contraction, Reduction
from tilewise.patterns import Expansion, Pattern
from tilewise.plans.cells import Cells, Strips
from tilewise.plans.sides import Modes, Numbering, Side

Ints = npt.NDArray[np.int64]
Kernel = Literal["packed", "inplace", "gemm", "loops", "device", "reduction"]
"""What runs a plan: a compiled loop, or devices."""


def freeze(value: Any) -> None:
    """Make the arrays of a record read-only, and those of the records in it."""
    for name in value.__slots__:
        entry = getattr(value, name)
        if isinstance(entry, np.ndarray):
            entry.setflags(write=False)
        elif isinstance(entry, (Side, Strips, Cells, Numbering, Choices)):
            freeze(entry)


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a plan: its pattern and all of its blocks."""

    pattern: Pattern
    """The pattern the plan was made for."""
    blocks: Expansion
    """Every block with the stored block it comes from."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What settles the bits of a product, chosen once from the whole patterns.

    A part of the product that is planned by itself, because a budget cuts the whole, takes them over.
    """

    swapped: bool
    """Whether the rows of the product come from the right operand."""
    kernel: Kernel
    """The compiled loop."""
    drop: float
    """Products whose norm bound is not above it are left out; negative keeps all."""
    tiles: Numbering
    """The k tiles."""
    segment: Ints
    """Segment of each k tile: terms of different segments are never summed in registers together."""
    gemm_strip: int
    """Rows and columns of a cell that goes to BLAS."""
    pieces: int
    """Pieces that the segments are cut into, each summed from zero and then added up in order."""

    @property
    def segments(self) -> int:
        """Number of segments."""
        return int(self.segment[-1]) + 1 if len(self.segment) else 0


@dataclass(frozen=True, slots=True)
class Product:
    """The work of a product of two operands."""

    contraction: Contraction
    """The index groups."""
    choices: Choices
    """What settles the bits of the result."""
    rows: Side
    """The operand that gives the rows, ordered by panel."""
    cols: Side
    """The operand that gives the columns, ordered by panel."""
    result: Modes
    """The result's modes: rows (free), columns (inner), batch."""
    row_strips: Strips
    """Ranges of the row panels."""
    col_strips: Strips
    """Ranges of the column panels."""
    cells: Cells
    """What is computed, in order."""
    terms: npt.NDArray[np.int32]
    """Packed: start in the row panel, start in the column panel, length, in reals, and mark (see `joins.Joined`).
    Otherwise: row block, column block, length in elements of k, mark."""
    products: int
    """Block products that are done."""
    screened_products: int
    """Block products that were dropped."""

    def __post_init__(self) -> None:
        freeze(self)

    @property
    def swapped(self) -> bool:
        """Whether the rows of the product come from the right operand."""
        return self.choices.swapped


@dataclass(frozen=True, slots=True)
class Sum:
    """The work of a reduction of one operand: each result block gathers from some operand blocks."""

    reduction: Reduction
    """The indices."""
    kept: tuple[tuple[int, ...], ...]
    """For each mode of the result, the operand's modes behind it (several for a diagonal)."""
    summed: tuple[tuple[int, ...], ...]
    """For each summed index, the operand's modes behind it."""
    ptr: Ints
    """First source of each result block; one more at the end."""
    source: Ints
    """Operand blocks, ordered by result block."""
    task_ptr: Ints
    """First result block of each task; one more at the end."""
    elements: Ints
    """Operand elements that each result block gathers."""

    def __post_init__(self) -> None:
        freeze(self)
