"""`Chain`: which neighbouring steps of a many-operand expression are worth fusing within some memory.

Memory is one level: operands come from beyond it, the result leaves it. Without fusion every intermediate leaves
and comes back; what fusing can spare at the most follows from the Fusion Lemma (`tilewise.costs.fusion`), what it
needs from the loops around the fused steps (`tilewise.plans.nests`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from tilewise.costs import compulsory_bytes, movement_bound_bytes
from tilewise.costs.fusion import group_bound_words, partition_text
from tilewise.errors import InputError
from tilewise.plans.explain import Report, Table, bytes_text, count_text, percent_text, to_html, to_text
from tilewise.plans.nests import Fused, Nest, Nests
from tilewise.plans.plan import Plan
from tilewise.plans.program import Program
from tilewise.plans.projection import multiplications, needed_bytes, stored_uses
from tilewise.plans.work import Product

Verdict = Literal["fuse", "futile", "too little memory", "fits anyhow"]
"""What to do with two neighbouring steps."""

FUTILE_SHARE = 0.1
"""Fusing that spares less than this share of the traffic at the most is futile."""

MOST_FUSED = 8
"""Steps that a group has at the most: those of nine operands, all of them."""


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a chain."""

    number: int
    """Its place, from 1."""
    label: str
    """The step as an einsum string."""
    flops: int
    """Floating-point operations."""
    compulsory_bytes: int
    """Bytes of what it reads and makes."""
    bound_bytes: int
    """Bytes that it moves at the least, in any order of its products."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Two steps of which the second reads what the first makes."""

    first: int
    """Number of the step that makes the intermediate."""
    second: int
    """Number of the step that reads it."""
    intermediate_bytes: int
    """Bytes of the intermediate."""
    unfused_bytes: int
    """Bytes that the two steps move at the least, one after the other."""
    fused_bytes: int
    """Bytes that they move at the least, however they are fused (Fusion Lemma)."""
    nest: Nest
    """The loops that move no more than operands and result, with the least memory."""
    whole_bytes: int
    """Memory from which the intermediate can stay whole, and the steps need not be fused."""
    verdict: Verdict
    """What to do."""

    @property
    def spared_bytes(self) -> int:
        """Bytes that fusing can spare at the most."""
        return self.unfused_bytes - self.fused_bytes

    @property
    def spared_share(self) -> float:
        """Share of the unfused traffic that fusing can spare at the most, from 0 to 1."""
        return self.spared_bytes / self.unfused_bytes if self.unfused_bytes else 0.0

    @property
    def least_bytes(self) -> int:
        """The least memory at which a fused loop moves no more than operands and result."""
        return self.nest.peak_bytes


@dataclass(frozen=True, slots=True)
class Group:
    """Steps that are fused; one alone is not."""

    steps: tuple[int, ...]
    """Numbers of the steps."""
    bound_bytes: int
    """Bytes that they move at the least."""
    nest: Nest | None
    """The loops around them; None of one step alone."""


@dataclass(frozen=True, slots=True, repr=False)
class Chain:
    """The steps of an expression, what fusing neighbours can spare, and the best groups that fit.

    Examples
    --------
    >>> import tilewise as tw
    >>> ao, mo = tw.Space([4] * 5), tw.Space([4] * 4)
    >>> integrals, orbitals = tw.Pattern.dense((ao,) * 4), tw.Pattern.dense((ao, mo))
    >>> chain = tw.plan_chain("pqrs,pi,qj,rk,sl->ijkl", integrals, *[orbitals] * 4, memory="200kB")
    >>> chain.partition, [pair.verdict for pair in chain.neighbours]
    ('12/34', ['fuse', 'fuse', 'fuse'])
    """

    label: str
    """The whole expression."""
    dtype: np.dtype[np.generic]
    """Element type of the result."""
    memory_bytes: int
    """Capacity of the level."""
    steps: tuple[Link, ...]
    """The steps in the planner's order."""
    neighbours: tuple[Neighbours, ...]
    """Every two steps that an intermediate joins."""
    groups: tuple[Group, ...]
    """The groups that fit and move least by their bounds, in the order of their last steps."""

    @property
    def partition(self) -> str:
        """The groups as text, such as ``12/34``."""
        return partition_text([group.steps for group in self.groups])

    @property
    def bound_bytes(self) -> int:
        """Bytes that the steps move at the least if they are fused in these groups."""
        return sum(group.bound_bytes for group in self.groups)

    @property
    def unfused_bytes(self) -> int:
        """Bytes that the steps move at the least one after the other, every intermediate leaving and coming back."""
        return sum(step.bound_bytes for step in self.steps)

    def explain(self) -> str:
        """Tables in plain text: the steps, the neighbours with their verdicts, the groups."""
        return to_text(_report(self))

    def _repr_html_(self) -> str:
        return to_html(_report(self))

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"Chain({self.label!r}, {len(self.steps)} steps, {bytes_text(self.memory_bytes)}, {self.partition})"


def find_chain(program: Program, memory_bytes: int) -> Chain:
    """What fusing the steps of a program comes to in some memory; see `tilewise.plan_chain`."""
    if memory_bytes < program.dtype.itemsize:
        raise InputError(
            f"memory={memory_bytes} bytes hold no element of {program.dtype.itemsize} bytes. Expected room for some "
            "blocks, such as '4GB'. Pass more memory."
        )
    search = _Search.of(program, memory_bytes)
    pairs, groups = tuple(search.neighbours()), tuple(search.best_groups())
    return Chain(program.label, program.dtype, memory_bytes, search.links, pairs, groups)


def _find_link(number: int, plan: Plan, memory_bytes: int) -> Link:
    compulsory = compulsory_bytes(list(needed_bytes(plan).values()), plan.result_bytes)
    bound = compulsory
    if isinstance(plan.work, Product):
        itemsize = plan.dtype.itemsize
        bound = movement_bound_bytes(compulsory, multiplications(plan), itemsize, memory_bytes, stored_uses(plan))
    return Link(number, plan.label, plan.flops, compulsory, bound)


@dataclass(frozen=True, slots=True)
class _Best:
    """The best groups of all that leads to a step."""

    bound_bytes: int
    """Sum of their bounds."""
    fused: int
    """Intermediates that they spare."""
    groups: tuple[Group, ...]
    """The groups."""

    @classmethod
    def of(cls, group: Group, below: Sequence[_Best]) -> _Best:
        """A group and the best ones of what it reads."""
        bound = group.bound_bytes + sum(other.bound_bytes for other in below)
        fused = len(group.steps) - 1 + sum(other.fused for other in below)
        return cls(bound, fused, (group, *(own for other in below for own in other.groups)))


@dataclass(frozen=True, slots=True)
class _Search:
    """The steps of a program as a tree: a step's children make what it reads."""

    program: Program
    """What is planned."""
    memory_bytes: int
    """Capacity of the level."""
    nests: Nests
    """What loops need."""
    links: tuple[Link, ...]
    """The steps with their bounds."""
    needed: tuple[dict[int, int], ...]
    """Bytes that each step reads, by the identity of the pattern."""
    children: tuple[tuple[int, ...], ...]
    """Places of the steps that make what each step reads."""

    @classmethod
    def of(cls, program: Program, memory_bytes: int) -> _Search:
        place = {step.result: at for at, step in enumerate(program.steps)}
        plans = [step.plan for step in program.steps]
        return cls(
            program,
            memory_bytes,
            Nests.of(program),
            tuple(_find_link(number, plan, memory_bytes) for number, plan in enumerate(plans, start=1)),
            tuple(needed_bytes(plan) for plan in plans),
            tuple(tuple(place[n] for n in dict.fromkeys(step.inputs) if n in place) for step in program.steps),
        )

    def neighbours(self) -> Iterator[Neighbours]:
        """Every two steps that an intermediate joins, in the order of the first."""
        joined = sorted((first, second) for second, own in enumerate(self.children) for first in own)
        for first, second in joined:
            fused = self._fused((first, second))
            unfused = self.links[first].bound_bytes + self.links[second].bound_bytes
            bound = self._bound((first, second))
            nest, whole = self.nests.least(fused), self.nests.nest(fused).peak_bytes
            size = self.program.steps[first].plan.result_bytes
            verdict = _judge(unfused, bound, nest.peak_bytes, whole, self.memory_bytes)
            yield Neighbours(first + 1, second + 1, size, unfused, bound, nest, whole, verdict)

    def best_groups(self) -> list[Group]:
        """The groups that fit with the least sum of bounds, with the fewest intermediates among equals."""
        best: list[_Best] = []
        for root in range(len(self.links)):
            groups = [(self._group(places), self._below(places)) for places in self._subtrees(root)]
            found = [_Best.of(group, [best[at] for at in below]) for group, below in groups if group is not None]
            best.append(min(found, key=lambda one: (one.bound_bytes, one.fused)))
        return sorted(best[-1].groups, key=lambda group: group.steps[-1])

    def _subtrees(self, root: int) -> list[tuple[int, ...]]:
        """Connected sets of steps that end with one of them, in order."""
        choices = [[(), *self._subtrees(child)] for child in self.children[root]]
        sets = [(*sorted(at for part in parts for at in part), root) for parts in product(*choices)]
        return [places for places in sets if len(places) <= MOST_FUSED]

    def _below(self, places: Sequence[int]) -> list[int]:
        """Steps outside of a set that make what it reads."""
        return [child for at in places for child in self.children[at] if child not in places]

    def _group(self, places: tuple[int, ...]) -> Group | None:
        """Some steps fused; None if they do not fit."""
        nest = self.nests.least(self._fused(places)) if len(places) > 1 else None
        if nest is not None and nest.peak_bytes > self.memory_bytes:
            return None
        return Group(tuple(at + 1 for at in places), self._bound(places), nest)

    def _bound(self, places: Sequence[int]) -> int:
        """The Fusion Lemma in bytes; operands that may be one tensor are read once."""
        steps = self._fused(tuple(places)).steps
        inner = {step.result: step.plan.result_bytes for step in steps[:-1]}
        read: dict[int, list[int]] = {}
        for at, step in zip(places, steps, strict=True):
            made = {id(o.pattern) for o, n in zip(step.plan.operands, step.inputs, strict=True) if n in inner}
            for key, size in self.needed[at].items():
                if key not in made:
                    read.setdefault(key, []).append(size)
        once = sum(map(max, read.values()))
        shared = sum(map(sum, read.values())) - once
        bounds = [self.links[at].bound_bytes for at in places]
        return group_bound_words(bounds, list(inner.values()), once + steps[-1].plan.result_bytes, shared)

    def _fused(self, places: tuple[int, ...]) -> Fused:
        return Fused(tuple(self.program.steps[at] for at in places))


def _judge(unfused: int, bound: int, least: int, whole: int, memory: int) -> Verdict:
    if whole <= memory:
        return "fits anyhow"
    if unfused - bound < FUTILE_SHARE * unfused:
        return "futile"
    return "fuse" if least <= memory else "too little memory"


# Tables


def _report(chain: Chain) -> Report:
    memory, share = bytes_text(chain.memory_bytes), percent_text(FUTILE_SHARE)
    notes = (
        f"Bytes that cross into and out of a memory of {memory} at the least, if nothing is computed twice.",
        "Unfused, every intermediate leaves and comes back. Loops need room for what stays and for one turn's slices.",
        f"Futile: less than {share} can be spared. Fits anyhow: the intermediate can stay whole.",
    )
    title = f"{chain.label}  ({chain.dtype.name}, {memory})"
    return Report(title, (_step_table(chain), _neighbour_table(chain), _group_table(chain)), notes)


def _step_table(chain: Chain) -> Table:
    rows = tuple(
        (f"{x.number}: {x.label}", count_text(x.flops), bytes_text(x.compulsory_bytes), bytes_text(x.bound_bytes))
        for x in chain.steps
    )
    return Table("Steps", ("", "flops", "reads and writes", "lower bound"), rows)


def _neighbour_table(chain: Chain) -> Table:
    header = ("", "intermediate", "unfused", "fused", "spared at most", "loops", "need", "whole needs", "verdict")
    rows = tuple(
        (
            f"{pair.first} and {pair.second}",
            bytes_text(pair.intermediate_bytes),
            bytes_text(pair.unfused_bytes),
            bytes_text(pair.fused_bytes),
            f"{bytes_text(pair.spared_bytes)} ({percent_text(pair.spared_share)})",
            " ".join(pair.nest.loops) or "none",
            bytes_text(pair.least_bytes),
            bytes_text(pair.whole_bytes),
            pair.verdict,
        )
        for pair in chain.neighbours
    )
    return Table("Neighbours", header, rows)


def _group_table(chain: Chain) -> Table:
    rows = [
        (
            text,
            bytes_text(group.bound_bytes),
            "" if group.nest is None else " ".join(group.nest.loops) or "none",
            "" if group.nest is None else bytes_text(group.nest.peak_bytes),
        )
        for text, group in zip(chain.partition.split("/"), chain.groups, strict=True)
    ]
    rows.append((f"all: {chain.partition}", bytes_text(chain.bound_bytes), "", ""))
    rows.append(("unfused", bytes_text(chain.unfused_bytes), "", ""))
    return Table("Best groups that fit", ("", "lower bound", "loops", "need"), tuple(rows))
