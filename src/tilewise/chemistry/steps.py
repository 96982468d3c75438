"""From residuals to amplitudes: division by orbital energies, in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tilewise.contract import einsum
from tilewise.engines.folding import for_each_block
from tilewise.errors import InputError
from tilewise.plans.budget import no_budget
from tilewise.tensors import BlockTensor

__all__ = ["LEAST_DENOMINATOR", "add_tensor", "divide"]

Floats = npt.NDArray[np.float64]

LEAST_DENOMINATOR = 1e-10
"""Smallest difference of orbital energies to divide by, in hartree."""


def divide(tensor: BlockTensor, levels: Sequence[Floats]) -> None:
    """Divide each element by the sum of the levels of its modes, in place.

    Parameters
    ----------
    tensor : BlockTensor
        In memory.
    levels : sequence of array
        A number for each element of each mode: e_i, -e_a, e_j, -e_b give the denominators of t2[iajb].
    """
    parts = list(tensor.arena.parts(tensor.pattern))

    def work(number: int) -> None:
        row, part = parts[number]
        first, *others = _levels_of(tensor, levels, row)
        rest = sum(np.ix_(*others), np.zeros(()))
        for level, piece in zip(first, part, strict=True):  # a block of denominators would be as large as the block
            denominator = level + rest
            if np.abs(denominator).min() < LEAST_DENOMINATOR:
                raise InputError(
                    f"An energy denominator is below {LEAST_DENOMINATOR} hartree: occupied and virtual orbitals have "
                    "the same energy. Expected a gap between them. Choose another reference, or freeze these orbitals."
                )
            piece /= denominator

    tensor.arena.agree(lambda: for_each_block(tensor.engine, [part.size for _, part in parts], work))
    tensor.replace_norms(tensor.arena.norms())


def _levels_of(tensor: BlockTensor, levels: Sequence[Floats], row: int) -> list[Floats]:
    """The levels of the elements of each mode of a block."""
    tiles = tensor.pattern.index[row].tolist()
    return [
        level[space.offsets[tile] : space.offsets[tile + 1]]
        for level, space, tile in zip(levels, tensor.spaces, tiles, strict=True)
    ]


def add_tensor(target: BlockTensor, other: BlockTensor) -> None:
    """Add a tensor with the same blocks to another, in place."""
    if not target.arena.matches(other.arena):  # other ranks own the blocks
        names = "iajb"[: target.ndim]
        einsum(f"{names}->{names}", other, out=target, beta=1, memory=no_budget())
        return
    target.arena.agree(lambda: np.add(target.arena.own, other.arena.own, out=target.arena.own))
    target.replace_norms(target.arena.norms())
