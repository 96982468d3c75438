"""Who runs a transform: one process, or ranks of which each has a share."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.transform.stores import Halves, release
from tilewise.plans.transform import Problem
from tilewise.plans.transform.deal import Deal
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.memory import Memory
from tilewise.tensors.storage import Arena, block_offsets

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KIND = np.dtype(np.float64)


class Team(Protocol):
    """Those who run a transform together, as one of them sees them."""

    deal: Deal
    """Who does what."""
    rank: int
    """Which of them this is."""

    @property
    def between_bytes(self) -> int:
        """Bytes that came to this one from other nodes."""

    def new_halves(self, rows: Ints, columns: Ints, owner: Ints, account: Account) -> Halves:
        """Room for O2 of some pairs, each block with its owner."""

    def exchange(self, halves: Halves, account: Account) -> Halves:
        """O2 where this one can read all rows of its columns, once all have made their part."""

    def drop_halves(self, halves: Halves, account: Account) -> None:
        """Let O2 go once all are done with it."""

    def new_result(self, account: Account) -> Arena:
        """Room for C, each block with the owner of its leading pair."""

    def total(self, values: Floats) -> Floats:
        """Sums over all of them."""

    def most(self, value: int) -> int:
        """The largest of what they have."""

    def finish(self, tensor: BlockTensor) -> BlockTensor:
        """The result as the engine keeps tensors, once all are done."""


class Alone:
    """One process."""

    rank = 0
    between_bytes = 0

    def __init__(self, problem: Problem, engine: Engine, memory: Memory) -> None:
        self.deal, self.engine, self.memory = Deal(problem), engine, memory

    def new_halves(self, rows: Ints, columns: Ints, owner: Ints, account: Account) -> Halves:
        """Memory of this process."""
        elements = Halves.elements(self.deal.problem, rows, columns)
        data = self._allocate(elements, account, "Half-transformed integrals")
        return Halves(self.deal.problem, rows, columns, data)

    def _allocate(self, elements: int, account: Account, what: str) -> Floats:
        """Memory that is kept for the next transform."""
        account.take(KIND.itemsize * elements, what)
        return self.memory.empty(elements, KIND)

    def exchange(self, halves: Halves, account: Account) -> Halves:
        """Everything is here."""
        return halves

    def drop_halves(self, halves: Halves, account: Account) -> None:
        """Nobody else has it."""
        release(account, halves.data)
        halves.data = np.empty(0)

    def new_result(self, account: Account) -> Arena:
        """Memory of this process."""
        pattern = self.deal.problem.result
        return Arena(self._allocate(pattern.nnz_elements, account, "The result"), block_offsets(pattern))

    def total(self, values: Floats) -> Floats:
        """What there is."""
        return values

    def most(self, value: int) -> int:
        """What there is."""
        return value

    def finish(self, tensor: BlockTensor) -> BlockTensor:
        """The tensor itself."""
        tensor.engine = self.engine
        return tensor
