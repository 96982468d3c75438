"""Loop nests around fused steps: what has to be in memory so that every tensor crosses once and no intermediate does.

All steps of a group run once for each tuple of tiles of some indices, the loops. Every intermediate of the group has
these indices, and only its slice is there. An operand or result that has them too comes and goes slice by slice; one
that lacks a loop stays from the loop outside of it on. Without loops, the intermediates stay whole. Operands count one
by one, also where they may be the same tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from tilewise.patterns import Pattern
from tilewise.patterns.keys import block_keys
from tilewise.plans.program import Program, Step
from tilewise.plans.work import Product

MOST_LOOPS = 6
"""Loops that are tried: all their subsets, in one order."""

MOST_KEYS = 1 << 20
"""Slices that are counted in a table of all of them."""


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops over tiles, and what they need."""

    loops: tuple[str, ...]
    """Indices, the outermost first; those that a symmetry exchanges are looped over together, as pairs of tiles."""
    peak_bytes: int
    """Bytes that are there at the most: the largest slices of everything."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a program and its indices."""

    indices: tuple[str, ...]
    """Index of each mode."""
    pattern: Pattern
    """Its blocks."""

    @property
    def exchanged(self) -> list[set[str]]:
        """Sets of indices that its symmetry exchanges."""
        symmetry = self.pattern.symmetry
        return [] if symmetry is None else [{self.indices[mode] for mode in modes} for modes, _ in symmetry.groups]

    def has(self, loop: str) -> bool:
        """Whether slices along a loop share no stored block: all indices that are exchanged must be in it."""
        letters, exchanged = set(loop), self.exchanged
        if exchanged and any(self.indices.count(letter) > 1 for letter in loop):
            return False  # a stored block of a diagonal may have the tile of the loop in another mode
        return letters <= set(self.indices) and all(own <= letters or not own & letters for own in exchanged)

    def depth(self, loops: Sequence[str]) -> int:
        """How many loops, from outside, it has."""
        return next((at for at, loop in enumerate(loops) if not self.has(loop)), len(loops))

    def largest_slice(self, loops: Sequence[str]) -> int:
        """Most stored elements for one tuple of tiles of the loops; for exchanged ones, in any order."""
        modes = [[self.indices.index(letter) for letter in loop] for loop in loops]
        if not modes:
            return self.pattern.nnz_elements
        tiles = np.concatenate([np.sort(self.pattern.index[:, own], axis=1) for own in modes], axis=1)
        counts = [self.pattern.ntiles[mode] for own in modes for mode in own]
        keys = block_keys(tiles, counts)
        place = keys if math.prod(counts) <= MOST_KEYS else np.unique(keys, return_inverse=True)[1]
        return int(np.bincount(place, self.pattern.block_sizes).max(initial=0))


@dataclass(frozen=True, slots=True)
class Fused:
    """Steps of a program that are done together, by their tensors' numbers."""

    steps: tuple[Step, ...]
    """The steps in order; each but the last makes what another one reads."""

    @property
    def inner(self) -> list[int]:
        """What is made and read by these steps."""
        return [step.result for step in self.steps[:-1]]

    @property
    def outer(self) -> list[int]:
        """What they read from outside, and what the last one makes."""
        read = [number for step in self.steps for number in step.inputs if number not in self.inner]
        return [*dict.fromkeys(read), self.steps[-1].result]

    def alive(self, at: int) -> list[int]:
        """Intermediates that are there while a step runs."""
        read = {number for step in self.steps[at:] for number in step.inputs}
        return [step.result for step in self.steps[: at + 1] if step.result in read]


@dataclass(frozen=True, slots=True)
class Nests:
    """The loop nests of one program."""

    tensors: Mapping[int, Tensor]
    """All tensors, by number."""
    itemsize: int
    """Bytes of an element."""
    known: dict[tuple[int, frozenset[str]], int] = field(default_factory=dict)
    """Slices that were looked at, in elements."""

    @classmethod
    def of(cls, program: Program) -> Nests:
        """The tensors of a program."""
        tensors: dict[int, Tensor] = {}
        for step in program.steps:
            *inputs, result = _indices(step)
            for number, indices, operand in zip(step.inputs, inputs, step.plan.operands, strict=True):
                tensors[number] = Tensor(indices, operand.pattern)
            tensors[step.result] = Tensor(result, step.plan.result)
        return cls(tensors, program.dtype.itemsize)

    def least(self, fused: Fused) -> Nest:
        """The nest that needs least; fewer loops where that is no more."""
        return min(self.every(fused), key=lambda nest: nest.peak_bytes)

    def every(self, fused: Fused) -> list[Nest]:
        """All nests that are tried, none first."""
        loops = self._loops(fused)
        return [self.nest(fused, chosen) for count in range(len(loops) + 1) for chosen in combinations(loops, count)]

    def nest(self, fused: Fused, loops: tuple[str, ...] = ()) -> Nest:
        """What some loops need; without any, each step runs to its end and intermediates stay whole."""
        held = 0
        for number in fused.outer:
            depth = self.tensors[number].depth(loops)
            held += self._slice(number, loops[:depth]) if depth < len(loops) else 0
        inside = [
            sum(self._slice(number, loops) for number in fused.alive(at)) + self._passing(fused, at, loops)
            for at in range(len(fused.steps))
        ]
        return Nest(loops, (held + max(inside)) * self.itemsize)

    def _passing(self, fused: Fused, at: int, loops: tuple[str, ...]) -> int:
        """Elements of what comes and goes while a step runs: parts of its operands, blocks of the last result."""
        step = fused.steps[at]
        passing = [n for n in step.inputs if n in fused.outer and self.tensors[n].depth(loops) == len(loops)]
        passing.sort(key=lambda number: self._slice(number, loops))
        elements = self._panel(step, passing[-1], loops) if passing else 0
        if len(passing) == 2:
            elements = min(elements + self._slice(passing[0], loops), self._columns(passing, loops))
        result = self.tensors[step.result]
        if at == len(fused.steps) - 1 and result.depth(loops) == len(loops):
            elements += int(result.pattern.block_sizes.max(initial=0))
        return elements

    def _panel(self, step: Step, number: int, loops: tuple[str, ...]) -> int:
        """Elements of an operand that are there at once, its fellow being there: a panel, or a block to be summed."""
        tensor = self.tensors[number]
        if tensor.pattern.symmetry is not None:  # its unique blocks belong to several panels
            return self._slice(number, loops)
        if not isinstance(step.plan.work, Product):
            return int(tensor.pattern.block_sizes.max(initial=0))
        return self._slice(number, _and_shared(loops, tensor, self.tensors[step.result]))

    def _columns(self, numbers: Sequence[int], loops: tuple[str, ...]) -> int:
        """Elements of two operands that come together, k tile by k tile; what they make is there."""
        left, right = (self.tensors[number] for number in numbers)
        if left.pattern.symmetry is not None or right.pattern.symmetry is not None:
            return sum(self._slice(number, loops) for number in numbers)
        return sum(self._slice(number, _and_shared(loops, left, right)) for number in numbers)

    def _slice(self, number: int, loops: tuple[str, ...]) -> int:
        key = number, frozenset(loops)
        if key not in self.known:
            self.known[key] = self.tensors[number].largest_slice(loops)
        return self.known[key]

    def _loops(self, fused: Fused) -> list[str]:
        """Indices of all intermediates, exchanged ones together; outside those that only small tensors lack."""
        outer = [self.tensors[number] for number in fused.outer]
        first, *others = [self.tensors[number].indices for number in fused.inner]
        loops = [letter for letter in first if all(letter in own for own in others)]
        for exchanged in (own for tensor in outer for own in tensor.exchanged):
            joined = [loop for loop in loops if set(loop) & exchanged]
            if len(joined) > 1:
                loops = ["".join(joined), *(loop for loop in loops if loop not in joined)]
        loops.sort(key=lambda loop: sum(t.pattern.nnz_elements for t in outer if not t.has(loop)))
        return loops[:MOST_LOOPS]


def _and_shared(loops: tuple[str, ...], one: Tensor, other: Tensor) -> tuple[str, ...]:
    """Loops, and further ones over what two tensors share."""
    return *loops, *(i for i in one.indices if i in other.indices and i not in "".join(loops))


def _indices(step: Step) -> tuple[tuple[str, ...], ...]:
    """Indices of the operands of a step and of its result."""
    work = step.plan.work
    if isinstance(work, Product):
        return work.contraction.left, work.contraction.right, work.contraction.result
    return work.reduction.operand, work.reduction.result
