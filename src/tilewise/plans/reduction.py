"""Planning a step on one operand: permutation, diagonal, trace or sum."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tilewise.expressions import Reduction
from tilewise.patterns import Expansion, Pattern, expand
from tilewise.patterns.keys import block_keys, blocks_of_keys
from tilewise.plans.plan import Operand, Plan, Sum
from tilewise.spaces import Space

Ints = npt.NDArray[np.int64]

TASKS = 256
"""About how many tasks a reduction is cut into."""

LEAST_TASK_ELEMENTS = 10_000
"""Elements below which a task costs more to hand out than to do."""

BLOCK_LOAD = 25
"""Elements that could be moved in the time it takes to find out where a block lies."""


def inspect_reduction(reduction: Reduction, pattern: Pattern, dtype: npt.DTypeLike, *, workers: int = 1) -> Plan:
    """Plan one step on one operand; the result lists all blocks, without symmetry."""
    blocks = expand(pattern)
    kept = tuple(_modes_of(reduction, name) for name in reduction.result)
    summed = tuple(_modes_of(reduction, name) for name in reduction.summed)
    source = np.flatnonzero(_on_diagonal(blocks, kept + summed))
    spaces = tuple(pattern.spaces[modes[0]] for modes in kept)
    keys = block_keys(blocks.index[source][:, [modes[0] for modes in kept]], [s.ntiles for s in spaces])
    order = np.argsort(keys, kind="stable") if np.any(keys[1:] < keys[:-1]) else np.arange(len(keys))
    source, keys = source[order], keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.zeros(0, np.int64)
    norms = _norms(blocks, source, first, pattern, reduction)
    result = Pattern.trusted(spaces, blocks_of_keys(keys[first], [s.ntiles for s in spaces]), norms)
    ptr = np.append(first, len(source))
    each = _elements(blocks.index[source], pattern.spaces, kept + summed)
    elements = np.add.reduceat(each, first) if len(first) else np.zeros(0, np.int64)
    return Plan(
        label=reduction.label(),
        operands=(Operand(pattern, blocks),),
        result=result,
        dtype=np.dtype(dtype),
        kernel="reduction",
        work=Sum(reduction, kept, summed, ptr, source, _even_tasks(elements), elements),
        flops=int(elements.sum()) if summed else 0,
        screened_flops=0,
        tolerance=None,
        dropped_bound=0.0,
        packed_bytes=0,
        worker_bytes=0,
        workers=workers,
    )


def reduction_part(plan: Plan, begin: int, end: int) -> Plan:
    """The part of a reduction that some of its sources give, in their order; it is added to what others gave."""
    work = plan.work
    if not isinstance(work, Sum):
        raise TypeError("Only a reduction has sources.")
    first, last = int(np.searchsorted(work.ptr, begin, "right")) - 1, int(np.searchsorted(work.ptr, end, "left"))
    ptr = np.clip(work.ptr[first : last + 1], begin, end) - begin
    source = work.source[begin:end]
    whole = plan.result
    blocks = plan.operands[0].blocks
    each = _elements(blocks.index[source], plan.operands[0].pattern.spaces, work.kept + work.summed)
    elements = np.add.reduceat(each, ptr[:-1]) if len(each) else np.zeros(0, np.int64)
    return replace(
        plan,
        result=Pattern.trusted(whole.spaces, whole.index[first:last], whole.norms[first:last]),
        work=Sum(work.reduction, work.kept, work.summed, ptr, source, _even_tasks(elements), elements),
        flops=int(elements.sum()) if work.summed else 0,
        runs=[],
    )


def reduction_blocks(plan: Plan, wanted: Ints) -> Plan:
    """The part of a reduction that gives some of its result blocks."""
    work, whole = plan.work, plan.result
    if not isinstance(work, Sum):
        raise TypeError("Only a reduction has sources.")
    count = np.diff(work.ptr)[wanted]
    ptr = np.concatenate([[0], np.cumsum(count)])
    source = work.source[np.repeat(work.ptr[wanted] - ptr[:-1], count) + np.arange(ptr[-1])]
    elements = work.elements[wanted]
    return replace(
        plan,
        result=Pattern.trusted(whole.spaces, whole.index[wanted], whole.norms[wanted]),
        work=Sum(work.reduction, work.kept, work.summed, ptr, source, _even_tasks(elements), elements),
        flops=int(elements.sum()) if work.summed else 0,
        runs=[],
    )


def _even_tasks(elements: Ints) -> Ints:
    """Result blocks gathered into some hundred tasks of alike load."""
    if not len(elements):
        return np.zeros(1, np.int64)
    load = elements + BLOCK_LOAD
    label = (np.cumsum(load) - load) // max(int(load.sum()) // TASKS, LEAST_TASK_ELEMENTS)
    return np.concatenate([[0], np.flatnonzero(np.diff(label)) + 1, [len(load)]])


def _modes_of(reduction: Reduction, name: str) -> tuple[int, ...]:
    return tuple(mode for mode, own in enumerate(reduction.operand) if own == name)


def _on_diagonal(blocks: Expansion, groups: tuple[tuple[int, ...], ...]) -> npt.NDArray[np.bool_]:
    """Blocks with one tile for all modes of each repeated index; others hold no diagonal element."""
    keep = np.ones(len(blocks.index), np.bool_)
    for first, *others in groups:
        for mode in others:
            keep &= blocks.index[:, first] == blocks.index[:, mode]
    return keep


def _elements(index: Ints, spaces: tuple[Space, ...], groups: tuple[tuple[int, ...], ...]) -> Ints:
    """Elements that each block contributes: one mode counts for each index."""
    count = np.ones(len(index), np.int64)
    for modes in groups:
        count *= spaces[modes[0]].sizes[index[:, modes[0]]]
    return count


def _norms(
    blocks: Expansion, source: Ints, first: Ints, pattern: Pattern, reduction: Reduction
) -> npt.NDArray[np.float64]:
    """A sum of s elements is at most sqrt(s) times their norm (Cauchy-Schwarz); blocks add."""
    if not len(first):
        return np.zeros(0)
    groups = tuple(_modes_of(reduction, name) for name in reduction.summed)
    summed = _elements(blocks.index[source], pattern.spaces, groups)
    norms = np.add.reduceat(blocks.norms[source] * np.sqrt(summed), first)
    return np.asarray(norms * (1 + 1e-12) if math.isfinite(float(norms.max(initial=0))) else norms)
