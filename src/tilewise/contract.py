"""The whole path on one page: an einsum string becomes plans, plans become a tensor."""

from __future__ import annotations

import math
import os
import string
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NoReturn

import numpy as np

from tilewise.engines.base import current_engine, make_engine
from tilewise.engines.matching import Operand, are_suited, fit_again, list_given, list_sources
from tilewise.errors import InputError
from tilewise.expressions import check_spaces, check_text, parse_expression
from tilewise.machine import Machine, check_machine
from tilewise.patterns import Pattern, equal_structure
from tilewise.plans import Plan, Program, Step, plan_steps
from tilewise.plans.budget import MOST, is_asked, parse_memory
from tilewise.plans.chains import Chain, find_chain
from tilewise.plans.comparison import Comparison, Measured, compare_deals, list_tasks
from tilewise.plans.fitting import within_budget
from tilewise.plans.pools import TicketCost
from tilewise.plans.propagation import NORM_LENIENCE, parse_tolerance, scaled_error
from tilewise.plans.shared_steps import budget_of_rank, share_steps
from tilewise.plans.sharing import Request
from tilewise.plans.steps import check_errors, propagate_errors, step_error
from tilewise.spaces.differences import modes_text
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.drafts import parse_scratch
from tilewise.tensors.protocol import Scalar
from tilewise.tensors.scalars import parse_factor


def einsum(
    expression: str,
    *operands: BlockTensor,
    out: BlockTensor | None = None,
    alpha: Scalar = 1,
    beta: Scalar = 0,
    tol: float | None = None,
    memory: int | str | None = None,
    scratch: str | os.PathLike[str] | None = None,
    engine: str | Engine | None = None,
    algorithm: str = "auto",
    balancer: str = "static",
    reproducible: bool = False,
) -> BlockTensor:
    """Contract block-sparse tensors, by NumPy's rules for einsum strings.

    Parameters
    ----------
    expression : str
        An einsum string, with or without ``->`` and ``...``.
    *operands : BlockTensor
        One or more tensors; equal letters stand for equal spaces, tile by tile.
    out : BlockTensor, optional
        Where the result is added; it must store every block the result has.
    alpha, beta : number
        The result is ``alpha * contraction + beta * out``.
    tol : float, optional
        Largest Frobenius error of the result (of the contraction, before alpha): products that are safe to
        drop are dropped, and ``error_bound`` of the result says how much that may be.
    memory : int or str, optional
        Most bytes that the call may add: the result, buffers, blocks that are made or read.  An integer, or a string
        such as ``"4GB"``; what ``TILEWISE_MEMORY`` says by default, else 80 % of the free memory.  If that is too
        little, the call works in phases, and a result that does not fit is left on disk (its `in_memory` is false);
        if it is less than any phase needs, it is a `MemoryBudgetError` before anything is computed.
    scratch : str or Path, optional
        Folder on a disk with room for results that do not fit; the system's temporary folder by default.  What is
        there has no name and is gone with the tensor.
    engine : str or Engine, optional
        Who runs it; the engine in use by default.
    algorithm, balancer : str
        How ranks share the work, see `plan`.
    reproducible : bool
        The same bits for any number of workers and ranks.  Threads always give them; ranks have to be asked, since
        some products are faster where they also share the sums.

    Returns
    -------
    BlockTensor
        The result; without modes it is a scalar, see `BlockTensor.item`.

    Examples
    --------
    >>> import tilewise as tw
    >>> occ, vir = tw.Space([2, 3], name="occ"), tw.Space([4, 4], name="vir")
    >>> t = tw.random((occ, occ, vir, vir), density=0.5)
    >>> v = tw.random((vir, vir, vir, vir), density=0.3, seed=1)
    >>> tw.einsum("ijcd,cdab->ijab", t, v).shape
    (5, 5, 8, 8)
    """
    _check_tensors(operands, repr(expression))
    runner = find_engine(engine)
    made = plan(
        expression,
        *operands,
        tol=tol,
        memory=memory,
        scratch=scratch,
        engine=runner,
        algorithm=algorithm,
        balancer=balancer,
        reproducible=reproducible,
    )
    return execute(made, *operands, out=out, alpha=alpha, beta=beta, engine=runner)


def plan(
    expression: str,
    *operands: Operand,
    tol: float | None = None,
    memory: int | str | None = None,
    scratch: str | os.PathLike[str] | None = None,
    engine: str | Engine | None = None,
    ranks: int | None = None,
    ranks_per_node: int | None = None,
    algorithm: str = "auto",
    balancer: str = "static",
    reproducible: bool = False,
    machine: Machine | None = None,
) -> Plan | Program:
    """Say what a contraction will do and cost, before anything is allocated.

    Parameters
    ----------
    expression : str
        An einsum string.
    *operands : BlockTensor or Pattern
        Only patterns are looked at; without a tensor the elements are taken to be float64.
    tol : float, optional
        Largest Frobenius error of the result.
    memory : int or str, optional
        Most bytes that a run may add, see `einsum`.  Patterns without this are planned as if there were no limit.
    scratch : str or Path, optional
        Folder for results that do not fit, see `einsum`.
    engine : str or Engine, optional
        For whom the projection is made.
    ranks, ranks_per_node : int, optional
        How many ranks share the work, and how many of them share a node; those of the engine by default, and one on
        each node where only ``ranks=`` is given.  Up to a million can be planned for: nothing is started.
    algorithm : str
        ``"stationary"``: the larger operand stays, the other passes by on a grid of ranks.  ``"owner"``: each result
        block is computed by one rank, which gets what it needs.  ``"summa"``: rows, columns and, unless the result is
        to be reproducible, k on a grid that is laid over nodes so that little crosses between them.  ``"auto"``: what
        should be fastest.
    balancer : str
        Who gives result blocks to ranks where these own them: one of `tilewise.plans.balance.BALANCERS`, or
        ``"measured"``: as ``"static"``, and from the second run of the plan on by the times of the run before.  Any but
        ``"static"`` means ``algorithm="owner"``.
    reproducible : bool
        Whether the bits of the result must not depend on the ranks.
    machine : Machine, optional
        Where the projection is made for; this computer by default.

    Examples
    --------
    >>> import tilewise as tw
    >>> i = tw.Space([10] * 4)
    >>> p = tw.Pattern.random((i, i), density=0.5)
    >>> tw.plan("ij,jk->ik", p, p).tasks
    1
    """
    _check_operands(expression, operands)
    patterns = [o.pattern if isinstance(o, BlockTensor) else o for o in operands]
    parsed = parse_expression(expression, tuple(p.ndim for p in patterns))
    check_spaces(parsed, [p.spaces for p in patterns])
    errors = [o.error_bound if isinstance(o, BlockTensor) else 0.0 for o in operands]
    if machine is not None:
        check_machine(machine)
    runner = find_engine(engine)
    tolerance, workers = parse_tolerance(tol), runner.workers
    steps, bound = plan_steps(parsed, patterns, _dtype(operands), tolerance, errors, workers)
    steps = tuple(replace(step, plan=runner.prepare(step.plan)) for step in steps)
    folder = None if scratch is None else parse_scratch(scratch)
    if ranks_per_node is None:
        ranks_per_node = runner.ranks_per_node if ranks is None else 1
    everywhere = ranks is None and runner.replicates
    ranks = runner.ranks if ranks is None else ranks
    request = Request(ranks, ranks_per_node, algorithm, balancer, reproducible, everywhere)
    steps = tuple(replace(step, plan=replace(step.plan, request=request, scratch=folder)) for step in steps)
    if request.ranks > 1:
        given = list_given(operands, _dtype(operands), request.ranks, runner)
        budget = budget_of_rank(memory, given, request)
        steps = share_steps(steps, given, request, budget, runner.machine if machine is None else machine)
    elif is_asked(memory) or all(isinstance(o, BlockTensor) for o in operands):
        steps = within_budget(steps, list_sources(operands, _dtype(operands)), memory, folder)
    made: Plan | Program
    if len(steps) == 1:
        made = steps[0].plan if steps[0].plan.tolerance == tolerance else replace(steps[0].plan, tolerance=tolerance)
    else:
        made = Program(parsed.label(), tuple(patterns), steps, tolerance, bound)
    return made if machine is None else made.on(machine)


def plan_chain(
    expression: str,
    *operands: Operand,
    memory: int | str | None = None,
    tol: float | None = None,
) -> Chain:
    """Say which neighbouring steps of a many-operand expression are worth fusing, before anything is allocated.

    Fused steps run together, slice by slice, and what the first makes for the second never leaves memory.  The
    answer comes from lower bounds: what fusing can spare at the most, and what the loops around the steps need.

    Parameters
    ----------
    expression : str
        An einsum string of several steps; they stand in the order that `plan` finds.
    *operands : BlockTensor or Pattern
        Only patterns are looked at; without a tensor the elements are taken to be float64.
    memory : int or str, optional
        Bytes of the memory whose traffic is counted: everything that is worked on must be there, the operands too.
        What ``TILEWISE_MEMORY`` says by default, else 80 % of the free memory.
    tol : float, optional
        Largest Frobenius error of the result.

    Returns
    -------
    Chain
        Bounds of the steps, a verdict on every two neighbours, and the best groups that fit; it can be printed.

    Examples
    --------
    >>> import tilewise as tw
    >>> ao, mo = tw.Space([10] * 10), tw.Space([10] * 8)
    >>> integrals, orbitals = tw.Pattern.dense((ao,) * 3), tw.Pattern.dense((ao, mo))
    >>> chain = tw.plan_chain("pqx,pi,qj->ijx", integrals, orbitals, orbitals, memory="2MB")
    >>> pair, = chain.neighbours
    >>> pair.verdict, pair.least_bytes, pair.whole_bytes, round(pair.spared_share, 2)
    ('fuse', 728000, 6544000, 0.49)
    """
    level = parse_memory(memory)
    # Steps as they would be with any amount of memory: how each is cut into phases plays no part here.
    made = plan(expression, *operands, tol=tol, memory=MOST, engine="threads")
    if isinstance(made, Plan):
        raise InputError(
            f"{expression!r} is a single step. Expected an expression of several, such as 'ij,jk,kl->il', of which "
            "neighbours can be fused. Use tw.plan to see what it costs."
        )
    return find_chain(made, level)


def compare_balancers(
    expression: str,
    *operands: Operand,
    ranks: int | None = None,
    ranks_per_node: int | None = None,
    run: bool = False,
    tickets: TicketCost | None = None,
    noise: float = 0.0,
    seed: int = 0,
    machine: Machine | None = None,
) -> Comparison:
    """Say how evenly, with how many tickets and how many moved bytes each balancer would share a product among ranks.

    Parameters
    ----------
    expression : str
        An einsum string of two operands.
    *operands : BlockTensor or Pattern
        Only patterns are looked at.
    ranks : int, optional
        How many ranks there would be; those of the engine in use by default.
    ranks_per_node : int, optional
        How many of them share a node; those of the engine, or as many as the machine has cores, by default.
    run : bool
        Whether the product is also run with each balancer, on the ranks of the engine in use; then the operands are
        tensors, and the table has what was measured as well.
    tickets : TicketCost, optional
        What drawing a task from a shared counter costs.
    noise : float
        Standard deviation of the logarithm of what tasks really take over what balancers expect.
    seed : int
        Which scatter.
    machine : Machine, optional
        Whose rates the balancers expect; this computer's by default.

    Examples
    --------
    >>> import tilewise as tw
    >>> i = tw.Space([10] * 12)
    >>> p = tw.Pattern.random((i, i), density=0.2)
    >>> found = tw.compare_balancers("ij,jk->ik", p, p, ranks=8, ranks_per_node=4)
    >>> found.of("counter").outcome.tickets - found.of("nonnull").outcome.tickets == found.null_tasks
    True
    """
    made = plan(expression, *operands, engine="threads")
    if isinstance(made, Program):
        raise InputError(
            f"{expression!r} has {len(made.steps)} steps. Expected one product of two operands. Compare the steps one "
            "by one: tw.plan(...).steps lists them."
        )
    if machine is not None:
        check_machine(machine)
    runner = current_engine()
    where = runner.machine if machine is None else machine
    if not isinstance(run, bool):
        raise InputError(f"run={run!r:.40} is neither True nor False. Expected one of them. Correct it.")
    if run and (ranks, ranks_per_node) != (None, None):
        raise InputError(
            "run=True runs on the ranks of the engine in use. Expected it without ranks= and ranks_per_node=. Leave "
            "them away, or run=."
        )
    if ranks is None:
        ranks = runner.ranks
        ranks_per_node = runner.ranks_per_node if ranks_per_node is None else ranks_per_node
    node = where.cores if ranks_per_node is None else ranks_per_node
    tasks = list_tasks(made, where)
    found = compare_deals(made.label, tasks, ranks=ranks, ranks_per_node=node, tickets=tickets, noise=noise, seed=seed)
    return _run_each(expression, operands, found) if run else found


def _run_each(expression: str, operands: Sequence[Operand], found: Comparison) -> Comparison:
    """A comparison with what each balancer comes to in a run."""
    _check_tensors(operands, repr(expression))
    if found.ranks == 1:
        raise InputError(
            "run=True measures balancers on several ranks, and there is one. Expected a job under mpiexec and the mpi "
            "engine. Leave run= away to see what a model says."
        )
    rows = []
    for row in found.rows:
        made = plan(expression, *operands, algorithm="owner", balancer=row.outcome.balancer)
        execute(made, *(o for o in operands if isinstance(o, BlockTensor)))
        assert isinstance(made, Plan)
        if not made.runs[-1].ranks:
            raise InputError(
                f"{expression!r} is so little work that every rank does it for itself. Expected a product that ranks "
                "share. Compare balancers on a larger one."
            )
        rows.append(replace(row, measured=Measured.of(made.runs[-1])))
    return replace(found, rows=tuple(rows))


def execute(
    plan: Plan | Program,
    *operands: BlockTensor,
    out: BlockTensor | None = None,
    alpha: Scalar = 1,
    beta: Scalar = 0,
    engine: str | Engine | None = None,
) -> BlockTensor:
    """Run a plan on tensors that have the patterns it was made for.

    The result has the tensors' element type; where that is not the plan's, the plan is worked out again for it.
    A plan with a tolerance runs only on tensors with which it keeps it: their norms are not above those it was
    made for, and their own error bounds leave room.  A plan with a budget that another engine runs than the one it was
    made for, or that meets operands elsewhere, is fitted again before anything is computed.

    Examples
    --------
    >>> import tilewise as tw
    >>> i = tw.Space([10] * 4)
    >>> t = tw.random((i, i), density=0.5)
    >>> made = tw.plan("ij,jk->ik", t, t)
    >>> r = tw.execute(made, t, t)
    """
    runner = find_engine(engine)
    if not isinstance(plan, Plan | Program):
        raise InputError(
            f"execute was given {plan!r:.60} as the plan. Expected what tw.plan returns. Make a plan first."
        )
    steps = plan.steps if isinstance(plan, Program) else (Step(plan, tuple(range(len(plan.operands))), -1, ()),)
    patterns = plan.operands if isinstance(plan, Program) else tuple(o.pattern for o in plan.operands)
    _check_match(patterns, operands, plan.tolerance if len(patterns) > 1 else None)
    dtype = _dtype(operands)
    alpha = parse_factor("alpha", alpha, dtype)
    beta = parse_factor("beta", beta, dtype)
    if out is not None:
        _check_out(out, plan.result, dtype, operands, runner.ranks)
    elif beta != 0:
        raise InputError(
            f"beta={beta!r} scales what out= holds, and there is no out=. Expected both or none. Pass out=, or leave "
            "beta away."
        )
    if not are_suited(steps, operands, dtype, out is not None, runner):
        steps = fit_again(steps, operands, dtype, out is not None, runner)
    promised = _promised_error(plan.tolerance, steps, patterns, operands)
    alive = dict(enumerate(operands))
    for step in steps[:-1]:
        inputs = [alive[i] for i in step.inputs]
        alive[step.result] = runner.run(step.plan, inputs)
        alive[step.result].error_bound = _error(step.plan, inputs)
        for done in step.frees:
            del alive[done]
    inputs = [alive[i] for i in steps[-1].inputs]
    held, before = 0.0, None
    if out is not None:
        held, out.error_bound, before = out.error_bound, math.inf, out.pattern  # should the run be interrupted
    try:
        result = runner.run(steps[-1].plan, inputs, out=out, alpha=alpha, beta=beta)
    except BaseException:
        if out is not None and out.pattern is before:  # nothing was written: its norms are what they were
            out.error_bound = held
        raise
    error = min(_error(steps[-1].plan, inputs), promised)
    result.error_bound = scaled_error(abs(alpha), error) + scaled_error(abs(beta), held)
    return result


def dot(left: BlockTensor, right: BlockTensor) -> complex | float:
    """The sum of the products of all elements, the left ones conjugated.

    Examples
    --------
    >>> import numpy as np, tilewise as tw
    >>> i = tw.Space([1, 2])
    >>> t = tw.from_dense(np.eye(3), (i, i))
    >>> tw.dot(t, t)
    3.0
    """
    _check_tensors((left, right), "dot")
    if left.ndim != right.ndim:
        raise InputError(
            f"dot of tensors with {left.ndim} and {right.ndim} modes. Expected the same modes in both. Contract them "
            "with tw.einsum."
        )
    if left.ndim > len(string.ascii_letters):
        raise InputError(
            f"dot of tensors with {left.ndim} modes. At most {len(string.ascii_letters)} have letters. Transpose and "
            "contract parts of them."
        )
    names = string.ascii_letters[: left.ndim]
    conjugate = left.conj() if left.dtype.kind == "c" else left
    value: complex | float = einsum(f"{names},{names}->", conjugate, right).item()
    return value


def _check_operands(text: str, operands: Sequence[object]) -> None:
    check_text(text)
    for number, operand in enumerate(operands):
        if not isinstance(operand, (BlockTensor, Pattern)):
            _raise_no_tensor(number, operand, repr(text))


def _check_tensors(operands: Sequence[object], where: str) -> None:
    for number, operand in enumerate(operands):
        if not isinstance(operand, BlockTensor):
            _raise_no_tensor(number, operand, where)


def _raise_no_tensor(number: int, operand: object, where: str) -> NoReturn:
    raise InputError(
        f"Operand {number} of {where} is a {type(operand).__name__}. Expected a BlockTensor. "
        "Make one of an array with tw.from_dense(array, spaces)."
    )


def _dtype(operands: Sequence[Operand]) -> np.dtype[np.generic]:
    kinds = [o.dtype for o in operands if isinstance(o, BlockTensor)]
    return reduce(np.promote_types, kinds) if kinds else np.dtype(np.float64)


def find_engine(engine: Any) -> Engine:
    """The engine that a user names or gives; None is the one in use."""
    if engine is None:
        return current_engine()
    if isinstance(engine, str):
        return make_engine(engine)
    if isinstance(engine, type) or not hasattr(engine, "run") or not hasattr(engine, "workers"):
        raise InputError(
            f"engine={engine!r} runs no plans. Expected a name such as 'threads', or an engine. Use what "
            "`with tw.engine('threads') as e` gives, or leave engine= away."
        )
    return engine  # type: ignore[no-any-return]


def _error(plan: Plan, inputs: Sequence[BlockTensor]) -> float:
    """Bound on the error of what a step made, from its operands' and from what it dropped."""
    return step_error(plan, [tensor.pattern for tensor in inputs], [tensor.error_bound for tensor in inputs])


def _promised_error(
    tol: float | None, steps: Sequence[Step], patterns: Sequence[Pattern], operands: Sequence[BlockTensor]
) -> float:
    """The bound on the error that a run will keep; a tolerance that it would not keep is an error before the run."""
    if tol is None:
        return math.inf
    bound = propagate_errors(steps, patterns, [tensor.error_bound for tensor in operands])[-1]
    check_errors(bound, tol)
    return bound


def _check_match(patterns: Sequence[Pattern], operands: Sequence[BlockTensor], tol: float | None) -> None:
    _check_tensors(operands, "the plan")
    if len(patterns) != len(operands):
        raise InputError(
            f"{len(operands)} {'tensor was' if len(operands) == 1 else 'tensors were'} given for a plan of "
            f"{len(patterns)} operands. Expected one tensor each. Pass the tensors in the order of the expression."
        )
    for number, (pattern, operand) in enumerate(zip(patterns, operands, strict=True)):
        own = operand.pattern
        if own is pattern:
            continue
        if not equal_structure(own, pattern):
            raise InputError(
                f"Operand {number} has {own!r}, but the plan was made for {pattern!r}. Expected the same blocks. "
                "Make a new plan for this tensor."
            )
        if tol is not None and np.any(own.norms > pattern.norms * (1 + NORM_LENIENCE)):
            raise InputError(
                f"Operand {number} has blocks with larger norms than the plan was made for, so tol={tol} would not be "
                "kept. Expected norms not above the plan's. Make a new plan for this tensor."
            )


def _check_out(
    out: BlockTensor, result: Pattern, dtype: np.dtype[np.generic], operands: Sequence[BlockTensor], ranks: int
) -> None:
    if not isinstance(out, BlockTensor):
        raise InputError(
            f"out= is a {type(out).__name__}. Expected a BlockTensor. Make one with tw.zeros(pattern=plan.result)."
        )
    if not out.in_memory:
        raise InputError("out= is not in memory. Expected a tensor whose elements are. Pass out=tensor.copy().")
    if out.arena.owner is not None and ranks == 1:
        raise InputError(
            "out= is spread over ranks, and each would add everything to it. Expected the engine it was made with. Use "
            "the mpi engine."
        )
    if out.symmetry is not None:
        raise InputError(
            "out= has a permutational symmetry. Expected a tensor that stores all blocks. Leave out= away."
        )
    if out.spaces != result.spaces:
        raise InputError(
            f"out= has the spaces {out.spaces}, the result {result.spaces}: {modes_text(out.spaces, result.spaces)}. "
            "Expected equal spaces, tile by tile. Use tw.zeros(pattern=plan.result)."
        )
    if out.dtype != dtype:
        raise InputError(
            f"out= holds {out.dtype.name}, the result is {dtype.name}. Expected the same type. Use out.astype()."
        )
    if any(o is out or (o.in_memory and np.shares_memory(o.arena.own, out.arena.own)) for o in operands):
        raise InputError("out= is one of the operands. Expected a tensor of its own. Pass a copy().")
