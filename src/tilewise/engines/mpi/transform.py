"""Ranks that run a transform together: O2 and C lie in the memory that the ranks of a node share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.mpi.moves import Moved, change_layout
from tilewise.engines.mpi.spread import Spread, allocate_spread
from tilewise.engines.transform.stores import Halves
from tilewise.plans.layout import Layout
from tilewise.plans.transform import Problem
from tilewise.plans.transform.deal import Deal
from tilewise.tensors import BlockTensor
from tilewise.tensors.storage import Arena

if TYPE_CHECKING:
    from tilewise.engines.mpi.engine import MpiEngine

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KIND = np.dtype(np.float64)


class SpreadHalves(Halves):
    """O2 in the memory that ranks share."""

    def __init__(self, problem: Problem, rows: Ints, columns: Ints, spread: Spread) -> None:
        super().__init__(problem, rows, columns, spread.data)
        self.start = spread.offsets.reshape(len(rows), len(columns))
        self.spread = spread


class RankTeam:
    """The ranks of an engine."""

    def __init__(self, problem: Problem, engine: MpiEngine) -> None:
        self.engine, self.node, self.world = engine, engine.node, engine.world
        self.rank = self.world.rank
        self.deal = Deal(problem, self.world.size, self.world.ranks_per_node)
        self.moved = Moved()

    @property
    def between_bytes(self) -> int:
        """Bytes that came to this rank from other nodes."""
        return self.moved.between_bytes

    def new_halves(self, rows: Ints, columns: Ints, owner: Ints, account: Account) -> Halves:
        """Blocks in the memory of their owner's node."""
        problem = self.deal.problem
        sizes = np.multiply.outer(problem.functions.sizes[rows], problem.first.sizes[columns])
        layout = Layout(self.world.size, owner.ravel())
        spread = self._allocate(layout, sizes.ravel(), account, "Half-transformed integrals")
        return SpreadHalves(problem, rows, columns, spread)

    def exchange(self, halves: Halves, account: Account) -> Halves:
        """On one node all is there once everybody has met; between nodes blocks go to who needs them."""
        assert isinstance(halves, SpreadHalves)
        if self.world.nodes == 1:
            self.world.meet(everywhere=True)
            return halves
        owner = np.broadcast_to(self.deal.column_owner[halves.columns], halves.start.shape)
        layout, source = Layout(self.world.size, owner.ravel().copy()), halves.spread
        target = self._allocate(layout, source.sizes, account, "Half-transformed integrals of other nodes")
        self.world.meet(everywhere=True)
        self.moved.add(change_layout(self.node, source, target))
        account.give(source.own.nbytes)
        return SpreadHalves(self.deal.problem, halves.rows, halves.columns, target)

    def drop_halves(self, halves: Halves, account: Account) -> None:
        """Nobody reads it any more once all have met."""
        assert isinstance(halves, SpreadHalves)
        self.world.meet(everywhere=True)
        account.give(halves.spread.own.nbytes)

    def new_result(self, account: Account) -> Arena:
        """Blocks in the memory of the node that computes them."""
        problem = self.deal.problem
        layout = Layout(self.world.size, self.deal.column_owner[problem.block_pairs[:, 0]])
        return self._allocate(layout, problem.result.block_sizes, account, "The result")

    def _allocate(self, layout: Layout, sizes: Ints, account: Account, what: str) -> Spread:
        own = int(sizes[layout.owner == self.rank].sum())
        account.take(own * KIND.itemsize, what)
        return allocate_spread(self.node, layout, sizes, KIND)

    def total(self, values: Floats) -> Floats:
        """Sums over all ranks."""
        return self.world.sum(values)

    def most(self, value: int) -> int:
        """The largest of what the ranks have."""
        return self.world.largest(value)

    def finish(self, tensor: BlockTensor) -> BlockTensor:
        """Every rank gets what is small; the rest stays with who computed it."""
        self.world.meet(everywhere=True)
        tensor.engine = self.engine
        return self.engine.settled(tensor)
