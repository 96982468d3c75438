"""Projected figures of plans: moved bytes are never below the bound, shares and times follow the work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewise as tw
from tilewise.machine import Machine
from tilewise.plans.projection import needed_bytes

pytestmark = pytest.mark.usefixtures("blas_for_few_cells")

BOX = Machine("box", cores=2, gemm_rates=((4, 1.0), (64, 16.0), (512, 20.0)), copy_rate=12.0, permute_rate=6.0)
CACHES = ((), (1 << 15, 1 << 16), (1 << 15, 1 << 19), (1 << 15, 1 << 21, 1 << 25))
PRODUCTS = ("ij,jk->ik", "ij,kj->ki", "bij,bjk->bik", "ij,ij->ij", "i,j->ij", "ij,j->i", "ikjl,klm->ijm")
SIZES = st.lists(st.sampled_from((1, 3, 17, 130, 500, 2000, 5000)), min_size=1, max_size=5)


@st.composite
def plans(draw: st.DrawFn) -> tw.Plan:
    """A plan of one product, from patterns alone: blocks may be far larger than a test could multiply."""
    text = draw(st.sampled_from(PRODUCTS))
    letters = sorted(set(text) - set(",->"))
    limit = 5000 if len(letters) < 5 else 130
    sizes = draw(st.lists(SIZES, min_size=len(letters), max_size=len(letters)))
    empty = draw(st.sampled_from((*letters, *[""] * 20)))
    spaces = {
        name: tw.Space([] if name == empty else [min(size, limit) for size in own])
        for name, own in zip(letters, sizes, strict=True)
    }
    density, seed = draw(st.sampled_from((0.2, 0.6, 1.0))), draw(st.integers(0, 999))
    norm = draw(st.sampled_from((None, 1.0)))
    patterns = [
        tw.Pattern.random([spaces[name] for name in operand], density, seed + number, norms=norm)
        for number, operand in enumerate(text.split("->")[0].split(","))
    ]
    made = tw.plan(text, *patterns, tol=draw(st.sampled_from((None, 1.5))))
    assert isinstance(made, tw.Plan)
    dtype = np.dtype(draw(st.sampled_from(("float32", "float64"))))
    machine = replace(BOX, cores=64, cache_bytes=draw(st.sampled_from(CACHES)))
    return replace(made, dtype=dtype, workers=draw(st.sampled_from((1, 2, 7, 64)))).on(machine)


@given(plans())
def test_moved_bytes_are_not_below_the_bound(plan: tw.Plan) -> None:
    assert plan.moved_bytes >= plan.lower_bound_bytes
    if plan.screened_flops == 0 and plan.result.nnz_blocks:
        assert plan.lower_bound_bytes >= plan.result_bytes


@given(plans())
def test_shares_are_at_most_all_the_work_and_at_least_the_mean(plan: tw.Plan) -> None:
    assert 1 - 1e-12 <= plan.imbalance <= plan.workers * (1 + 1e-12)
    assert replace(plan, workers=1).imbalance == pytest.approx(1)


@given(plans())
def test_time_falls_with_workers_and_with_faster_machines(plan: tw.Plan) -> None:
    assert plan.machine is not None
    assert plan.seconds >= plan.machine.start_seconds
    assert replace(plan, workers=64).seconds <= plan.seconds * (1 + 1e-12)
    rates = tuple((edge, 2 * rate) for edge, rate in plan.machine.gemm_rates)
    assert plan.on(replace(plan.machine, gemm_rates=rates)).seconds <= plan.seconds


@pytest.mark.parametrize(("edge", "kernel"), [(2, "loops"), (40, "packed"), (600, "gemm")])
def test_every_kernel_has_a_projection_near_its_rate(edge: int, kernel: str) -> None:
    space = tw.Space([edge] * 4)
    first, second = (tw.Pattern.random((space, space), 1.0, seed) for seed in (0, 1))
    plan = tw.plan("ij,jk->ik", first, second)
    assert isinstance(plan, tw.Plan)
    assert plan.kernel == kernel
    plan = replace(plan, workers=2).on(BOX)
    assert plan.seconds >= plan.flops / (2e9 * BOX.gemm_rate(edge))
    assert plan.moved_bytes >= plan.lower_bound_bytes >= 3 * 8 * (4 * edge) ** 2


@given(st.integers(0, 10**6), st.sampled_from((2, 5, 400)), st.integers(1, 6), st.integers(1, 6))
def test_blocks_without_a_product_that_is_kept_need_not_move(seed: int, edge: int, rows: int, depth: int) -> None:
    rng = np.random.default_rng(seed)
    m, k = tw.Space([edge] * rows), tw.Space([edge] * depth)
    shapes = ((m, k), (k, m))
    large = [rng.random((s.ntiles, t.ntiles)) < 0.5 for s, t in shapes]
    # Products are 1, 1e-9 or less: those that are not 1 are dropped, all of them and nothing else.
    patterns = [
        tw.Pattern(pair, tw.Pattern.dense(pair).index, np.where(mask, 1.0, 1e-9).ravel())
        for pair, mask in zip(shapes, large, strict=True)
    ]
    plan = tw.plan("ij,jk->ik", *patterns, tol=1e-3)
    assert isinstance(plan, tw.Plan)
    left, right = large
    kept = left[:, :, None] & right[None, :, :]
    assert plan.products == kept.sum()
    expected = [int(kept.any(axis=2).sum()), int(kept.any(axis=0).sum())]
    needed = needed_bytes(plan)
    assert [needed[id(pattern)] for pattern in patterns] == [8 * edge**2 * count for count in expected]


def test_stored_elements_count_once_with_symmetry_and_with_a_repeated_operand() -> None:
    space = tw.Space([600] * 3)
    plain, other = (tw.Pattern.random((space, space), 1.0, seed) for seed in (0, 1))
    symmetric = tw.Pattern.dense((space, space), tw.Symmetry(((0, 1), 1)))
    tiny = replace(BOX, cache_bytes=(1, 1))
    bounds = [tw.plan("ij,jk->ik", *pair).on(tiny).lower_bound_bytes for pair in ((plain, other), (plain, plain))]
    assert bounds[0] > bounds[1]
    assert tw.plan("ij,jk->ik", symmetric, other).on(tiny).lower_bound_bytes < bounds[0]
    roomy = replace(BOX, cache_bytes=(1, 1 << 40))
    assert tw.plan("ij,jk->ik", plain, plain).on(roomy).lower_bound_bytes == 2 * 8 * 1800**2
    assert tw.plan("ij,jk->ik", symmetric, other).on(roomy).lower_bound_bytes == (6 + 9 + 9) * 8 * 600**2


@pytest.mark.parametrize(("text", "read"), [("ij->ji", 36), ("ij->i", 36), ("ii->i", 6), ("ii->", 6)])
def test_reduction_moves_what_it_reads_and_writes(text: str, read: int) -> None:
    space = tw.Space([2, 4])
    plan = tw.plan(text, tw.Pattern.dense((space, space)))
    assert plan.moved_bytes == plan.lower_bound_bytes == 8 * (read + plan.result.nnz_elements)
    assert plan.seconds > 0


def test_program_adds_up_and_its_bound_allows_for_fusion() -> None:
    space = tw.Space([40] * 5)
    patterns = [tw.Pattern.random((space, space), 0.7, seed) for seed in range(3)]
    program = tw.plan("ij,jk,kl->il", *patterns)
    assert isinstance(program, tw.Program)
    program = program.on(BOX)
    steps = [step.plan for step in program.steps]
    assert all(step.machine is BOX for step in steps)
    assert program.moved_bytes == sum(step.moved_bytes for step in steps)
    assert program.seconds == sum(step.seconds for step in steps)
    assert program.lower_bound_bytes <= sum(step.lower_bound_bytes for step in steps)
    assert program.lower_bound_bytes >= sum(p.nbytes() for p in patterns) + program.result.nbytes()
    assert program.moved_bytes >= program.lower_bound_bytes
    assert 1 <= program.imbalance <= program.workers
