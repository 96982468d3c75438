"""Contraction orders of many-operand expressions, and the estimates they rest on."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from expressions.blocks import Blocks, blocks
from tilewise.errors import InputError
from tilewise.expressions import Expression, PairStep, estimate, find_order, order, parse_expression
from tilewise.expressions.estimate import Estimator, fill
from tilewise.spaces import Space


def multiplications(steps: Sequence[PairStep], patterns: Sequence[Blocks]) -> int:
    """The scalar multiplications of an order, counted on the non-zero elements."""
    masks = [pattern.mask() for pattern in patterns]
    total = 0
    for step in steps:
        terms = ",".join(map("".join, step.expression.operands))
        total += int(np.einsum(f"{terms}->", masks[step.left], masks[step.right]))
        product = np.einsum(step.expression.label(), masks[step.left], masks[step.right])
        masks.append((np.asarray(product) > 0).astype(np.int64))
    return total


def pairs(steps: Sequence[PairStep]) -> list[tuple[int, int]]:
    return [(step.left, step.right) for step in steps]


def chain(*spaces: Space) -> tuple[Expression, list[tuple[Space, Space]]]:
    """The product of matrices over neighbouring spaces."""
    letters = "abcdefghijklmnopqrstuvwxyz"[: len(spaces)]
    terms = [letters[i : i + 2] for i in range(len(spaces) - 1)]
    expression = parse_expression(f"{','.join(terms)}->{letters[0]}{letters[-1]}", (2,) * len(terms))
    return expression, list(pairwise(spaces))


WIDE = Space.uniform(60, tile=5)
SHORT = Space.uniform(30, tile=5)


def test_dense_chain_starts_at_the_short_end() -> None:
    expression, spaces = chain(WIDE, WIDE, WIDE, SHORT)
    steps = find_order(expression, [blocks(s) for s in spaces])
    assert pairs(steps) == [(1, 2), (0, 3)]
    assert [step.expression.label() for step in steps] == ["bc,cd->bd", "ab,bd->ad"]
    assert [step.result for step in steps] == [3, 4]
    assert [step.multiplications for step in steps] == [60 * 60 * 30] * 2
    assert [step.density for step in steps] == [1.0, 1.0]


def test_sparsity_changes_the_order() -> None:
    expression, spaces = chain(WIDE, WIDE, WIDE, SHORT)
    diagonal = np.eye(12, dtype=bool)
    sparse = [blocks(spaces[0], diagonal), blocks(spaces[1], diagonal), blocks(spaces[2])]
    dense_steps = find_order(expression, [blocks(s) for s in spaces])
    steps = find_order(expression, sparse)
    assert pairs(steps) == [(0, 1), (3, 2)]
    assert multiplications(steps, sparse) < 0.6 * multiplications(dense_steps, sparse)


def test_operands_that_do_not_meet_come_first() -> None:
    """Equal densities everywhere: only the patterns show that the product of the first two is zero."""
    expression, spaces = chain(WIDE, WIDE, WIDE, SHORT)
    low = np.arange(12) < 6
    half = np.ones((12, 6), dtype=bool)
    half[::2] = False
    disjoint = [
        blocks(spaces[0], np.broadcast_to(low, (12, 12))),
        blocks(spaces[1], np.broadcast_to(~low[:, None], (12, 12))),
        blocks(spaces[2], half),
    ]
    steps = find_order(expression, disjoint)
    assert pairs(steps) == [(0, 1), (3, 2)]
    assert [step.multiplications for step in steps] == [0.0, 0.0]
    assert multiplications(steps, disjoint) == 0


def test_greedy_follows_sparsity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "EXHAUSTIVE_OPERANDS", 2)
    expression, spaces = chain(WIDE, WIDE, WIDE, WIDE)
    diagonal = np.eye(12, dtype=bool)
    for thin in (0, 2):
        patterns = [blocks(s, diagonal if place in (thin, 1) else None) for place, s in enumerate(spaces)]
        assert pairs(find_order(expression, patterns))[0] == ((0, 1) if thin == 0 else (1, 2))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ij,jk,kl->il", ["ij,jk->ik", "ik,kl->il"]),
        ("xij,jkx,klx->xil", ["xij,jkx->xik", "xik,klx->xil"]),
        ("iij,jk,k->i", ["jk,k->j", "iij,j->i"]),
        (",i,->i", [",->", ",i->i"]),
    ],
)
def test_steps_of_small_expressions(text: str, expected: list[str]) -> None:
    spaces = {letter: Space([2, 30] if letter == "l" else [2, 3]) for letter in "ijklx"}
    terms = text.split("->")[0].split(",")
    patterns = [blocks([spaces[letter] for letter in term]) for term in terms]
    steps = find_order(parse_expression(text, tuple(map(len, terms))), patterns)
    assert [step.expression.label() for step in steps] == expected


def test_two_operands_are_one_step() -> None:
    patterns = [blocks((WIDE, SHORT)), blocks((SHORT, WIDE))]
    (step,) = find_order(parse_expression("ij,jk->ki", (2, 2)), patterns)
    assert (step.left, step.right, step.result, step.expression.label()) == (0, 1, 2, "ij,jk->ki")


def test_one_operand_has_no_order() -> None:
    with pytest.raises(InputError, match=r"'ii->' has 1 operand\. Expected two or more"):
        find_order(parse_expression("ii", (2,)), [blocks((WIDE, WIDE))])


def test_mismatched_spaces_are_found() -> None:
    with pytest.raises(InputError, match=r"Index 'j' .* 60 elements .* 30 elements"):
        find_order(parse_expression("ij,jk", (2, 2)), [blocks((WIDE, WIDE)), blocks((SHORT, WIDE))])


def test_spaces_without_tiles() -> None:
    empty = Space([])
    expression, spaces = chain(WIDE, empty, WIDE, SHORT)
    steps = find_order(expression, [blocks(s) for s in spaces])
    assert len(steps) == 2
    assert sum(step.multiplications for step in steps) == 0.0


def test_large_tile_counts_do_not_overflow() -> None:
    space = Space([1] * 1000)
    rng = np.random.default_rng(0)
    index = np.unique(rng.integers(0, 1000, (50, 9)), axis=0)
    pattern = Blocks((space,) * 9, index)
    (step,) = find_order(parse_expression("abcdefghi,abcdefghi->abcdefghi", (9, 9)), [pattern, pattern])
    assert step.multiplications == len(index)
    assert step.density == pytest.approx(len(index) / 1000.0**9)


@pytest.mark.parametrize(
    ("share", "tiles", "expected"),
    [(0.0, 5, 0.0), (1.0, 5, 1.0), (1.0, 0, 0.0), (0.5, 0, 0.0), (0.5, 2, 0.75), (1e-20, 10, 1e-19)],
)
def test_fill(share: float, tiles: float, expected: float) -> None:
    assert fill(share, tiles) == pytest.approx(expected, rel=1e-12)


def test_fill_of_a_product_too_large_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random patterns have no correlations, so the formula is near the count."""
    rng = np.random.default_rng(1)
    space = Space([1] * 60)
    patterns = [blocks((space, space), rng.random((60, 60)) < 0.1) for _ in range(2)]
    expression = parse_expression("ij,jk->ik", (2, 2))
    (counted,) = find_order(expression, patterns)
    monkeypatch.setattr(estimate, "COUNTED_PRODUCTS", 0)
    (estimated,) = find_order(expression, patterns)
    assert counted.density == (patterns[0].mask() @ patterns[1].mask() > 0).mean()
    assert estimated.density == pytest.approx(counted.density, rel=0.1)
    assert estimated.density != counted.density
    assert estimated.multiplications == counted.multiplications


def test_estimator_keeps_no_arrays() -> None:
    """opt_einsum caches the comparison it is given, so it must stay small."""
    pattern = blocks((WIDE, WIDE))
    estimator = Estimator(parse_expression("ij,jk", (2, 2)), [pattern, pattern])
    held = pickle.dumps(estimator)
    assert b"numpy" not in held
    assert b"Space" not in held


SCRIPT = """
import numpy as np
from types import SimpleNamespace
from tilewise.expressions import find_order, parse_expression
from tilewise.spaces import Space
space = Space([1, 2, 1])
for text in (
    "ab,bc,cd,da->",
    "abx,bcx,cdx,dex,efx,fgx,ghx,hix,ijx,jax->x",
    "aw,bw,cw,dw,ew,fw,gw,hw,iw,w->abcdefghi",
):
    ndims = tuple(map(len, text.split("->")[0].split(",")))
    patterns = [SimpleNamespace(spaces=(space,) * n, index=np.argwhere(np.ones((3,) * n))) for n in ndims]
    print(*(step.expression for step in find_order(parse_expression(text, ndims), patterns)))
"""


def test_order_does_not_depend_on_the_hash_seed() -> None:
    """Every rank of a parallel run has to find the same order, ties included."""
    path = os.pathsep.join(sys.path)
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
