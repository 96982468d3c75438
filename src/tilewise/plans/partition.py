"""Tasks that read the same blocks on the same rank: a hypergraph cut into parts of equal weight.

Tasks are the nodes, weighted by cost; every block is an edge that joins its readers, weighted by its bytes.  A block
whose readers are on `r` ranks is fetched `r` times, so the cut that counts each edge once for every part it touches
but the first (the *km1* metric) is what moves.  Mt-KaHyPar cuts it where it is installed; otherwise tasks are dealt
one by one, largest first, each to the rank that has most of its blocks and still has room.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.plans.balance import Tasks

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROOM = 0.03
"""How much heavier than the mean a part may be."""

TOTAL_WEIGHT = 1 << 30
"""What integer weights add up to at the most: Mt-KaHyPar adds them up in 32 bits."""


def partition_tasks(tasks: Tasks, own: Ints, parts: int) -> Ints:
    """The part of each of some tasks."""
    if parts == 1 or len(own) <= parts:
        return np.arange(len(own)) % parts
    if find_spec("mtkahypar") is not None:
        return _by_library(tasks, own, parts)
    return by_affinity(tasks, own, parts)


def by_affinity(tasks: Tasks, own: Ints, parts: int) -> Ints:
    """Deal tasks one by one, largest first, to the rank that has most of the bytes they read and still has room."""
    cost = tasks.cost[own]
    limit = max((1 + ROOM) * float(cost.sum()) / parts, float(cost.max()))
    load = np.zeros(parts)
    has = np.zeros((len(tasks.block_bytes), parts), np.bool_)
    found = np.empty(len(own), np.int64)
    for number in np.argsort(-cost, kind="stable").tolist():
        blocks = tasks.block[tasks.ptr[own[number]] : tasks.ptr[own[number] + 1]]
        gain = tasks.block_bytes[blocks] @ has[blocks]
        fits = load + cost[number] <= limit
        open_parts = np.flatnonzero(fits if fits.any() else load == load.min())
        # Most bytes at hand; among equals the least loaded.
        part = open_parts[np.lexsort((load[open_parts], -gain[open_parts]))[0]]
        found[number] = part
        load[part] += cost[number]
        has[blocks, part] = True
    return found


def _by_library(tasks: Tasks, own: Ints, parts: int) -> Ints:
    """Cut with Mt-KaHyPar's deterministic preset, so that all ranks find the same parts."""
    mtkahypar, library = _library()
    edges, edge_bytes = _edges(tasks, own)
    mtkahypar.set_seed(0)
    context = library.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(parts, ROOM, mtkahypar.Objective.KM1)
    context.logging = False
    graph = library.create_hypergraph(
        context, len(own), len(edges), edges, _weights(tasks.cost[own]), _weights(edge_bytes.astype(np.float64))
    )
    return np.array(graph.partition(context).get_partition(), np.int64)


def _weights(values: Floats) -> list[int]:
    """Positive integers in proportion, as far as their sum allows."""
    room = max(TOTAL_WEIGHT - len(values), 0)
    total = float(values.sum())
    return [1 + round(value) for value in (values * (room / total if total else 0.0)).tolist()]


@lru_cache(maxsize=1)
def _library() -> tuple[Any, Any]:
    """Mt-KaHyPar and what it was started with, which it allows once; on one thread, since those it pins stay pinned."""
    import mtkahypar

    return mtkahypar, mtkahypar.initialize(1)


def _edges(tasks: Tasks, own: Ints) -> tuple[list[list[int]], Ints]:
    """For each block with several readers, their numbers among some tasks; and its bytes."""
    count = np.diff(tasks.ptr)[own]
    reader = np.repeat(np.arange(len(own)), count)
    within = np.arange(len(reader)) - np.repeat(np.cumsum(count) - count, count)
    block = tasks.block[np.repeat(tasks.ptr[own], count) + within]
    order = np.lexsort((reader, block))
    block, reader = block[order], reader[order]
    starts = np.flatnonzero(np.diff(block, prepend=-1))
    lists = [each.tolist() for each in np.split(reader, starts[1:])] if len(starts) else []
    kept = [number for number, each in enumerate(lists) if len(each) > 1]
    return [lists[number] for number in kept], tasks.block_bytes[block[starts[kept]]] if kept else np.zeros(0, np.int64)
