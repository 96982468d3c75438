"""Screening by a tolerance on the result: what is dropped is safe, accounted, and worth it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from plans.enumeration import all_flops, all_products, planned_products, work_of
from references import assert_sound, dense, true_norm
from strategies import EinsumCase, matrix_cases, patterns, tensors
from tilewise.plans import Plan


def decades(tensor: tw.BlockTensor, seed: int, span: float) -> tw.BlockTensor:
    """The tensor with its blocks scaled by random powers of ten."""
    rng = np.random.default_rng(seed)
    pattern = tensor.pattern
    norms = 10.0 ** rng.uniform(-span, 0, pattern.nnz_blocks)
    norms[rng.random(len(norms)) < 0.1] = 0.0
    scaled = tw.Pattern(pattern.spaces, pattern.index, norms, pattern.symmetry)
    return tw.random(pattern=scaled, seed=seed, dtype=tensor.dtype)


@st.composite
def screened_cases(draw: st.DrawFn, dtype: str = "float64") -> tuple[EinsumCase, float]:
    """A product of tensors with norms over many decades, and a tolerance."""
    case = draw(matrix_cases(dtype, batches=draw(st.sampled_from((0, 0, 1))), symmetric=draw(st.booleans())))
    seed, span = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from((3.0, 8.0, 14.0)))
    scaled = tuple(decades(tensor, seed + i, span) for i, tensor in enumerate(case.tensors))
    tol = draw(st.sampled_from((0.0, 1e-12, 1e-8, 1e-5, 1e-3, 1e-1, 1.0, 1e3, math.inf)))
    return EinsumCase(case.text, scaled), tol


@settings(max_examples=200)
@given(screened_cases())
def test_the_error_is_within_its_bound_and_the_bound_within_tol(given_: tuple[EinsumCase, float]) -> None:
    case, tol = given_
    result = tw.einsum(case.text, *case.tensors, tol=tol)
    assert result.error_bound <= tol
    assert true_norm(dense(result) - case.expected) <= result.error_bound + 1e-14 * case.scale
    assert_sound(result)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_other_types_are_screened_as_well(dtype: str) -> None:
    @settings(max_examples=30)
    @given(screened_cases(dtype))
    def check(given_: tuple[EinsumCase, float]) -> None:
        case, tol = given_
        result = tw.einsum(case.text, *case.tensors, tol=tol)
        assert result.error_bound <= tol
        rounding = 1e-14 if dtype == "complex128" else 1e-5
        assert true_norm(dense(result) - case.expected) <= result.error_bound + rounding * case.scale

    check()


@settings(max_examples=60)
@given(screened_cases())
def test_kept_and_dropped_products_are_all_products(given_: tuple[EinsumCase, float]) -> None:
    """The bound is what the dropped products can amount to, and the counts add up."""
    case, tol = given_
    plan = tw.plan(case.text, *case.tensors, tol=tol)
    assert isinstance(plan, Plan)
    work = work_of(plan)
    left, right = (operand.pattern for operand in plan.operands)
    every, kept = all_products(work.contraction, left, right), planned_products(plan)
    assert kept <= every
    assert work.screened_products == sum(every.values()) - sum(kept.values())
    assert plan.products == sum(kept.values())
    assert plan.flops + plan.screened_flops == all_flops(work.contraction, left, right, complex_=False)
    lost: dict[tuple[int, ...], float] = {}
    for a, b, c in every - kept:
        norm = block_bound(left, a) * block_bound(right, b)
        lost[c] = lost.get(c, 0.0) + norm
    assert plan.dropped_bound >= math.sqrt(sum(x * x for x in lost.values())) * (1 - 1e-12)
    assert plan.dropped_bound <= tol
    assert plan.tolerance == tol


def block_bound(pattern: tw.Pattern, block: Sequence[int]) -> float:
    """The norm bound of any block of the full tensor."""
    unique = tuple(block) if pattern.symmetry is None else pattern.symmetry.locate(block)[0]
    return float(pattern.norms[pattern.row(unique)])


@settings(max_examples=50)
@given(screened_cases())
def test_no_tolerance_drops_nothing_and_zero_only_zeros(given_: tuple[EinsumCase, float]) -> None:
    case, _ = given_
    full, exact = (tw.plan(case.text, *case.tensors, tol=tol) for tol in (None, 0.0))
    assert full.screened_flops == full.dropped_bound == exact.dropped_bound == 0
    result = tw.execute(exact, *case.tensors)
    assert result.error_bound == 0.0
    assert true_norm(dense(result) - case.expected) <= 1e-12 * case.scale


def decaying_chain(tiles: int, tile: int = 6, *, cut: float) -> tuple[tw.BlockTensor, tw.BlockTensor]:
    """Matrices over a chain of tiles whose norms fall by a factor e for every two tiles of distance."""
    space = tw.Space([tile] * tiles)
    pattern = tw.Pattern.decaying((space, space), length=2.0, cut=cut)
    return tw.random(pattern=pattern), tw.random(pattern=pattern, seed=1)


def test_decaying_norms_drop_at_least_a_quarter() -> None:
    left, right = decaying_chain(80, cut=0.0)
    exact = tw.einsum("ij,jk->ik", left, right)
    tol = 1e-6 * exact.norm()
    plan = tw.plan("ij,jk->ik", left, right, tol=tol)
    assert isinstance(plan, Plan)
    work = work_of(plan)
    assert work.products + work.screened_products == 80**3
    assert work.screened_products >= 0.25 * 80**3
    result = tw.execute(plan, left, right)
    assert true_norm(dense(result) - dense(exact)) <= result.error_bound + 1e-13 * exact.norm()
    assert 0 < result.error_bound <= tol


def test_a_larger_tolerance_drops_more() -> None:
    left, right = decaying_chain(30, cut=1e-12)
    norm = tw.einsum("ij,jk->ik", left, right).norm()
    dropped = [tw.plan("ij,jk->ik", left, right, tol=norm * 10.0**power).screened_flops for power in range(-12, 1, 2)]
    assert dropped == sorted(dropped)
    assert dropped[-1] > 0


def test_tolerances_are_used_not_only_kept() -> None:
    """The next product in size would not fit any more: the threshold is not far from the largest possible."""
    left, right = decaying_chain(24, cut=1e-12)
    tol = 1e-4
    plan = tw.plan("ij,jk->ik", left, right, tol=tol)
    assert 0.3 * tol <= plan.dropped_bound <= tol


def test_blocks_that_lose_all_their_products_are_not_stored() -> None:
    left, right = decaying_chain(30, cut=0.0)
    plan = tw.plan("ij,jk->ik", left, right, tol=1e-3)
    assert plan.result.nnz_blocks < 30 * 30
    assert tw.execute(plan, left, right).pattern.nnz_blocks == plan.result.nnz_blocks


def test_a_tolerance_above_everything_drops_everything_known() -> None:
    left, right = decaying_chain(5, cut=0.0)
    result = tw.einsum("ij,jk->ik", left, right, tol=math.inf)
    assert result.pattern.nnz_blocks == 0
    assert true_norm(dense(left) @ dense(right)) <= result.error_bound < math.inf


# ---- errors that are inherited ----


def screened(tol: float = 1e-2) -> tuple[tw.BlockTensor, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """A screened result and what it would be without screening."""
    left, right = decaying_chain(10, 3, cut=0.0)
    result = tw.einsum("ij,jk->ik", left, right, tol=tol)
    exact = dense(left) @ dense(right)
    assert 0 < true_norm(dense(result) - exact) <= result.error_bound
    return result, exact


UNARY = ["ij->ji", "ii->i", "ii->", "ij->i", "ij->", "ij->j"]


@pytest.mark.parametrize("text", UNARY)
def test_reductions_carry_the_error_along(text: str) -> None:
    result, exact = screened()
    reduced = tw.einsum(text, result)
    true = true_norm(dense(reduced) - np.asarray(np.einsum(text, exact)))
    assert 0 < true <= reduced.error_bound + 1e-12


@pytest.mark.parametrize(
    "text", ["ij,jk->ik", "ij,ij->ij", "ij,kj->ik", "ij,ij->", "ij,kk->ij", "ij,jk->i", "ij,kl->ijkl"]
)
@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
@pytest.mark.parametrize("tol", [None, 50.0])
def test_products_carry_the_errors_along(text: str, both: bool, tol: float | None) -> None:
    result, exact = screened()
    other = result if both else tw.random(result.spaces, 0.5)
    array = exact if both else dense(other)
    made = tw.einsum(text, result, other, tol=tol)
    expected = np.asarray(np.einsum(text, exact, array))
    assert true_norm(dense(made) - expected) <= made.error_bound + 1e-12 * true_norm(expected)
    if tol is not None:
        assert made.error_bound <= tol
    assert made.error_bound > 0


def test_errors_scale_with_alpha_and_add_to_those_of_out() -> None:
    result, _ = screened()
    other = tw.random(result.spaces, 0.5)
    plain = tw.einsum("ij,jk->ik", result, other)
    assert tw.einsum("ij,jk->ik", result, other, alpha=-3).error_bound == pytest.approx(3 * plain.error_bound)
    out = tw.random(result.spaces)
    out.error_bound = 0.5
    tw.einsum("ij,jk->ik", result, other, out=out, alpha=2, beta=-4)
    assert out.error_bound == pytest.approx(2 * plain.error_bound + 2.0)


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk,kl->il"])
def test_operands_with_more_error_than_tol_allows_are_refused(text: str) -> None:
    result, _ = screened()
    with pytest.raises(tw.InputError, match=r"error.*tol=1e-09.*larger tol"):
        tw.einsum(text, *[result] * (text.count(",") + 1), tol=1e-9)


@pytest.mark.parametrize("text", ["ij->ji", "ij,jk->ik", "ij,kk->ij", "ij,jk,kl->il"])
def test_a_plan_of_patterns_refuses_tensors_whose_own_errors_break_its_tolerance(text: str) -> None:
    left, _ = decaying_chain(6, 2, cut=0.0)
    operands = [left] * (text.count(",") + 1)
    plan = tw.plan(text, *[operand.pattern for operand in operands], tol=1e-3)
    assert tw.execute(plan, *operands).error_bound <= 1e-3
    left.error_bound = 1e-9
    assert 0 < tw.execute(plan, *operands).error_bound <= 1e-3
    left.error_bound = 1e-2
    with pytest.raises(tw.InputError, match=r"error.*tol=0\.001.*larger tol"):
        tw.execute(plan, *operands)


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk,kl->il"])
def test_tensors_scaled_to_the_norms_of_a_pattern_fit_its_plan(text: str) -> None:
    space = tw.Space([3] * 12)
    pattern = tw.Pattern.decaying((space, space), length=1.0)
    count = text.count(",") + 1
    plan = tw.plan(text, *[pattern] * count, tol=1e-3)
    result = tw.execute(plan, *[tw.random(pattern=pattern, seed=seed) for seed in range(count)])
    assert 0 < result.error_bound <= 1e-3


# ---- many operands ----

CHAINS = [
    "ij,jk,kl->il",
    "ij,jk,kl->",
    "ij,jk,kl->i",
    "ij,jk,kl->jk",
    "ij,jk,kl,lm->im",
    "ij,kl,jk,lm->mi",
    "ij,kj,kl->li",
    "ij,ij,jk->ik",
    "ii,ij,jk->k",
    "ij,jk,kl,lm,mn->in",
    "ij,kl->ik",
    "ij,jj,kk->ik",
]


@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.parametrize("tol", [1e-8, 1e-4, 1e-1, 10.0])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_many_operands_share_the_tolerance(text: str, tol: float, size: float) -> None:
    space = tw.Space([2, 3, 1, 2])
    dense_pattern = tw.Pattern.dense((space, space))
    operands = [size * decades(tw.zeros(pattern=dense_pattern), seed, 8.0) for seed in range(text.count(",") + 1)]
    result = tw.einsum(text, *operands, tol=tol)
    arrays = [dense(operand) for operand in operands]
    exact = np.asarray(np.einsum(text, *arrays, optimize=True))
    scale = math.prod(true_norm(array) for array in arrays)
    assert true_norm(dense(result) - exact) <= result.error_bound + 1e-13 * scale
    assert result.error_bound <= tol
    plan = tw.plan(text, *operands, tol=tol)
    assert result.error_bound <= plan.dropped_bound * (1 + 1e-9) or plan.dropped_bound == 0
    assert plan.dropped_bound <= tol


def screened_chain(
    text: str, sizes: dict[str, list[int]], norms: Sequence[float], tol: float
) -> tuple[tw.BlockTensor, float]:
    """A screened chain of matrices of positive elements and given norms, and its true error.

    Blocks fall off by eight decades; positive elements make errors add up instead of cancelling.
    """
    operands, arrays = [], []
    for seed, (term, norm) in enumerate(zip(text.split("->")[0].split(","), norms, strict=True)):
        spaces = [tw.Space(sizes[letter]) for letter in term]
        tensor = decades(tw.zeros(pattern=tw.Pattern.dense(spaces)), seed, 8.0)
        positive = tensor.map(lambda block, at: np.abs(block))
        operands.append(positive * (norm / positive.norm()))
        arrays.append(dense(operands[-1]))
    result = tw.einsum(text, *operands, tol=tol)
    exact = np.asarray(np.einsum(text, *arrays, optimize=True))
    return result, true_norm(dense(result) - exact)


@pytest.mark.parametrize("tol", [1e-4, 1e-2, 1.0])
def test_products_of_two_intermediates_keep_the_tolerance(tol: float) -> None:
    """(ij,jk) and (kl,lm) are cheapest first: what the second drops is multiplied by the first."""
    sizes = {letter: [4] * 6 if letter in "jl" else [2, 1] for letter in "ijklm"}
    for norms in ((1e3, 1e3, 1.0, 1.0), (1.0, 1.0, 1e3, 1e3)):
        result, error = screened_chain("ij,jk,kl,lm->im", sizes, norms, tol)
        assert error <= result.error_bound + 1e-6 * tol
        assert result.error_bound <= tol


@pytest.mark.parametrize("tol", [1e-4, 1e-2, 1.0])
def test_sums_over_an_operand_that_comes_later_keep_the_tolerance(tol: float) -> None:
    """The sum over l makes the norm of its operand larger, by up to the square root of its extent."""
    sizes = {"i": [1], "j": [5] * 10, "k": [3] * 5, "l": [10] * 40}
    result, error = screened_chain("ij,jk,kl->i", sizes, (1.0, 1.0, 1.0), tol)
    assert error <= result.error_bound + 1e-6 * tol
    assert result.error_bound <= tol


def test_no_room_for_errors_of_operands_is_made_twice() -> None:
    """Three operands, one with an error of its own: the bound is still within tol, or the call is refused."""
    result, exact = screened(1e-3)
    other = tw.random(result.spaces, 0.5)
    made = tw.einsum("ij,jk,kl->il", result, other, other, tol=10.0)
    expected = exact @ dense(other) @ dense(other)
    assert true_norm(dense(made) - expected) <= made.error_bound + 1e-10
    assert made.error_bound <= 10.0


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk,kl->il", "ij,jk,kl,lm->im"])
@pytest.mark.parametrize("tol", [0.0, 1e-300, 1.0, 1e300])
def test_zeros_can_be_screened(text: str, tol: float) -> None:
    """Operands of norm zero: with blocks and without."""
    space = tw.Space([2, 1])
    for pattern in (tw.Pattern.empty((space, space)), tw.Pattern.dense((space, space))):
        result = tw.einsum(text, *[tw.zeros(pattern=pattern)] * (text.count(",") + 1), tol=tol)
        assert result.error_bound == 0.0
        assert result.norm() == 0.0


@settings(max_examples=60)
@given(st.data())
def test_generated_chains_keep_the_tolerance(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(CHAINS))
    space = tw.Space([1, 2, 1])
    terms = text.split("->")[0].split(",")
    fill = data.draw(st.sampled_from((1.0, 0.7)))
    made = [data.draw(tensors([space] * len(term), "float64", fill=fill)) for term in terms]
    operands = [decades(tensor, seed, 6.0) for seed, tensor in enumerate(made)]
    tol = 10.0 ** data.draw(st.integers(-8, 2))
    result = tw.einsum(text, *operands, tol=tol)
    exact = np.asarray(np.einsum(text, *[dense(operand) for operand in operands]))
    scale = math.prod(true_norm(dense(operand)) for operand in operands)
    assert true_norm(dense(result) - exact) <= result.error_bound + 1e-13 * scale
    assert result.error_bound <= tol


@settings(max_examples=50)
@given(patterns(modes=[tw.Space([1, 2, 2])] * 2), patterns(modes=[tw.Space([1, 2, 2])] * 2))
def test_patterns_with_any_norms_can_be_screened(left: tw.Pattern, right: tw.Pattern) -> None:
    """Zero, tiny, huge and unknown norms together; unknown ones are kept."""
    plan = tw.plan("ij,jk->ik", left, right, tol=1.0)
    assert isinstance(plan, Plan)
    assert plan.dropped_bound <= 1.0
    kept = planned_products(plan)
    for (i, k), (k_, j) in product(map(tuple, left.index.tolist()), map(tuple, right.index.tolist())):
        if k == k_:
            norms = block_bound(left, (i, k)), block_bound(right, (k, j))
            if math.inf in norms and 0.0 not in norms:
                assert kept[(i, k), (k, j), (i, j)] == 1
