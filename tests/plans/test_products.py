"""Plans of products: every needed product once, the right blocks, the right counts; nothing but patterns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tilewise as tw
from engines.conformance import kernel_for
from plans.enumeration import all_flops, all_products, check_tasks, planned_products, work_of
from references import dense, tile_mask, true_norm
from strategies import DTYPES, EinsumCase, einsum_cases, matrix_cases
from tilewise.plans import Plan

pytestmark = pytest.mark.usefixtures("blas_for_few_cells")


def pair_plan(case: EinsumCase, **options: Any) -> Plan:
    """The plan of a product that needs no reduction first."""
    plan = tw.plan(case.text, *case.tensors, **options)
    assume(isinstance(plan, Plan))
    assert isinstance(plan, Plan)
    return plan


def assert_complete(plan: Plan) -> None:
    """Every needed product is done once, nothing else is, and the counts say so."""
    work = work_of(plan)
    left, right = (operand.pattern for operand in plan.operands)
    needed = all_products(work.contraction, left, right)
    assert planned_products(plan) == needed
    assert plan.products == sum(needed.values())
    assert work.screened_products == plan.screened_flops == plan.dropped_bound == 0
    assert plan.flops == all_flops(work.contraction, left, right, plan.dtype.kind == "c")
    assert sorted({c for _, _, c in needed}) == [tuple(row) for row in plan.result.index.tolist()]
    plan.result.check()
    check_tasks(plan)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_needed_product_appears_once(dtype: str) -> None:
    @settings(max_examples=40)
    @given(einsum_cases(2, dtype))
    def check(case: EinsumCase) -> None:
        assert_complete(pair_plan(case))

    check()


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("batches", [0, 1])
@pytest.mark.parametrize("symmetric", [False, True], ids=["plain", "symmetric"])
def test_every_needed_matrix_product_appears_once(dtype: str, batches: int, symmetric: bool) -> None:
    @settings(max_examples=25)
    @given(matrix_cases(dtype, batches=batches, symmetric=symmetric))
    def check(case: EinsumCase) -> None:
        assert_complete(pair_plan(case))

    check()


BIG = [
    pytest.param("ik,kj->ij", [130, 7, 250], [600, 20], [5, 8, 3], "packed", id="strips"),
    pytest.param("ki,kj->ij", [5, 4], [6, 3], [400, 100, 385, 1, 383], "packed", id="deep k"),
    pytest.param("ik,jk->ji", [9, 5], [8], [1] * 900, "packed", id="runs of k"),
    pytest.param("ik,kj->ij", [400, 800], [390], [410, 384], "gemm", id="BLAS"),
    pytest.param("ik,kj->ij", [20, 33], [700, 130], [400, 300], "inplace", id="in place"),
    pytest.param("ik,kj->ij", [2, 1], [700], [30, 40], "loops", id="few rows"),
    pytest.param("ik,kj->ij", [40], [40], [300] * 7, "packed", id="few cells"),
    pytest.param("ik,kj->ij", [500], [500], [500] * 5, "gemm", id="one large cell"),
]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("text", "i", "j", "k", "kernel"), BIG)
def test_large_blocks_are_cut_without_gap(
    text: str, i: list[int], j: list[int], k: list[int], kernel: str, dtype: str
) -> None:
    home = {"i": tw.Space(i), "j": tw.Space(j), "k": tw.Space(k)}
    left, right = text.split("->")[0].split(",")
    tensors = [
        tw.zeros(pattern=tw.Pattern.random([home[letter] for letter in term], 0.7, seed), dtype=dtype)
        for seed, term in enumerate((left, right))
    ]
    plan = tw.plan(text, *tensors)
    assert isinstance(plan, Plan)
    assert plan.kernel == kernel_for(kernel, dtype)
    assert_complete(plan)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(101, 99, [77] * 50), (117, 119, [97] * 31), (40, 47, [211] * 29), (40, 99, [77] * 50)]
)
def test_pieces_of_a_sum_lose_no_flops(m: int, n: int, k: list[int]) -> None:
    """A cell cut into pieces: a fraction of its flops each, all of them together."""
    rows, cols, inner = tw.Space([m]), tw.Space([n]), tw.Space(k)
    operands = [tw.random((rows, inner)), tw.random((inner, cols))]
    plan = tw.plan("ik,kj->ij", *operands)
    assert isinstance(plan, Plan)
    assert work_of(plan).cells.pieces > 1
    assert plan.flops == 2 * m * n * sum(k)
    tw.execute(plan, *operands)
    assert plan.runs[-1].flops == plan.flops


def arrays_of(value: Any, path: str = "plan") -> Iterator[tuple[str, Any]]:
    """All arrays in a plan, with the fields that lead to them."""
    if isinstance(value, np.ndarray):
        yield path, value
    elif isinstance(value, tuple | list):
        for number, entry in enumerate(value):
            yield from arrays_of(entry, f"{path}[{number}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from arrays_of(getattr(value, field.name), f"{path}.{field.name}")


def figures_of(plan: Plan | tw.Program) -> dict[str, Any]:
    names = ("label", "dtype", "flops", "screened_flops", "products", "calls", "tasks", "peak_bytes", "tolerance")
    return {name: getattr(plan, name) for name in names}


@settings(max_examples=60)
@given(st.integers(1, 3).flatmap(lambda n: einsum_cases(n, "float64")), st.sampled_from((None, 0.0, 0.1)))
def test_tensors_and_their_patterns_give_the_same_plan(case: EinsumCase, tol: float | None) -> None:
    one = tw.plan(case.text, *case.tensors, tol=tol)
    two = tw.plan(case.text, *[tensor.pattern for tensor in case.tensors], tol=tol)
    assert figures_of(one) == figures_of(two)
    first, second = dict(arrays_of(one)), dict(arrays_of(two))
    assert first.keys() == second.keys()
    for path, array in first.items():
        np.testing.assert_array_equal(array, second[path], err_msg=path)
    assert one.result == two.result


def test_plans_do_not_depend_on_workers() -> None:
    """What is summed in which order is fixed before it is known who does it."""
    space = tw.Space.uniform(600, tile=20)
    pattern = tw.Pattern.random((space, space), 0.3)
    plans = []
    for workers in (1, 3):
        with tw.engine("threads", workers=workers):
            plans.append(tw.plan("ij,jk->ik", pattern, pattern))
    assert [plan.workers for plan in plans] == [1, 3]
    one, two = (dict(arrays_of(plan)) for plan in plans)
    assert one.keys() == two.keys()
    for path, array in one.items():
        np.testing.assert_array_equal(array, two[path], err_msg=path)


def test_the_arrays_of_a_plan_are_frozen() -> None:
    space = tw.Space([130, 5, 7])
    pattern = tw.Pattern.dense((space, space))
    for text in ("ij,jk->ik", "ij->i"):
        plan = tw.plan(text, *[pattern] * (text.count(",") + 1))
        loose = [path for path, array in arrays_of(plan) if array.flags.writeable]
        assert loose == []
        with pytest.raises(dataclasses.FrozenInstanceError):
            plan.label = "other"  # type: ignore[misc]


def test_plans_can_be_compared() -> None:
    """A plan is a value: comparing two of them says yes or no."""
    space = tw.Space([2, 3])
    pattern, other = tw.Pattern.dense((space, space)), tw.Pattern((space, space), [(0, 1)])
    plan = tw.plan("ij,jk->ik", pattern, pattern)
    assert plan == tw.plan("ij,jk->ik", pattern, pattern)
    assert plan != tw.plan("ij,jk->ik", pattern, other)


@settings(max_examples=40)
@given(matrix_cases("float64", symmetric=True))
def test_planned_norms_bound_the_result(case: EinsumCase) -> None:
    """Before any data is touched, the plan bounds every block of the result."""
    plan = pair_plan(case)
    result = tw.execute(plan, *case.tensors)
    for (_, block), bound in zip(result.blocks(), plan.result.norms.tolist(), strict=True):
        assert true_norm(block) <= bound * (1 + 1e-12)
    assert np.isfinite(plan.result.norms).all()
    assert ((np.abs(dense(result)) > 0).any()) <= (tile_mask(plan.result).any())


@settings(max_examples=60)
@given(st.integers(1, 3).flatmap(einsum_cases))
def test_planned_norms_bound_any_result(case: EinsumCase) -> None:
    plan = tw.plan(case.text, *case.tensors)
    result = tw.execute(plan, *case.tensors)
    for (_, block), bound in zip(result.blocks(), plan.result.norms.tolist(), strict=True):
        assert true_norm(block) <= bound * (1 + 1e-4)


@pytest.mark.parametrize("tol", [None, 0.0, 1.0])
def test_plans_of_patterns_with_unknown_norms(tol: float | None) -> None:
    space = tw.Space([2, 3])
    pattern = tw.Pattern.dense((space, space))
    plan = tw.plan("ij,jk->ik", pattern, pattern, tol=tol)
    assert np.isinf(plan.result.norms).all()
    assert plan.products == 8


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij->ji", "ij,jk,kl->il", "ii->", "ij,ij->ij", "ij,jk->"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_run_does_what_the_plan_counts(text: str, dtype: str) -> None:
    """Plan's counts are the trace's counts, exactly."""
    space = tw.Space([30, 45, 7, 160])
    tensors = [tw.random((space, space), 0.6, seed, dtype) for seed in range(text.count(",") + 1)]
    plan = tw.plan(text, *tensors)
    tw.execute(plan, *tensors)
    for step in plan.steps if isinstance(plan, tw.Program) else [plan]:
        made = step if isinstance(step, Plan) else step.plan
        (trace,) = made.runs
        assert (trace.label, trace.flops, trace.tasks, trace.calls) == (
            made.label,
            made.flops,
            made.tasks,
            made.calls,
        )
        assert trace.seconds > 0
