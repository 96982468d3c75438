"""Amplitudes that a user gives to start from: checked before the integrals are made, put in their place afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.hamiltonian import assembled, handed_out
from tilewise.chemistry.method_plan import INDICES
from tilewise.chemistry.reference import Turns, turn, turned_tensor
from tilewise.chemistry.spaces import OrbitalSpaces
from tilewise.engines.folding import find_block
from tilewise.errors import InputError
from tilewise.factories import zeros
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor, Engine

__all__ = ["Start"]

Floats = npt.NDArray[np.float64]
Given = BlockTensor | npt.NDArray[Any] | None
Reader = Callable[[tuple[int, ...]], Floats]
"""Gives blocks [i, a] or [i, j, a, b] of amplitudes."""

NOTHING, ARRAY, TENSOR = "nothing", "an array", "a BlockTensor"
"""What a user may give."""


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Amplitudes as a user has them, by name; what is missing is zero."""

    given: dict[str, Given]
    """Arrays, on the first rank alone, and tensors in PySCF's order of modes; empty once they are placed."""
    kinds: Mapping[str, str]
    """What the first rank was given of each."""
    spaces: OrbitalSpaces
    """The orbitals that they are over."""

    @classmethod
    def of(cls, names: Sequence[str], t1: Any, t2: Any, spaces: OrbitalSpaces, engine: Engine) -> Start | None:
        """What a method can start from, None if nothing was given; arrays are those of the first rank."""
        found: dict[str, Any] = {"t1": t1, "t2": t2}
        kinds = engine.of_first({name: _kind(found[name]) for name in names})

        def parse() -> dict[str, Given]:
            for name in names:
                _check_alike(name, _kind(found[name]), kinds[name], engine.rank)
            own = [name for name in names if kinds[name] == TENSOR or engine.rank == 0]
            return {name: _parse(name, found[name], _modes(name, spaces)) for name in own}

        given = engine.agree(parse)
        assert given is not None
        return None if set(kinds.values()) == {NOTHING} else cls(given, kinds, spaces)

    def placed(self, wanted: OrbitalSpaces, turns: Turns | None, engine: Engine) -> dict[str, BlockTensor]:
        """The amplitudes of a method, over orbitals that those of the user are turned into; these are let go of."""
        return {name: self._placed(name, wanted, turns, engine) for name in self.kinds}

    def _placed(self, name: str, wanted: OrbitalSpaces, turns: Turns | None, engine: Engine) -> BlockTensor:
        pattern, kind, value = wanted.pattern(INDICES[name]), self.kinds[name], self.given.pop(name, None)
        if kind == NOTHING:
            return zeros(pattern=pattern)
        if kind == ARRAY and engine.rank > 0:  # what others have may be over orbitals of another sign or turn
            return handed_out(pattern, None, engine)
        read = self._reader(name, value, wanted, turns)
        place = handed_out if kind == ARRAY and engine.ranks > 1 else assembled
        return place(pattern, read if name == "t1" else _symmetric(read), engine)

    def _reader(self, name: str, value: Given, wanted: OrbitalSpaces, turns: Turns | None) -> Reader:
        orders = [space.order for space in _modes(name, self.spaces)]
        if isinstance(value, BlockTensor):
            if turns is not None:
                paired = value if value.ndim == 2 else value.transpose(0, 2, 1, 3)
                value = turned_tensor(paired, turns, self.spaces, wanted, reproducible=True)
            return _block_reader(value)
        array = np.asarray(value)
        if turns is not None:
            array, orders = turn(array[np.ix_(*orders)], turns), [np.arange(len(order)) for order in orders]
        modes = zip(orders, _modes(name, wanted), strict=True)
        parts = [np.split(order, space.offsets[1:-1]) for order, space in modes]

        def read(index: tuple[int, ...]) -> Floats:
            where = np.ix_(*(part[tile] for part, tile in zip(parts, index, strict=True)))
            return array[where].astype(np.float64, copy=False)

        return read


def _kind(value: Any) -> str:
    if value is None:
        return NOTHING
    return TENSOR if isinstance(value, BlockTensor) else ARRAY


def _check_alike(name: str, kind: str, first: str, rank: int) -> None:
    """Raise if a rank was given what does not go with what the first one was given."""
    if kind == first or (kind, first) == (NOTHING, ARRAY):
        return
    raise InputError(
        f"Rank {rank} was given {kind} as {name}=, and the first one {first}. Expected the same tensor on every rank, "
        "of which each has a part, or an array on the first. Pass the tensor on all, or what to_pyscf() gives."
    )


def _modes(name: str, spaces: OrbitalSpaces) -> tuple[Space, ...]:
    """The spaces of amplitudes in PySCF's order."""
    half = len(INDICES[name]) // 2
    return (spaces.occ,) * half + (spaces.vir,) * half


def _symmetric(read: Reader) -> Reader:
    """Blocks [i, a, j, b] with t(i, a, j, b) = t(j, b, i, a), which the equations keep and count on."""

    def make(index: tuple[int, ...]) -> Floats:
        i, a, j, b = index
        return 0.5 * (read((i, j, a, b)).transpose(0, 2, 1, 3) + read((j, i, b, a)).transpose(1, 3, 0, 2))

    return make


def _block_reader(tensor: BlockTensor) -> Reader:
    def read(index: tuple[int, ...]) -> Floats:
        found = find_block(tensor, index)
        if found is not None:
            return found
        return np.zeros([int(space.sizes[tile]) for space, tile in zip(tensor.spaces, index, strict=True)])

    return read


def _parse(name: str, value: Any, modes: tuple[Space, ...]) -> Given:
    """Amplitudes as a user gives them, or what is wrong with them."""
    if value is None:
        return None
    return _parse_tensor(name, value, modes) if isinstance(value, BlockTensor) else _parse_array(name, value, modes)


def _parse_tensor(name: str, tensor: BlockTensor, modes: tuple[Space, ...]) -> BlockTensor:
    if tensor.dtype.kind != "f":
        raise InputError(f"{name}= has elements of {tensor.dtype}. Expected real numbers. Pass them as float64.")
    if tensor.spaces != modes:
        raise InputError(
            f"{name}= has the spaces {tensor.spaces}. Expected {modes}, those of this method's tiles. Pass what "
            "to_pyscf() of the other method gives, or use the same tile= and frozen=."
        )
    return tensor


def _parse_array(name: str, value: Any, modes: tuple[Space, ...]) -> npt.NDArray[Any]:
    remedy = "Pass what pyscf.cc or to_pyscf() gives."
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise ValueError(f"it has elements of {array.dtype}")
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}= is no array of real numbers: {error}. Expected one. {remedy}") from None
    shape = tuple(space.size for space in modes)
    if array.shape != shape:
        raise InputError(
            f"{name}= has shape {array.shape}. Expected {shape}, PySCF's order, over the orbitals that are correlated. "
            "Check frozen=."
        )
    if not np.isfinite(array).all():
        raise InputError(f"{name}= has elements that are not finite. Expected numbers. {remedy}")
    return array
