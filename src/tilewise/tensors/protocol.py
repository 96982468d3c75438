"""What a tensor needs of an engine: somebody who runs plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy.typing as npt

if TYPE_CHECKING:
    from tilewise.machine import Machine
    from tilewise.patterns import Pattern
    from tilewise.plans import Plan
    from tilewise.tensors.storage import Arena, Result
    from tilewise.tensors.tensor import BlockTensor

Scalar = int | float | complex


class Engine(Protocol):
    """Runs plans; a tensor's operators call the engine the tensor holds."""

    @property
    def name(self) -> str:
        """What `tilewise.engine` calls it."""

    @property
    def workers(self) -> int:
        """How many workers share a plan."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""

    @property
    def machine(self) -> Machine:
        """The computer that plans are made for."""

    @property
    def ranks(self) -> int:
        """How many processes run the same script."""

    @property
    def ranks_per_node(self) -> int:
        """How many of them share a node."""

    @property
    def replicates(self) -> bool:
        """Whether each of them gets all blocks of a new tensor."""

    def allocate(self, pattern: Pattern, dtype: npt.DTypeLike, *, zero: bool) -> Arena:
        """Storage for the blocks of a new tensor; `zero=False` leaves them uninitialised."""

    def spread(self, tensor: BlockTensor, layout: str) -> BlockTensor:
        """The tensor with its blocks given to ranks in another way."""

    def agree(self, work: Callable[[], Result], *, once: bool = False) -> Result | None:
        """Have every process do something, or the first one; if one fails, all raise its error."""

    def of_first(self, value: Result) -> Result:
        """What the first process has, on every process: what each worked out for itself may differ."""

    def least(self, value: int) -> int:
        """The least of what the processes have, on every process."""

    def abandon(self, error: BaseException, message: str = "") -> None:
        """Told that this process gives up, so that no other waits for it; the message is for people."""

    def prepare(self, plan: Plan) -> Plan:
        """The plan as this engine runs it."""

    def run(
        self,
        plan: Plan,
        operands: Sequence[BlockTensor],
        *,
        out: BlockTensor | None = None,
        alpha: Scalar = 1,
        beta: Scalar = 0,
    ) -> BlockTensor:
        """Return ``alpha * (what the plan says)``, or add it to ``beta * out`` in place."""
