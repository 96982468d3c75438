"""Tilewise on a benchmark problem: planning, running a plan, and both."""

from __future__ import annotations

from typing import Any

import tilewise as tw
from peers.contender import Contender
from problems import Problem, blocks, checksum_blocks, projection_error
from tilewise.tensors import BlockTensor

PRODUCT = "ik,kj->ij"
ROUNDING = 1e-10


def tilewise(problem: Problem, threads: int) -> Contender:
    """`plan` alone, `execute` of a plan made before, and `einsum`, which does both."""
    m, k, n = tw.Space(problem.m, name="m"), tw.Space(problem.k, name="k"), tw.Space(problem.n, name="n")
    with tw.engine("threads", workers=threads):
        a = tw.from_blocks(blocks(problem.a), (m, k))
        b = tw.from_blocks(blocks(problem.b), (k, n))
        plan = tw.plan(PRODUCT, a, b)
    actions = {
        "plan": lambda: tw.plan(PRODUCT, a, b),
        "execute": lambda: tw.execute(plan, a, b),
        "einsum": lambda: tw.einsum(PRODUCT, a, b),
    }
    context = tw.engine("threads", workers=threads)
    return Contender(actions, problem.flops, lambda result: checksum(problem, result), context)


def checksum(problem: Problem, result: Any) -> float | None:
    """Checksum of a tensor, after a test of the product against its operands; None for a plan."""
    if not isinstance(result, BlockTensor):
        return None
    error = projection_error(problem, result.blocks())
    if not error < ROUNDING:
        raise ArithmeticError(f"tilewise's product of {problem.name} is wrong: projection error {error:.1e}")
    return checksum_blocks(problem, result.blocks())
