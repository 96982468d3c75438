"""The MPI engine: every rank holds every tensor, computes its share of the result blocks, and sends them to the others.

A result block is computed by one rank, as one rank alone would compute it: the number of ranks changes no bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tilewise.engines.mpi.world import World, make_world
from tilewise.engines.progress import Tell
from tilewise.engines.streaming import Call
from tilewise.engines.targets import Target, make_target, scale_target
from tilewise.engines.threads import OWN_KERNEL, Hosted, ThreadsEngine
from tilewise.engines.workers import available_cores
from tilewise.plans import Plan, Product
from tilewise.plans.balance import cut_evenly
from tilewise.tensors import BlockTensor
from tilewise.trace import Trace

Ints = npt.NDArray[np.int64]

LEAST_FLOPS = 1_000_000
"""Products with less work are done by every rank for itself: sending their blocks would take longer."""


class MpiEngine(Hosted):
    """Runs plans on all ranks of an MPI job, each with threads of its own.

    Parameters
    ----------
    workers : int, optional
        Threads of each rank; the cores that the process may use, divided by the ranks that share them, by default.
    ranks_per_node : int, optional
        How many neighbouring ranks are taken for a node; those on one computer by default.
    progress : callable, optional
        Called on the first rank every few seconds of a run with how far it has come.
    """

    name = "mpi"

    def __init__(
        self, workers: int | None = None, ranks_per_node: int | None = None, progress: Tell | None = None
    ) -> None:
        self.world: World = make_world(ranks_per_node)
        share = max(available_cores() // self.world.neighbours.size, 1) if workers is None else workers
        self.host = ThreadsEngine(share, progress=progress)
        self.progress = self.host.progress if self.world.rank == 0 else None
        self.memory = self.host.memory

    def prepare(self, plan: Plan) -> Plan:
        """The plan as the workers of a rank run it."""
        return self.host.prepare(plan)

    def run_resident(self, call: Call) -> tuple[BlockTensor, Trace]:
        """Run a plan, or the part of one, whose operands are in memory."""
        plan = self.prepare(call.plan)
        if self.world.size == 1 or not isinstance(plan.work, Product) or plan.flops < LEAST_FLOPS:
            return self.host.run_resident(replace(call, plan=plan))
        begin = time.perf_counter()
        target = make_target(self, self.memory, plan, call.out, call.account)
        scale_target(target, call.beta)
        rank_of_block = share_blocks(plan, self.world.size)
        mine = rank_of_block == self.world.rank

        def follow(done: Callable[[], int]) -> AbstractContextManager[None]:
            return call.watch.following(lambda: min(self.world.size * done(), plan.flops))  # as if all were as far

        squares, counts = self.host.add_blocks(plan, call.operands, target, call.alpha, mine, call.account, follow)
        self._exchange(plan, target, rank_of_block)
        target.finish(self.world.sum(squares), call.beta)
        tasks, calls, flops = (int(n) for n in self.world.sum(counts))
        return target.tensor, Trace(
            label=plan.label,
            seconds=time.perf_counter() - begin,
            packing_seconds=0.0,
            flops=flops,
            tasks=tasks,
            calls=calls,
            workers=self.workers * self.world.size,
            buffer_bytes=target.tensor.nbytes + plan.packed_bytes + plan.worker_bytes * self.workers,
            library=self.host.blas.name if plan.kernel == "gemm" else OWN_KERNEL,
        )

    def _exchange(self, plan: Plan, target: Target, rank_of_block: Ints) -> None:
        """Send every rank the blocks that others computed."""
        arena, item = target.tensor.arena, plan.dtype.itemsize
        begin = (arena.offsets if target.slots is None else arena.offsets[target.slots]) * item
        self.world.share_parts(arena.data.view(np.uint8), begin, plan.result.block_sizes * item, rank_of_block)


def share_blocks(plan: Plan, ranks: int) -> Ints:
    """The rank that computes each result block: neighbours together, in runs of nearly equal work."""
    assert isinstance(plan.work, Product)
    cells = plan.work.cells
    flops = np.bincount(cells.block, cells.flops, plan.result.nnz_blocks).astype(np.float64)
    return np.repeat(np.arange(ranks), np.diff(cut_evenly(flops, ranks)))
