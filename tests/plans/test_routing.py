"""Who computes which result block: one place for each, where it is finished first."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tilewise as tw
from plans.enumeration import planned_products
from plans.test_devices import device_plans, on_devices
from tilewise.plans import Plan
from tilewise.plans.devices import Devices, block_bytes, bound_bytes, least_capacity, list_products
from tilewise.plans.routing import HOST, Rates, plan_cached, route
from tilewise.plans.work import Product

ROOMY = 1 << 30
EVERYTHING_TO_DEVICES = Rates(host=0.0, device=1.0, transfer=1.0)


def rates() -> st.SearchStrategy[Rates]:
    speeds = st.sampled_from((1e-6, 0.1, 1.0, 10.0, 1e6))
    return st.builds(Rates, host=st.one_of(st.just(0.0), speeds), device=speeds, transfer=speeds)


def chain_flops(plan: Plan) -> npt.NDArray[np.float64]:
    """Floating-point operations of each result block, from the edges of the blocks that give it."""
    assert isinstance(plan.work, Product)
    found = list_products(plan.work)
    left, right, result = (sizes // plan.dtype.itemsize for sizes in block_bytes(plan))
    batch = np.ones(plan.result.nnz_blocks)
    for mode in plan.work.result.batch:
        batch *= plan.result.block_shapes[:, mode]
    # Of stacks of matrices (m x k) (k x n) = (m x n): multiplications = sqrt of the product of all three sizes.
    sizes = [own[at].astype(np.float64) for own, at in zip((left, right), (found.left, found.right), strict=True)]
    each = np.sqrt(sizes[0] * sizes[1] * result[found.target] / batch[found.target])
    factor = 8.0 if plan.dtype.kind == "c" else 2.0
    return factor * np.bincount(found.target, each, plan.result.nnz_blocks).astype(np.float64)


@given(device_plans(), st.integers(1, 4), rates())
def test_every_result_block_has_one_place(plan: Plan, count: int, speeds: Rates) -> None:
    place = route(plan, count, speeds)
    assert place.shape == (plan.result.nnz_blocks,)
    assert set(place.tolist()) <= {HOST, *range(count)}
    if speeds.host == 0:
        assert HOST not in place


@given(device_plans(), st.integers(1, 4), rates())
def test_the_share_of_the_devices_is_counted(plan: Plan, count: int, speeds: Rates) -> None:
    made = plan_cached(plan, Devices(count, ROOMY), speeds)
    np.testing.assert_array_equal(made.place, route(plan, count, speeds))
    there = made.place != HOST
    assert made.flops == pytest.approx(chain_flops(plan)[there].sum(), rel=1e-12)
    on_device = {tuple(index) for index in plan.result.index[there].tolist()}
    products = planned_products(plan)
    assert made.products == sum(number for (_, _, block), number in products.items() if block in on_device)
    assert made.updates == there.sum()
    assert made.out_bytes == block_bytes(plan)[2][there].sum()
    assert made.peak_bytes == ROOMY
    if there.all():
        assert (made.flops, made.products) == (plan.flops, plan.products)
        assert made.moved_bytes >= bound_bytes(plan, made.devices) == made.bound_bytes


@given(device_plans(), st.integers(1, 4))
def test_nothing_is_left_to_this_computer_where_devices_are_fast(plan: Plan, count: int) -> None:
    assert HOST not in route(plan, count, Rates(host=1e-9, device=math.inf, transfer=1.0))


@given(device_plans(), st.integers(1, 4))
def test_everything_is_left_to_this_computer_where_transfers_are_slow(plan: Plan, count: int) -> None:
    assert set(route(plan, count, Rates(host=1.0, device=math.inf, transfer=1e-12)).tolist()) <= {HOST}


@given(device_plans(), st.integers(1, 4), st.booleans())
def test_work_is_shared_evenly_where_transfers_cost_nothing(plan: Plan, count: int, host: bool) -> None:
    """Blocks that go where they are finished first: no place is ahead of the mean by more than one block (Graham)."""
    place = route(plan, count, Rates(host=float(host), device=1.0, transfer=math.inf))
    flops = chain_flops(plan)
    loads = np.bincount(place + 1, flops, count + 1)
    loads = loads if host else loads[1:]
    assert loads.max() <= loads.mean() + flops.max(initial=0.0) * (1 - 1 / len(loads)) + 1e-6 * flops.sum()


@given(device_plans(), st.integers(2, 4))
def test_a_fast_place_gets_more(plan: Plan, count: int) -> None:
    """This computer as fast as `count` devices: it does at least half of the work, but for one block."""
    place = route(plan, count, Rates(host=float(count), device=1.0, transfer=math.inf))
    flops = chain_flops(plan)
    assert flops[place == HOST].sum() >= flops.sum() / 2 - count * flops.max(initial=0.0) - 1e-6 * flops.sum()


def test_a_result_block_goes_where_its_operands_are() -> None:
    """Two large blocks that are needed in no even turns: each comes to one device and is used there."""
    m, n = tw.Space([80, 80]), tw.Space([10] * 6)
    left = tw.Pattern((m, m), [(0, 0), (1, 1)])
    right = tw.Pattern((m, n), [(0, 0), (0, 2), (0, 5), (1, 0), (1, 1), (1, 3), (1, 4)])
    plan = on_devices(tw.plan("ik,kj->ij", left, right))
    place = route(plan, 2, Rates(host=0.0, device=math.inf, transfer=1.0))
    np.testing.assert_array_equal(place, plan.result.index[:, 0])


@given(device_plans(), st.integers(1, 4))
def test_two_blocks_and_what_they_give_must_fit(plan: Plan, count: int) -> None:
    assume(plan.products)
    least = least_capacity(plan)
    assert plan_cached(plan, Devices(count, least), EVERYTHING_TO_DEVICES).products == plan.products
    text = rf"two blocks that do not fit.*needs {least} bytes, a device has {least - 1}\. Give that much with capacity="
    with pytest.raises(tw.MemoryBudgetError, match=text) as error:
        plan_cached(plan, Devices(count, least - 1), EVERYTHING_TO_DEVICES)
    assert (error.value.budget, error.value.least_bytes) == (least - 1, least)


def test_only_a_product_is_shared() -> None:
    space = tw.Space([5, 6])
    plan = tw.plan("ij->ji", tw.Pattern.dense((space, space)))
    assert isinstance(plan, Plan)
    with pytest.raises(TypeError, match="Only a product is shared with devices"):
        route(plan, 1, EVERYTHING_TO_DEVICES)
