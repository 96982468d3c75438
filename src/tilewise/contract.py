"""The whole path on one page: an einsum string becomes plans, plans become a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from tilewise.engines.base import current_engine, make_engine
from tilewise.errors import InputError
from tilewise.expressions import check_spaces, parse_expression
from tilewise.patterns import Pattern
from tilewise.plans import Plan, Program, Step, Sum, plan_steps
from tilewise.plans.propagation import parse_tolerance, product_error, reduced_error
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.protocol import Scalar

Operand = BlockTensor | Pattern


def einsum(
    expression: str,
    *operands: BlockTensor,
    out: BlockTensor | None = None,
    alpha: Scalar = 1,
    beta: Scalar = 0,
    tol: float | None = None,
    engine: str | Engine | None = None,
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
    engine : str or Engine, optional
        Who runs it; the engine in use by default.
    reproducible : bool
        The same bits for any number of workers.  This engine always gives them; others have to be asked.

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
    made = plan(expression, *operands, tol=tol, engine=engine)
    return execute(made, *operands, out=out, alpha=alpha, beta=beta, engine=engine)


def plan(
    expression: str, *operands: Operand, tol: float | None = None, engine: str | Engine | None = None
) -> Plan | Program:
    """Say what a contraction will do and cost, before anything is allocated.

    Parameters
    ----------
    expression : str
        An einsum string.
    *operands : BlockTensor or Pattern
        Only patterns are looked at.
    tol : float, optional
        Largest Frobenius error of the result.
    engine : str or Engine, optional
        For whom the projection is made.

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
    dtype, workers = _dtype(operands), _engine(engine).workers
    steps, bound = plan_steps(parsed, patterns, dtype, parse_tolerance(tol), errors, workers)
    if len(steps) == 1:
        return steps[0].plan
    return Program(parsed.label(), tuple(patterns), steps, tol, bound)


def execute(
    plan: Plan | Program,
    *operands: BlockTensor,
    out: BlockTensor | None = None,
    alpha: Scalar = 1,
    beta: Scalar = 0,
    engine: str | Engine | None = None,
) -> BlockTensor:
    """Run a plan on tensors that have the patterns it was made for.

    Examples
    --------
    >>> import tilewise as tw
    >>> i = tw.Space([10] * 4)
    >>> t = tw.random((i, i), density=0.5)
    >>> made = tw.plan("ij,jk->ik", t, t)
    >>> r = tw.execute(made, t, t)
    """
    runner = _engine(engine)
    steps = plan.steps if isinstance(plan, Program) else (Step(plan, tuple(range(len(plan.operands))), -1, ()),)
    patterns = plan.operands if isinstance(plan, Program) else [o.pattern for o in plan.operands]
    _check_match(patterns, operands, plan.tolerance)
    if out is not None:
        _check_out(out, plan, operands, beta)
    alive = dict(enumerate(operands))
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        inputs = [alive[i] for i in step.inputs]
        if last:
            result = runner.run(step.plan, inputs, out=out, alpha=alpha, beta=beta)
        else:
            result = runner.run(step.plan, inputs)
        _note_error(result, step.plan, inputs, alpha if last else 1, beta if last and out is not None else 0)
        alive[step.result] = result
        for done in step.frees:
            del alive[done]
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
    names = "".join(chr(ord("a") + d) for d in range(left.ndim))
    other = "".join(chr(ord("a") + d) for d in range(right.ndim))
    conjugate = left.conj() if left.dtype.kind == "c" else left
    value: complex | float = einsum(f"{names},{other}->", conjugate, right).item()
    return value


def _check_operands(text: str, operands: Sequence[Operand]) -> None:
    for number, operand in enumerate(operands):
        if not isinstance(operand, (BlockTensor, Pattern)):
            raise InputError(
                f"Operand {number} of {text!r} is a {type(operand).__name__}. Expected a BlockTensor. "
                "Make one of an array with tw.from_dense(array, spaces)."
            )


def _dtype(operands: Sequence[Operand]) -> np.dtype[np.generic]:
    kinds = [o.dtype for o in operands if isinstance(o, BlockTensor)]
    return reduce(np.promote_types, kinds) if kinds else np.dtype(np.float64)


def _engine(engine: str | Engine | None) -> Engine:
    if engine is None:
        return current_engine()
    return make_engine(engine) if isinstance(engine, str) else engine


def _note_error(result: BlockTensor, plan: Plan, inputs: list[BlockTensor], alpha: Scalar, beta: Scalar) -> None:
    """Set the result's error bound from its operands' and from what the plan dropped."""
    if isinstance(plan.work, Sum):
        made = reduced_error(plan.work.reduction, inputs[0].pattern, inputs[0].error_bound)
    else:
        left, right = inputs
        norms = left.pattern.norm if right.error_bound else 0.0, right.pattern.norm if left.error_bound else 0.0
        made = product_error(*norms, left.error_bound, right.error_bound) + plan.dropped_bound
    result.error_bound = abs(alpha) * made + (abs(beta) * result.error_bound if beta else 0.0)


def _check_match(patterns: Sequence[Pattern], operands: Sequence[BlockTensor], tol: float | None) -> None:
    if len(patterns) != len(operands):
        raise InputError(
            f"{len(operands)} tensors were given for a plan of {len(patterns)} operands. Expected one tensor each. "
            "Pass the tensors in the order of the expression."
        )
    for number, (pattern, operand) in enumerate(zip(patterns, operands, strict=True)):
        own = operand.pattern
        if own is pattern:
            continue
        if (
            own.spaces != pattern.spaces
            or own.symmetry != pattern.symmetry
            or not np.array_equal(own.index, pattern.index)
        ):
            raise InputError(
                f"Operand {number} has {own!r}, but the plan was made for {pattern!r}. Expected the same blocks. "
                "Make a new plan for this tensor."
            )
        if tol is not None and np.any(own.norms > pattern.norms * (1 + 1e-9)):
            raise InputError(
                f"Operand {number} has blocks with larger norms than the plan was made for, so tol={tol} would not be "
                "kept. Expected norms not above the plan's. Make a new plan for this tensor."
            )


def _check_out(out: BlockTensor, plan: Plan | Program, operands: Sequence[BlockTensor], beta: Scalar) -> None:
    if not isinstance(out, BlockTensor):
        raise InputError(
            f"out= is a {type(out).__name__}. Expected a BlockTensor. Make one with tw.zeros(pattern=plan.result)."
        )
    if out.symmetry is not None:
        raise InputError(
            "out= has a permutational symmetry. Expected a tensor that stores all blocks. Leave out= away."
        )
    if out.spaces != plan.result.spaces:
        raise InputError(
            f"out= has the spaces {out.spaces}, the result {plan.result.spaces}. Expected equal spaces, tile by tile. "
            "Use tw.zeros(pattern=plan.result)."
        )
    if out.dtype != plan.dtype:
        raise InputError(
            f"out= holds {out.dtype.name}, the result is {plan.dtype.name}. Expected the same type. Use out.astype()."
        )
    if any(o is out or np.shares_memory(o.arena.data, out.arena.data) for o in operands):
        raise InputError("out= is one of the operands. Expected a tensor of its own. Pass a copy().")
