"""The whole path on one page: an einsum string becomes plans, plans become a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from tilewise.engines.base import current_engine, make_engine
from tilewise.errors import InputError
from tilewise.expressions import (
    Expression,
    Reduction,
    check_spaces,
    find_order,
    lower_pair,
    lower_single,
    parse_expression,
)
from tilewise.patterns import Pattern, without_symmetry
from tilewise.plans import Plan, Program, Step, inspect_product, inspect_reduction
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
    made = make_plan(expression, operands, tol, engine)
    return execute(made, *operands, out=out, alpha=alpha, beta=beta, engine=engine)


def plan(expression: str, *operands: Operand, tol: float | None = None, engine: str | Engine | None = None) -> Plan | Program:
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
    return make_plan(expression, operands, tol, engine)


def make_plan(
    text: str, operands: Sequence[Operand], tol: float | None, engine: str | Engine | None = None
) -> Plan | Program:
    """Parse, check, order and inspect."""
    _check_operands(text, operands)
    patterns = [o.pattern if isinstance(o, BlockTensor) else o for o in operands]
    expression = parse_expression(text, tuple(p.ndim for p in patterns))
    check_spaces(expression, [p.spaces for p in patterns])
    dtype = _dtype(operands)
    workers = _engine(engine).workers
    bounds = [o.error_bound if isinstance(o, BlockTensor) else 0.0 for o in operands]
    steps = _steps(expression, patterns, dtype, tol, bounds, workers)
    if len(steps) == 1:
        return steps[0].plan
    return Program(expression.label(), tuple(patterns), steps, tol, _dropped(steps))


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


def _steps(
    expression: Expression,
    patterns: list[Pattern],
    dtype: np.dtype[np.generic],
    tol: float | None,
    bounds: list[float],
    workers: int,
) -> tuple[Step, ...]:
    """Plan reductions and products in order; the tolerance is shared by the products."""
    if len(patterns) == 1:
        return (Step(inspect_reduction(lower_single(expression), patterns[0], dtype, workers=workers), (0,), 1, ()),)
    order = find_order(expression, [without_symmetry(p) for p in patterns]) if len(patterns) > 2 else None
    pairs = [(s.left, s.right, s.expression) for s in order] if order else [(0, 1, expression)]
    known, errors = list(patterns), list(bounds)
    number_of = list(range(len(patterns)))
    steps: list[Step] = []

    def reduced(at: int, reduction: Reduction | None) -> int:
        if reduction is None:
            return at
        made = inspect_reduction(reduction, known[at], dtype, workers=workers)
        steps.append(Step(made, (at,), len(known), (at,) if at >= len(patterns) else ()))
        known.append(made.result)
        errors.append(_reduced_error(reduction, known[at], errors[at]))
        return len(known) - 1

    for done, (left, right, pair_expression) in enumerate(pairs):
        pair = lower_pair(pair_expression)
        a, b = reduced(number_of[left], pair.left), reduced(number_of[right], pair.right)
        share = _share(tol, known[a], known[b], errors[a], errors[b], [known[number_of[i]] for i in _later(pairs[done + 1 :], len(patterns))], len(pairs))
        made = inspect_product(pair.contraction, known[a], known[b], dtype, tolerance=share, workers=workers)
        if tol is not None and len(pairs) == 1:
            made = replace(made, tolerance=tol)
        frees = tuple(n for n in dict.fromkeys((a, b)) if n >= len(patterns))
        steps.append(Step(made, (a, b), len(known), frees))
        known.append(made.result)
        errors.append(_product_error(known[a].norm, known[b].norm, errors[a], errors[b]) + made.dropped_bound)
        number_of.append(len(known) - 1)
    return tuple(steps)


def _later(pairs: Sequence[tuple[int, int, Expression]], operands: int) -> list[int]:
    """Operands of the expression that later steps bring in."""
    return [i for left, right, _ in pairs for i in (left, right) if i < operands]


def _share(
    tol: float | None, left: Pattern, right: Pattern, left_error: float, right_error: float, later: list[Pattern], pairs: int
) -> float | None:
    """What a step may drop: its share of the tolerance, divided by what later steps make of an error."""
    if tol is None:
        return None
    if not tol >= 0:
        raise InputError(
            f"tol={tol} is not a tolerance. Expected a number >= 0, the largest Frobenius error of the result, or None "
            "for no screening. Correct it."
        )
    growth = math.prod(max(p.norm, 1e-300) for p in later)
    if not math.isfinite(growth):
        return 0.0
    share = tol / pairs / growth
    inherited = _product_error(left.norm, right.norm, left_error, right_error)
    if pairs == 1 and inherited > tol:
        raise InputError(
            f"The operands' own error bounds already allow an error of {inherited:.3g} in the result. tol={tol:.3g} was "
            "asked for. Contract with a larger tol, or screen the operands less."
        )
    return max(share - inherited, 0.0) if pairs == 1 else share


def _reduced_error(reduction: Reduction, pattern: Pattern, error: float) -> float:
    """A sum of s elements is at most sqrt(s) times their norm."""
    if error == 0:
        return 0.0
    count = math.prod(pattern.spaces[reduction.operand.index(name)].size for name in reduction.summed)
    return error * math.sqrt(count)


def _product_error(left: float, right: float, left_error: float, right_error: float) -> float:
    """Error of a product whose operands are off by the given Frobenius norms."""
    total = left_error * right_error
    total += left_error * right if left_error else 0.0
    return total + (right_error * left if right_error else 0.0)


def _dropped(steps: tuple[Step, ...]) -> float:
    """Bound on what all steps together drop, carried to the result."""
    errors: dict[int, float] = {}
    norms: dict[int, float] = {}
    for step in steps:
        for number, operand in zip(step.inputs, step.plan.operands, strict=True):
            norms.setdefault(number, operand.pattern.norm)
            errors.setdefault(number, 0.0)
        if len(step.inputs) == 1:
            (source,) = step.inputs
            work = step.plan.work
            assert not hasattr(work, "contraction")
            errors[step.result] = _reduced_error(work.reduction, step.plan.operands[0].pattern, errors[source])  # type: ignore[union-attr]
        else:
            a, b = step.inputs
            errors[step.result] = _product_error(norms[a], norms[b], errors[a], errors[b]) + step.plan.dropped_bound
        norms[step.result] = step.plan.result.norm
    return errors[steps[-1].result]


def _note_error(result: BlockTensor, plan: Plan, inputs: list[BlockTensor], alpha: Scalar, beta: Scalar) -> None:
    if len(inputs) == 1:
        made = _reduced_error(plan.work.reduction, inputs[0].pattern, inputs[0].error_bound)  # type: ignore[union-attr]
    else:
        left, right = inputs
        made = _product_error(left.pattern.norm, right.pattern.norm, left.error_bound, right.error_bound)
        made += plan.dropped_bound
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
        if own.spaces != pattern.spaces or own.symmetry != pattern.symmetry or not np.array_equal(own.index, pattern.index):
            raise InputError(
                f"Operand {number} has {own!r}, but the plan was made for {pattern!r}. Expected the same blocks. Make a "
                "new plan for this tensor."
            )
        if tol is not None and np.any(own.norms > pattern.norms * (1 + 1e-9)):
            raise InputError(
                f"Operand {number} has blocks with larger norms than the plan was made for, so tol={tol} would not be "
                "kept. Expected norms not above the plan's. Make a new plan for this tensor."
            )


def _check_out(out: BlockTensor, plan: Plan | Program, operands: Sequence[BlockTensor], beta: Scalar) -> None:
    if not isinstance(out, BlockTensor):
        raise InputError(f"out= is a {type(out).__name__}. Expected a BlockTensor. Make one with tw.zeros(pattern=plan.result).")
    if out.symmetry is not None:
        raise InputError("out= has a permutational symmetry. Expected a tensor that stores all blocks. Leave out= away.")
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
