"""Where the blocks of a result lie in a tensor that they are added to, and how they come and go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.engines.mpi.moves import Moved, Places, carry_blocks, copy_own
from tilewise.engines.mpi.node import Node
from tilewise.engines.mpi.spread import Spread
from tilewise.plans.layout import EVERYBODY, Layout
from tilewise.tensors import BlockTensor

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Home:
    """The places of result blocks in a tensor."""

    node: Node
    """The ranks and their memory."""
    layout: Layout | None
    """The owner of each block; None if every rank has all of them."""
    places: Places
    """Where they lie."""
    sizes: Ints
    """Bytes of each."""

    @classmethod
    def of(cls, node: Node, tensor: BlockTensor, slots: Ints) -> Home:
        """Those of some blocks of a tensor."""
        storage, sizes = tensor.arena, tensor.pattern.block_sizes[slots] * tensor.dtype.itemsize
        layout = Layout(node.world.size, storage.layout.owner[slots]) if isinstance(storage, Spread) else None
        return cls(node, layout, Places.of(storage).taken(slots), sizes)

    @property
    def is_near(self) -> bool:
        """Whether this rank sees, and may change, the blocks of all ranks."""
        return self.layout is not None and self.node.world.nodes == 1

    def bring(self, layout: Layout, there: Places) -> Moved:
        """Copy each block to the rank that a layout names."""
        if self.layout is None:
            copy_own(self.places, there, layout.blocks_of(self.node.world.rank), self.sizes)
            return Moved()
        return carry_blocks(self.node, self.layout, layout, self.places, there, self.sizes)

    def bring_to_nodes(self, node_of_block: Ints, there: Places) -> Moved:
        """Copy each block to a node, or to every one; the ranks of a node take turns."""
        world, moved = self.node.world, Moved()
        for node in range(world.nodes):
            blocks = np.flatnonzero((node_of_block == node) | (node_of_block == EVERYBODY))
            first = node * world.ranks_per_node
            count = min(world.ranks_per_node, world.size - first)
            moved.add(self._taken(blocks).bring(Layout(world.size, first + blocks % count), there.taken(blocks)))
        return moved

    def take_back(self, layout: Layout, there: Places) -> Moved:
        """Copy each block back from the rank that a layout names."""
        if self.layout is not None:
            return carry_blocks(self.node, layout, self.layout, there, self.places, self.sizes)
        copy_own(there, self.places, layout.blocks_of(self.node.world.rank), self.sizes)
        self.node.world.share_parts(self.places.data, self.places.begin, self.sizes, layout.owner)
        return Moved()

    def _taken(self, blocks: Ints) -> Home:
        layout = None if self.layout is None else Layout(self.layout.ranks, self.layout.owner[blocks])
        return Home(self.node, layout, self.places.taken(blocks), self.sizes[blocks])
