"""Blocks as a device sees them: matrices, or stacks of matrices where there are batch indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.kernels.squares import block_squares
from tilewise.engines.targets import Target
from tilewise.patterns import Expansion, Pattern
from tilewise.plans import Plan, Product
from tilewise.plans.sides import Modes, Side
from tilewise.tensors import BlockTensor

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Reader:
    """Makes matrices of the blocks of one operand that is in memory: rows (batch, m, k), columns (batch, k, n)."""

    def __init__(self, tensor: BlockTensor, blocks: Expansion, side: Side, is_row: bool) -> None:
        modes = side.modes
        self.blocks, self.arena, self.pattern = blocks, tensor.arena, tensor.pattern
        self.groups = (modes.batch, modes.free, modes.inner) if is_row else (modes.batch, modes.inner, modes.free)

    def matrix(self, block: int) -> Array:
        """One block; a view of the tensor's elements where their order allows it."""
        stored = int(self.blocks.source[block])
        shape = self.pattern.block_shapes[stored]
        begin = int(self.arena.offsets[stored])
        values = self.arena.data[begin : begin + int(np.prod(shape))].reshape(shape)
        values = values.transpose(self.blocks.perms[self.blocks.perm[block]])
        batch, first, second = self.groups
        sizes = values.shape
        values = values.transpose(batch + first + second)
        edges = [int(np.prod([sizes[mode] for mode in group])) for group in self.groups]
        values = values.reshape(edges if batch else edges[1:])
        return -values if self.blocks.sign[block] < 0 else values


def make_readers(plan: Plan, work: Product, operands: Sequence[BlockTensor]) -> tuple[Reader, Reader]:
    """Readers of the left and of the right operand."""
    sides = (work.cols, work.rows) if work.swapped else (work.rows, work.cols)
    return (
        Reader(operands[0], plan.operands[0].blocks, sides[0], not work.swapped),
        Reader(operands[1], plan.operands[1].blocks, sides[1], work.swapped),
    )


class Sink:
    """Adds matrices that come back from devices to the result.

    Parameters
    ----------
    result : Pattern
        The result's blocks.
    modes : Modes
        The result's modes: rows (free), columns (inner), batch.
    target : Target
        Where they go.
    factor : number
        What they are multiplied by.
    """

    def __init__(self, result: Pattern, modes: Modes, target: Target, factor: Any) -> None:
        self.result, self.modes, self.target, self.factor = result, modes, target, factor
        self.squares: Floats = np.zeros(result.nnz_blocks)

    def edges(self, block: int) -> tuple[int, ...]:
        """Shape of the matrix of a result block."""
        shape = self.result.block_shapes[block].tolist()
        groups = (self.modes.batch, self.modes.free, self.modes.inner)
        edges = [int(np.prod([shape[mode] for mode in group])) for group in groups]
        return tuple(edges if self.modes.batch else edges[1:])

    def add(self, block: int, matrix: Array) -> None:
        """Take a finished result block."""
        order = self.modes.batch + self.modes.free + self.modes.inner
        shape = self.result.block_shapes[block].tolist()
        values = matrix.reshape([shape[mode] for mode in order]).transpose(np.argsort(order))
        slots, arena = self.target.slots, self.target.tensor.arena
        begin = int(arena.offsets[block if slots is None else slots[block]])
        flat = arena.data[begin : begin + int(np.prod(shape))]
        own = flat.reshape(shape)
        if self.factor != 1:
            values = values * self.factor
        if self.target.fresh:
            own[...] = values
        else:
            own += values
        self.squares[block] = block_squares(flat, np.zeros(1, np.int64), np.array([flat.size]))[0]
