"""The MPI engine: ranks own the blocks of tensors, share the work of a step, and each answers for what it owns."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.matching import list_given, owner_of
from tilewise.engines.mpi.moves import change_layout
from tilewise.engines.mpi.node import Node, make_node
from tilewise.engines.mpi.results import add_result, make_result
from tilewise.engines.mpi.shared import SharedRun
from tilewise.engines.mpi.spread import Spread, make_spread
from tilewise.engines.mpi.world import World, end_job, make_world
from tilewise.engines.progress import Tell, Watch
from tilewise.engines.streaming import Call
from tilewise.engines.targets import find_slots
from tilewise.engines.threads import OWN_KERNEL, Hosted, ThreadsEngine
from tilewise.errors import InputError
from tilewise.machine import Machine
from tilewise.patterns import Pattern
from tilewise.plans import Plan, Sum
from tilewise.plans.digest import digest, pattern_digest
from tilewise.plans.layout import check_layout, make_layout
from tilewise.plans.parts import Part
from tilewise.plans.shared_steps import asked_with, budget_of_rank
from tilewise.plans.sharing import (
    Request,
    Sharing,
    first_that_fits,
    fit_budget,
    is_small,
    is_worth_sharing,
    plan_sharing,
    refined,
)
from tilewise.tensors import BlockTensor
from tilewise.tensors.protocol import Scalar
from tilewise.tensors.storage import Arena, Result
from tilewise.trace import RankTrace, Trace

Ints = npt.NDArray[np.int64]


class MpiEngine(Hosted):
    """Runs plans on all ranks of an MPI job, each with threads of its own.

    Parameters
    ----------
    workers : int, optional
        Threads of each rank; as many as it has cores to itself by default.  Ranks that a launcher did not give cores
        of their own share those of the computer evenly.
    ranks_per_node : int, optional
        How many neighbouring ranks are taken for a node; those on one computer by default.
    layout : str
        Who owns the blocks of a new tensor: one of `tilewise.plans.layout.LAYOUTS`.
    progress : callable, optional
        Called on the first rank every few seconds of a run with how far it has come.
    """

    name = "mpi"

    def __init__(
        self,
        workers: int | None = None,
        ranks_per_node: int | None = None,
        layout: str = "cyclic",
        progress: Tell | None = None,
    ) -> None:
        check_layout(layout)
        self.world: World = make_world(ranks_per_node)
        self.layout = layout
        self.host = ThreadsEngine(self.world.cores if workers is None else workers, progress=progress)
        self.progress = self.host.progress if self.world.rank == 0 else None
        self.memory = self.host.memory

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.world.rank

    @property
    def machine(self) -> Machine:
        """Where plans are made for: the computer of the first rank, so that all plan alike."""
        return self.world.machine

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.world.size

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a node."""
        return self.world.ranks_per_node

    @property
    def replicates(self) -> bool:
        """Whether every rank gets all blocks of a new tensor."""
        return self.layout == "replicated"

    @property
    def node(self) -> Node:
        """The memory that this rank shares with others."""
        return make_node(self.world)

    def agree(self, work: Callable[[], Result], *, once: bool = False) -> Result | None:
        """Have every rank do something, or the first one; if one fails, all raise its error."""
        return self.world.agree(work, once=once)

    def of_first(self, value: Result) -> Result:
        """What the first rank has, on every rank."""
        return self.world.of_first(value)

    def least(self, value: int) -> int:
        """The least of what the ranks have, on every rank."""
        return self.world.least(value)

    def abandon(self, error: BaseException, message: str = "") -> None:
        """End all ranks because this one leaves: alone, it would have the others wait for it."""
        if self.world.size > 1:
            end_job(error, message)

    def allocate(self, pattern: Pattern, dtype: npt.DTypeLike, *, zero: bool) -> Arena:
        """Storage for a new tensor: every rank keeps what is small, and shares what is not."""
        if self._kept_by_all(pattern, dtype):
            return super().allocate(pattern, dtype, zero=zero)
        layout = make_layout(self.layout, pattern, self.world.size)
        self.world.check_agreed(digest((np.dtype(dtype), pattern_digest(pattern)), [layout.owner]), "a new tensor")
        return make_spread(self.node, pattern, layout, dtype, zero=zero)

    def _kept_by_all(self, pattern: Pattern, dtype: npt.DTypeLike) -> bool:
        return self.world.size == 1 or self.replicates or is_small(pattern, np.dtype(dtype))

    def prepare(self, plan: Plan) -> Plan:
        """The plan as the workers of a rank run it."""
        return self.host.prepare(plan)

    def run_resident(self, call: Call) -> tuple[BlockTensor, Trace]:
        """Run a plan on this rank alone."""
        return self.host.run_resident(call)

    def run(
        self,
        plan: Plan,
        operands: Sequence[BlockTensor],
        *,
        out: BlockTensor | None = None,
        alpha: Scalar = 1,
        beta: Scalar = 0,
    ) -> BlockTensor:
        """Run a plan: together if a tensor is shared or the work is worth it, else each rank for itself."""
        made = self.prepare(plan)
        if not self._is_shared(made, operands, out):
            return super().run(plan, operands, out=out, alpha=alpha, beta=beta)
        if out is not None and isinstance(out.storage, Spread) and out.storage.node is not self.node:
            raise InputError(
                f"out= of {plan.label} was made with another ranks_per_node= than this engine has. Expected the same. "
                "Make it under the engine that adds to it."
            )
        begin = time.perf_counter()
        self._check_call(plan, operands, out, alpha, beta)
        with Watch(self.progress, made.label, made.flops) as watch:
            sharing, parts = self._shared(made, operands, out)
            account = Account(sys.maxsize if plan.budget is None else plan.budget)
            account.take(sharing.request.copied_bytes, "Operands in another type or from other nodes")
            converted = tuple(self._converted(operand, made) for operand in operands)
            call = Call(made, converted, out, alpha, beta, account, watch)
            run = SharedRun(self.node, self.host, sharing, parts, call, self._follow(call))
            result = self._finished(run, call)
        plan.runs.append(self._trace(made, run, time.perf_counter() - begin))
        return result

    def _finished(self, run: SharedRun, call: Call) -> BlockTensor:
        """The result where it belongs."""
        if call.out is not None:
            add_result(run, call.out)
            call.out.engine = self
            return call.out
        result = make_result(run, self)
        if call.account is not None and self._kept_by_all(result.pattern, result.dtype):
            call.account.take(result.nbytes, "The result on every rank")
        return self.settled(result)

    def settled(self, tensor: BlockTensor) -> BlockTensor:
        """A new tensor as ranks keep it: those that are small, and all of a replicating engine, on every rank."""
        return self.replicated(tensor) if self._kept_by_all(tensor.pattern, tensor.dtype) else tensor

    def spread(self, tensor: BlockTensor, layout: str) -> BlockTensor:
        """A tensor with other owners, by one planned exchange."""
        owners = make_layout(layout, tensor.pattern, self.world.size)
        words = (layout, tensor.dtype, _place(tensor), pattern_digest(tensor.pattern))
        self.world.check_agreed(digest(words), "where blocks go")
        if layout == "replicated":
            return self.replicated(tensor)
        if self.world.size == 1:
            return tensor
        made = make_spread(self.node, tensor.pattern, owners, tensor.dtype, zero=False)
        if isinstance(tensor.storage, Spread) and tensor.storage.node is self.node:
            change_layout(self.node, tensor.storage, made)
        else:
            tensor.read_into(made)
        return BlockTensor(tensor.pattern, made, self, tensor.error_bound)

    def replicated(self, tensor: BlockTensor) -> BlockTensor:
        """A tensor whose blocks every rank has."""
        if not tensor.in_memory:
            arena = Arena.allocate(tensor.pattern, tensor.dtype, zero=False)
            tensor.read_into(arena)
            return BlockTensor(tensor.pattern, arena, self, tensor.error_bound)
        if not isinstance(tensor.storage, Spread):
            return tensor
        arena, item = Arena.allocate(tensor.pattern, tensor.dtype, zero=False), tensor.dtype.itemsize
        for row, part in arena.parts(tensor.pattern):
            if tensor.storage.layout.owner[row] == self.world.rank:
                tensor.storage.read(row, part.reshape(-1))
        sizes = tensor.pattern.block_sizes * item
        self.world.share_parts(arena.data.view(np.uint8), arena.offsets * item, sizes, tensor.storage.layout.owner)
        return BlockTensor(tensor.pattern, arena, self, tensor.error_bound)

    def _check_call(
        self, plan: Plan, operands: Sequence[BlockTensor], out: BlockTensor | None, alpha: Scalar, beta: Scalar
    ) -> None:
        """Raise, on all ranks, if their calls differ."""
        limit = plan.tolerance if plan.tolerance is not None and plan.tolerance < math.inf else 0.0
        words = (plan.label, plan.dtype, plan.tolerance is None, plan.tolerance == math.inf, plan.budget is None)
        places = [_place(operand) for operand in operands], None if out is None else _place(out)
        self.world.check_agreed(digest((words, places)), plan.label, [limit, alpha, beta])

    def _is_shared(self, plan: Plan, operands: Sequence[BlockTensor], out: BlockTensor | None) -> bool:
        if self.world.size == 1:
            return False
        tensors = [*operands, *([] if out is None else [out])]
        return plan.sharing is not None or is_worth_sharing(
            plan, [owner_of(tensor, self.ranks, self) for tensor in tensors]
        )

    def _converted(self, operand: BlockTensor, plan: Plan) -> BlockTensor:
        """An operand with the plan's element type, in the memory of these nodes."""
        if isinstance(operand.storage, Spread) and operand.storage.node is not self.node:
            made = make_spread(self.node, operand.pattern, operand.storage.layout, operand.dtype, zero=False)
            operand.read_into(made)
            operand = BlockTensor(operand.pattern, made, self, operand.error_bound)
        same = not operand.in_memory or operand.dtype == plan.dtype
        return operand if same else operand.astype(plan.dtype)

    def _shared(
        self, plan: Plan, operands: Sequence[BlockTensor], out: BlockTensor | None
    ) -> tuple[Sharing, list[Part | None]]:
        """How the ranks share a step, and what this one does of it, stage by stage."""
        given, planned = list_given(operands, plan.dtype, self.ranks, self), plan.sharing
        owners = [each.owner for each in given]
        asked = (plan.request if planned is None else planned.request) or Request(1, 1)
        request = asked_with(asked.on(self.ranks, self.ranks_per_node, self.replicates), given)
        usable, fit = planned is not None and planned.fits(request, owners), None
        limit = budget_of_rank(None, given, request) if plan.budget is None else plan.budget
        if limit is not None:
            budget = self.world.least(limit)
            same = self.world.largest(limit) == budget  # else ranks may have planned different stages
            usable = bool(self.world.least(usable and same))
            fit = partial(fit_budget, budget=budget, peak_of=self._largest_peak)
        share = partial(plan_sharing, plan, request, owners, machine=plan.machine or self.machine, fit=fit)
        ways: list[Callable[[], Sharing]] = [share]
        if usable and planned is not None:
            ways.insert(0, partial(fit or _unchanged, planned))
        settled = self._settled(plan, request, out)
        if settled is not None:
            ways.insert(0, partial(share, rank_of_block=settled))
        sharing = first_that_fits(ways)
        self.world.check_agreed(sharing.digest, plan.label)
        return sharing, sharing.parts(self.world.rank)

    def _settled(self, plan: Plan, request: Request, out: BlockTensor | None) -> Ints | None:
        """Who had best compute each result block: the owner of where a sum is added, or by times of the run before."""
        if isinstance(plan.work, Sum) and out is not None and isinstance(out.storage, Spread):
            return out.storage.layout.owner[find_slots(plan.result, out.pattern)]
        return refined(plan, self.ranks) if request.balancer == "measured" else None

    def _largest_peak(self, sharing: Sharing) -> int:
        own = sharing.peak_bytes(self.world.rank, sharing.parts(self.world.rank), self.workers)
        return self.world.largest(own)

    def _follow(self, call: Call) -> Callable[[Callable[[], int]], AbstractContextManager[None]]:
        size, flops = self.world.size, call.plan.flops
        return lambda done: call.watch.following(lambda: min(size * done(), flops))  # as if all were as far

    def _trace(self, plan: Plan, run: SharedRun, seconds: float) -> Trace:
        tasks, calls, flops = (int(n) for n in self.world.sum(run.counts.work))
        ranks = self._rank_traces(run)
        return Trace(
            label=plan.label,
            seconds=seconds,
            packing_seconds=0.0,
            flops=flops,
            tasks=tasks,
            calls=calls,
            workers=self.workers * self.world.size,
            buffer_bytes=max(rank.peak_bytes for rank in ranks),
            library=self.host.blas.name if plan.kernel == "gemm" else OWN_KERNEL,
            phases=run.traffic.stage_count,
            ranks=ranks,
            block_seconds=None if run.block_seconds is None else self.world.sum(run.block_seconds),
        )

    def _rank_traces(self, run: SharedRun) -> tuple[RankTrace, ...]:
        """What each rank did, on every rank."""
        counts, origin = run.counts, self.world.origin
        spans = tuple((what, begin - origin, end - origin) for what, begin, end in counts.spans)
        own = RankTrace(
            flops=int(counts.work[2]),
            inside_bytes=counts.inside_bytes,
            between_bytes=counts.moved.between_bytes,
            messages=counts.moved.messages,
            tickets=counts.tickets,
            peak_bytes=0 if run.call.account is None else run.call.account.peak,
            spans=spans,
        )
        return tuple(self.world.gather(own))


def _place(tensor: BlockTensor) -> list[int]:
    """Where a tensor lies, which all ranks see alike and no other tensor does; empty if ranks do not share it."""
    return tensor.storage.bases.tolist() if isinstance(tensor.storage, Spread) else []


def _unchanged(sharing: Sharing) -> Sharing:
    return sharing
