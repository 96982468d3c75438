"""What a tensor needs of an engine: somebody who runs plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tilewise.plans import Plan
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
