"""`Plan`: one contraction or reduction, worked out to the last cell from patterns alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from tilewise.expressions import Contraction, Reduction
from tilewise.patterns import Expansion, Pattern
from tilewise.plans.cells import Cells, Strips
from tilewise.plans.sides import Modes, Side
from tilewise.trace import Trace

Ints = npt.NDArray[np.int64]

Kernel = Literal["packed", "gemm", "loops", "reduction"]


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a plan: its pattern and all of its blocks."""

    pattern: Pattern
    """The pattern the plan was made for."""
    blocks: Expansion
    """Every block with the stored block it comes from."""


@dataclass(frozen=True, slots=True)
class Product:
    """The work of a product of two operands."""

    contraction: Contraction
    """The index groups."""
    swapped: bool
    """Whether the rows of the product come from the right operand."""
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
    """Packed: start in the row panel, start in the column panel, length, in reals.
    Otherwise: row block, column block, length in elements of k."""
    products: int
    """Block products that are done."""
    screened_products: int
    """Block products that were dropped."""


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
    flops: npt.NDArray[np.float64]
    """Additions of each result block."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: operands, result and work, as frozen arrays.

    Examples
    --------
    >>> import tilewise as tw
    >>> i = tw.Space([2, 3], name="i")
    >>> plan = tw.plan("ij,jk->ik", tw.Pattern.dense((i, i)), tw.Pattern.dense((i, i)))
    >>> plan.flops, plan.result.nnz_blocks
    (250, 4)
    """

    label: str
    """The step as an einsum string."""
    operands: tuple[Operand, ...]
    """The operands in the order of the expression."""
    result: Pattern
    """Blocks of the result and bounds on their norms."""
    dtype: np.dtype[np.generic]
    """Element type of the result."""
    kernel: Kernel
    """Which compiled loop runs it."""
    work: Product | Sum
    """What is to be done."""
    flops: int
    """Floating-point operations that are done."""
    screened_flops: int
    """Floating-point operations saved by screening."""
    tolerance: float | None
    """The tolerance asked for."""
    dropped_bound: float
    """Bound on the Frobenius norm of everything dropped."""
    packed_bytes: int
    """Bytes of operands held in packed form for the whole run."""
    worker_bytes: int
    """Bytes of buffers of each worker."""
    workers: int
    """Workers the projection is made for."""
    runs: list[Trace] = field(default_factory=list, compare=False, repr=False)
    """What was measured when the plan was run, the latest last; the one part of a plan that grows."""

    @property
    def result_bytes(self) -> int:
        """Bytes of the result."""
        return self.result.nbytes(self.dtype)

    @property
    def peak_bytes(self) -> int:
        """Bytes that the run adds at its peak: the result and all buffers."""
        return self.result_bytes + self.packed_bytes + self.worker_bytes * self.workers

    @property
    def tasks(self) -> int:
        """Pieces of work that are handed to workers."""
        if isinstance(self.work, Product):
            return len(self.work.cells.task_ptr) - 1
        return len(self.work.ptr) - 1

    @property
    def products(self) -> int:
        """Block products (or block sums) that are done."""
        return self.work.products if isinstance(self.work, Product) else len(self.work.source)

    @property
    def calls(self) -> int:
        """Dense products after neighbouring k blocks were merged."""
        return len(self.work.terms) if isinstance(self.work, Product) else len(self.work.source)
