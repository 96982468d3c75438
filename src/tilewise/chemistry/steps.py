"""From residuals to amplitudes: division by orbital energies, in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.contract import einsum
from tilewise.engines.folding import for_each_block
from tilewise.errors import InputError
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
        denominator = _denominator(tensor, levels, row)
        if np.abs(denominator).min() < LEAST_DENOMINATOR:
            raise InputError(
                f"An energy denominator is below {LEAST_DENOMINATOR} hartree: occupied and virtual orbitals have the "
                "same energy. Expected a gap between them. Choose another reference, or freeze these orbitals."
            )
        part /= denominator

    tensor.arena.agree(lambda: for_each_block(tensor.engine, [part.size for _, part in parts], work))
    tensor.replace_norms(tensor.arena.norms())


def _denominator(tensor: BlockTensor, levels: Sequence[Floats], row: int) -> npt.NDArray[Any]:
    tiles = tensor.pattern.index[row].tolist()
    own = [
        level[space.offsets[tile] : space.offsets[tile + 1]]
        for level, space, tile in zip(levels, tensor.spaces, tiles, strict=True)
    ]
    denominator: npt.NDArray[Any] = sum(np.ix_(*own), np.zeros(()))
    return denominator


def add_tensor(target: BlockTensor, other: BlockTensor) -> None:
    """Add a tensor with the same blocks to another, in place."""
    if not target.arena.matches(other.arena):  # other ranks own the blocks
        names = "iajb"[: target.ndim]
        einsum(f"{names}->{names}", other, out=target, beta=1)
        return
    target.arena.agree(lambda: np.add(target.arena.own, other.arena.own, out=target.arena.own))
    target.replace_norms(target.arena.norms())
