"""`Plan`: one contraction or reduction, worked out to the last cell from patterns alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewise.machine import Machine, check_machine
from tilewise.patterns import Pattern
from tilewise.plans import projection
from tilewise.plans.explain import plan_report, to_html, to_text
from tilewise.plans.work import Kernel, Operand, Product, Sum
from tilewise.trace import Trace

if TYPE_CHECKING:
    from tilewise.plans.devices import Blocked
    from tilewise.plans.phases import Phases
    from tilewise.plans.routing import Cached
    from tilewise.plans.sharing import Request, Sharing

__all__ = ["Kernel", "Operand", "Plan", "Product", "Sum"]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Plan:
    """One step: operands, result and work, as frozen arrays.

    Plans are equal if they are for the same step on equal patterns with the same tolerance and workers: what
    they do then follows.

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
    """Bytes of operands held in packed form, and of partial results, for the whole run."""
    worker_bytes: int
    """Bytes of buffers of each worker."""
    workers: int
    """Workers the projection is made for."""
    runs: list[Trace] = field(default_factory=list)
    """What was measured when the plan was run, the latest last; the one part of a plan that grows."""
    budget: int | None = None
    """Bytes that a run may add; None if nobody asked for a limit and everything is in memory."""
    phases: Phases | None = None
    """How the run keeps to the budget; None if it needs no phases."""
    placement: Blocked | Cached | None = None
    """How a product is done on devices; None if it runs on this computer."""
    request: Request | None = None
    """How ranks are asked to share it, whether there are several or not; None if nobody said."""
    sharing: Sharing | None = None
    """How ranks share it; None if one does it all."""
    scratch: str | None = None
    """Folder for a result that does not fit in memory; the system's temporary one if None."""
    machine: Machine | None = None
    """Where the projection is made for; None for this computer, looked up when a figure is asked for."""

    @property
    def result_bytes(self) -> int:
        """Bytes of the result."""
        return self.result.nbytes(self.dtype)

    @property
    def spills(self) -> bool:
        """Whether the result goes to a scratch file."""
        return self.phases is not None and self.phases.spills

    @property
    def kept_bytes(self) -> int:
        """Bytes of the result that stay in memory after the run, of a rank: none if it goes to a scratch file."""
        if self.sharing is not None:
            return self.sharing.kept_bytes
        return 0 if self.spills else self.result_bytes

    @property
    def peak_bytes(self) -> int:
        """Bytes that the run adds at its peak, on one rank if several share it: result, buffers, what is fetched."""
        if self.sharing is not None:
            return self.sharing.largest_peak(self.workers)
        if self.phases is not None:
            return self.phases.peak_bytes
        return self.result_bytes + self.packed_bytes + self.worker_bytes * self.workers

    @property
    def tasks(self) -> int:
        """Pieces of work that are handed to workers."""
        if self.placement is not None:
            return self.placement.updates
        if isinstance(self.work, Product):
            return len(self.work.cells.task_ptr) - 1
        return len(self.work.task_ptr) - 1

    @property
    def products(self) -> int:
        """Block products (or block sums) that are done."""
        return self.work.products if isinstance(self.work, Product) else len(self.work.source)

    @property
    def calls(self) -> int:
        """Dense products after neighbouring k blocks were merged and large result blocks cut into cells."""
        if not isinstance(self.work, Product):
            return len(self.work.source)
        counts = self.work.cells.end - self.work.cells.begin
        # The register tile is called for each batch element; the others loop over batches inside.
        batch = self.work.row_strips.batch[self.work.cells.row] if self.kernel == "packed" else 1
        return int((counts * batch).sum())

    @property
    def seconds(self) -> float:
        """Projected time of a run, from the machine's rates."""
        if self.sharing is not None:
            return self.sharing.seconds(self._machine())
        return projection.project_seconds(self, self._machine())

    @property
    def moved_bytes(self) -> int:
        """Bytes that a run moves between memory and the caches near the workers.

        Operands read, packed panels written and read (once for each group of columns), result written; see
        `tilewise.plans.projection.project_moved`.
        """
        return projection.project_moved(self, self._machine())

    @property
    def lower_bound_bytes(self) -> int:
        """Bytes that any order of the same products moves at the least; see `tilewise.costs.bounds`."""
        return projection.project_bound(self, self._machine())

    @property
    def imbalance(self) -> float:
        """The largest worker's share of the work over the mean, before workers take over tasks of others."""
        return projection.project_imbalance(self)

    def on(self, machine: Machine) -> Plan:
        """The plan with its projection made for another machine."""
        check_machine(machine)
        return replace(self, machine=machine)

    def _machine(self) -> Machine:
        return Machine.measured() if self.machine is None else self.machine

    def explain(self) -> str:
        """What the plan does and costs, as a table in plain text; after a run with the measured figures beside it."""
        return to_text(plan_report(self, self._machine()))

    def _repr_html_(self) -> str:
        return to_html(plan_report(self, self._machine()))

    def _key(self) -> tuple[Any, ...]:
        """What a plan follows from."""
        return self.label, self.dtype, self.tolerance, self.workers, tuple(o.pattern for o in self.operands)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return (
            f"Plan({self.label!r}, {self.dtype.name}, {self.flops:.3g} flops, {self.products} block products, "
            f"{self.kernel})"
        )
