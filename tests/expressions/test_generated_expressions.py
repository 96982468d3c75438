"""Generated expressions: parsing, lowering and ordering agree with NumPy's einsum."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expressions.blocks import Blocks, blocks
from tilewise.errors import InputError
from tilewise.expressions import (
    Expression,
    Reduction,
    estimate,
    find_order,
    lower_pair,
    lower_single,
    parse_expression,
)
from tilewise.expressions.estimate import Estimator
from tilewise.expressions.order import ELEMENT_COST
from tilewise.spaces import Space

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """An expression with patterns and with arrays that are zero outside them."""

    expression: Expression
    patterns: list[Blocks]
    arrays: list[Array]


@st.composite
def expressions(draw: st.DrawFn, fewest: int, most: int, letters: str = "abcdef", modes: int = 4) -> Expression:
    """Any valid expression: repeated, batch, lone and summed indices, scalars, disconnected operands."""
    term = st.lists(st.sampled_from(letters), max_size=modes).map(tuple)
    operands = tuple(draw(st.lists(term, min_size=fewest, max_size=most)))
    used = sorted({letter for operand in operands for letter in operand})
    output = draw(st.permutations(used).flatmap(lambda p: st.integers(0, len(p)).map(lambda n: tuple(p[:n]))))
    return Expression(operands, output)


@st.composite
def problems(
    draw: st.DrawFn, fewest: int, most: int, letters: str = "abcdef", modes: int = 4, tiles: int = 3
) -> Problem:
    """An expression over irregular tilings (sometimes without tiles) and random patterns."""
    expression = draw(expressions(fewest, most, letters, modes))
    tilings = st.lists(st.integers(1, 2), min_size=draw(st.sampled_from([0, 1, 1, 1])), max_size=tiles)
    spaces = {letter: Space(draw(tilings)) for letter in expression.indices}
    density = draw(st.sampled_from([0.2, 0.5, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    patterns, arrays = [], []
    for operand in expression.operands:
        own = tuple(spaces[letter] for letter in operand)
        present = rng.random([space.ntiles for space in own]) < density
        patterns.append(blocks(own, present))
        mask = patterns[-1].mask()
        # Whole numbers other than zero: results are exact, and zero only where the pattern or chance says so.
        arrays.append(mask * rng.choice([-2, -1, 1, 2, 3], size=mask.shape))
    return Problem(expression, patterns, arrays)


def run(expression: Expression, *arrays: Array) -> Array:
    result: Array = np.asarray(np.einsum(expression.label(), *arrays))
    return result


def run_reduction(step: Reduction | None, array: Array) -> Array:
    return array if step is None else np.asarray(np.einsum(step.label(), array))


def permuted(array: Array, indices: tuple[str, ...], wanted: tuple[str, ...]) -> Array:
    return array.transpose([indices.index(i) for i in wanted])


def run_in_order(problem: Problem) -> Array:
    tensors = list(problem.arrays)
    steps = find_order(problem.expression, problem.patterns)
    used = [number for step in steps for number in (step.left, step.right)]
    assert sorted(used) == list(range(len(tensors) + len(steps) - 1))
    for step in steps:
        assert step.result == len(tensors)
        tensors.append(run(step.expression, tensors[step.left], tensors[step.right]))
    return tensors[-1]


@settings(max_examples=300)
@given(problems(2, 6))
def test_found_order_gives_the_whole(problem: Problem) -> None:
    np.testing.assert_array_equal(run_in_order(problem), run(problem.expression, *problem.arrays), strict=True)


@settings(max_examples=100)
@given(problems(9, 13, letters="abcdefgh", modes=3, tiles=2))
def test_greedy_order_gives_the_whole(problem: Problem) -> None:
    np.testing.assert_array_equal(run_in_order(problem), run(problem.expression, *problem.arrays), strict=True)


@settings(max_examples=300)
@given(problems(2, 2, modes=5))
def test_lowered_pair_gives_the_whole(problem: Problem) -> None:
    lowered = lower_pair(problem.expression)
    product = lowered.contraction
    product.check()
    left = run_reduction(lowered.left, problem.arrays[0])
    right = run_reduction(lowered.right, problem.arrays[1])
    extents = dict(zip(product.left + product.right, left.shape + right.shape, strict=True))
    groups = product.batch, product.m, product.n, product.k
    batch, m, n, k = (prod(extents[i] for i in group) for group in groups)
    a = permuted(left, product.left, product.batch + product.m + product.k).reshape(batch, m, k)
    b = permuted(right, product.right, product.batch + product.k + product.n).reshape(batch, k, n)
    order = product.batch + product.m + product.n
    c = permuted((a @ b).reshape([extents[i] for i in order]), order, product.result)
    np.testing.assert_array_equal(c, run(problem.expression, *problem.arrays), strict=True)


@given(problems(1, 1, letters="abc"))
def test_lowered_single_gives_the_whole(problem: Problem) -> None:
    step = lower_single(problem.expression)
    (array,) = problem.arrays
    for letter in step.repeated:
        assert step.operand.count(letter) > 1
    np.testing.assert_array_equal(run_reduction(step, array), run(problem.expression, array), strict=True)


@settings(max_examples=200)
@given(problems(2, 2), st.booleans())
def test_pairs_are_counted_exactly(problem: Problem, estimated: bool) -> None:
    """Multiplications always; the density of the product unless it is too large to count."""
    terms: list[tuple[str, ...]] = []
    masks: list[Array] = []
    for operand, array in zip(problem.expression.operands, problem.arrays, strict=True):
        other = problem.expression.operands[1 - len(terms)]
        kept = tuple(dict.fromkeys(i for i in operand if i in other + problem.expression.output))
        terms.append(kept)
        masks.append((run(Expression((operand,), kept), abs(array)) > 0).astype(np.int64))
    product = Expression(tuple(terms), problem.expression.output)
    with pytest.MonkeyPatch.context() as patch:
        if estimated:
            patch.setattr(estimate, "COUNTED_PRODUCTS", -1)
        (step,) = find_order(problem.expression, problem.patterns)
    count = run(Expression(product.operands, ()), *masks)
    assert step.multiplications == pytest.approx(float(count), rel=1e-12)
    result = run(product, *masks)
    if not estimated:
        assert step.density == pytest.approx((result > 0).mean() if result.size else 0.0, rel=1e-12)
    assert 0.0 <= step.density <= 1.0


@settings(max_examples=100)
@given(problems(3, 3))
def test_three_operands_start_with_the_cheapest_pair(problem: Problem) -> None:
    estimator = Estimator(problem.expression, problem.patterns)

    def cost(first: int, second: int) -> float:
        one, two = estimator.operands[first], estimator.operands[second]
        inner, inner_count = estimator.multiply(one, two)
        outer, outer_count = estimator.multiply(inner, estimator.operands[3 - first - second])
        return inner_count + outer_count + ELEMENT_COST * (inner.elements + outer.elements)

    first = find_order(problem.expression, problem.patterns)[0]
    assert cost(first.left, first.right) == pytest.approx(min(cost(*p) for p in combinations(range(3), 2)))


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, list[Array]]:
    """A valid einsum string with blanks, ellipses and an implicit or explicit output, and arrays for it."""
    expression = draw(expressions(1, 4, letters="ijAkb", modes=3))
    extents = dict(zip("ijAkb", (2, 3, 2, 1, 4), strict=True))
    dots = draw(st.lists(st.integers(1, 3), max_size=3))
    terms, shapes = [], []
    for operand in expression.operands:
        place = draw(st.integers(0, len(operand)))
        covered = draw(st.none() | st.integers(0, len(dots)))
        shape = [extents[letter] for letter in operand]
        shapes.append(shape[:place] + dots[len(dots) - (covered or 0) :] + shape[place:])
        terms.append([*operand[:place], *([] if covered is None else ["..."]), *operand[place:]])
    text = ",".join(map(draw(st.sampled_from(["", " "])).join, terms))
    if draw(st.booleans()):
        place = draw(st.integers(0, len(expression.output)))
        text += " -> " + "".join([*expression.output[:place], "...", *expression.output[place:]])
    rng = np.random.default_rng(0)
    return text, [rng.integers(-3, 4, shape) for shape in shapes]


@settings(max_examples=300)
@given(texts())
def test_strings_mean_what_they_mean_to_numpy(case: tuple[str, list[Array]]) -> None:
    text, arrays = case
    expression = parse_expression(text, tuple(array.ndim for array in arrays))
    np.testing.assert_array_equal(run(expression, *arrays), np.asarray(np.einsum(text, *arrays)), strict=True)


@settings(max_examples=400)
@given(
    st.lists(st.sampled_from(["i", "j", "A", "->", ",", "...", ".", "-", ">", "1"]), max_size=8).map("".join),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
)
def test_strings_are_refused_where_numpy_refuses(text: str, ndims: list[int]) -> None:
    arrays = [np.ones((2,) * ndim, dtype=np.int64) for ndim in ndims]
    try:
        expected = np.asarray(np.einsum(text, *arrays))
    except ValueError:
        with pytest.raises(InputError):
            parse_expression(text, tuple(ndims))
    else:
        found = run(parse_expression(text, tuple(ndims)), *arrays)
        np.testing.assert_array_equal(found, expected, strict=True)
