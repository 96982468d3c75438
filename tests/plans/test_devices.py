"""Products cut into holds and chunks for devices: everything once, in order, within the capacity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tilewise as tw
from plans.enumeration import Triple, planned_products, work_of
from strategies import DTYPES, EinsumCase, matrix_cases
from tilewise.plans import Plan, Program
from tilewise.plans.devices import (
    Blocked,
    Devices,
    Hold,
    block_bytes,
    bound_bytes,
    least_capacity,
    list_products,
    plan_blocked,
)
from tilewise.plans.steps import reinspected

Ints = npt.NDArray[np.int64]


pytestmark = pytest.mark.usefixtures("short_segments")


@st.composite
def device_plans(draw: st.DrawFn) -> Plan:
    """A product that is left to devices: permuted, with batch indices, symmetric operands or screened products."""
    dtype = draw(st.sampled_from(DTYPES))
    case: EinsumCase = draw(
        st.one_of(
            matrix_cases(dtype, tile=9),
            matrix_cases(dtype, tile=9, batches=1),
            matrix_cases(dtype, tile=6, symmetric=True),
        )
    )
    share = draw(st.sampled_from((None, None, 0.01, 0.3)))
    made = on_devices(tw.plan(case.text, *case.tensors, tol=None if share is None else share * case.scale))
    assume(made.kernel == "device")
    return made


def on_devices(plan: Plan | Program) -> Plan:
    """The same product, left to devices unless it is one for plain loops."""
    assert isinstance(plan, Plan)
    return reinspected(plan, plan.dtype, on_devices=True)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Plan, Blocked]:
    """A product with its holds and chunks, for any number of devices and any capacity that does."""
    plan = draw(device_plans())
    devices = Devices(
        count=draw(st.integers(1, 4)),
        capacity=draw(capacities(plan)),
        queues=draw(st.integers(1, 3)),
        stationary=draw(st.sampled_from((None, 0, 1))),
    )
    try:
        return plan, plan_blocked(plan, devices)
    except tw.MemoryBudgetError as error:
        return plan, plan_blocked(plan, replace(devices, capacity=error.least_bytes))


def capacities(plan: Plan) -> st.SearchStrategy[int]:
    """From far too little to more than everything at once."""
    everything = sum(int(sizes.sum()) for sizes in block_bytes(plan))
    return st.floats(0.0, 3.0).map(lambda share: int(share * everything))


def updates_of(cut: Blocked, hold: Hold) -> Iterator[int]:
    """The updates of a hold in the order in which they are handed in."""
    for chunk in hold.chunks:
        yield from range(chunk.begin, chunk.end)


def products_of(cut: Blocked) -> list[tuple[int, int, int]]:
    """Result block, left block and right block of every product, hold by hold."""
    return [
        (int(cut.target[update]), int(cut.left[at]), int(cut.right[at]))
        for hold in cut.holds
        for update in updates_of(cut, hold)
        for at in range(int(cut.ptr[update]), int(cut.ptr[update + 1]))
    ]


@settings(max_examples=200)
@given(cuts())
def test_every_product_appears_once(made: tuple[Plan, Blocked]) -> None:
    plan, cut = made
    left, right = (operand.blocks.index for operand in plan.operands)
    found: Counter[Triple] = Counter(
        (tuple(left[a].tolist()), tuple(right[b].tolist()), tuple(plan.result.index[c].tolist()))
        for c, a, b in products_of(cut)
    )
    assert found == planned_products(plan)
    assert len(cut.left) == len(cut.right) == cut.ptr[-1] == plan.products
    assert sorted(u for hold in cut.holds for u in updates_of(cut, hold)) == list(range(cut.updates))


@given(cuts())
def test_products_of_a_result_block_come_in_the_order_of_k(made: tuple[Plan, Blocked]) -> None:
    plan, cut = made
    side = work_of(plan).rows
    k_of = dict(zip(side.block.tolist(), side.inner.tolist(), strict=True))
    last: dict[int, int] = {}
    for block, left, right in products_of(cut):
        k = k_of[right if work_of(plan).swapped else left]
        assert last.get(block, -1) < k
        last[block] = k


@given(cuts())
def test_what_is_stationary_comes_once(made: tuple[Plan, Blocked]) -> None:
    plan, cut = made
    assert cut.devices.stationary in (None, cut.stationary)
    found = list_products(work_of(plan))
    needed = set((found.left, found.right)[cut.stationary].tolist())
    assert Counter(block for hold in cut.holds for block in hold.held.tolist()) == Counter(needed)


@given(cuts())
def test_a_hold_has_what_its_products_need_and_nothing_else(made: tuple[Plan, Blocked]) -> None:
    """What passes by is there for one chunk; what stays is there from when it came, and comes once to a device."""
    _, cut = made
    there: dict[int, set[int]] = {number: set() for number in range(cut.devices.count)}
    for hold in cut.holds:
        held: set[int] = set()
        for chunk in hold.chunks:
            products = slice(int(cut.ptr[chunk.begin]), int(cut.ptr[chunk.end]))
            pair = [set(blocks[products].tolist()) for blocks in (cut.left, cut.right)]
            held |= pair[cut.stationary]
            before = there[hold.device] if cut.stays else set()
            assert chunk.streamed.tolist() == sorted(pair[1 - cut.stationary] - before)
            there[hold.device] |= pair[1 - cut.stationary]
        assert held == set(hold.held.tolist())


@given(cuts())
def test_a_result_block_is_made_once_and_done_once_on_the_device_that_adds_to_it(made: tuple[Plan, Blocked]) -> None:
    plan, cut = made
    every = list(range(plan.result.nnz_blocks))
    assert sorted(block for hold in cut.holds for block in hold.made.tolist()) == every
    assert sorted(block for hold in cut.holds for block in hold.done.tolist()) == every
    device_of: dict[int, int] = {}
    for hold in cut.holds:
        device_of |= dict.fromkeys(hold.made.tolist(), hold.device)
        targets = cut.target[list(updates_of(cut, hold))].tolist()
        for block in (*targets, *hold.done.tolist()):
            assert device_of[block] == hold.device
        for block in hold.done.tolist():
            del device_of[block]


@given(cuts())
def test_holds_are_dealt_to_the_devices_in_turn(made: tuple[Plan, Blocked]) -> None:
    """The parts of a panel that was split follow each other on one device."""
    _, cut = made
    whole = [hold.device for hold in cut.holds if len(hold.made)]
    assert whole == [number % cut.devices.count for number in range(len(whole))]
    for before, after in zip(cut.holds, cut.holds[1:], strict=False):
        if not len(after.made):
            assert after.device == before.device
            assert not len(before.done)


@settings(max_examples=100)
@given(cuts())
def test_the_capacity_is_kept(made: tuple[Plan, Blocked]) -> None:
    """With two chunks at a time, or with a few holds beside what stays; and one product under way in each queue."""
    plan, cut = made
    for number in range(cut.devices.count):
        own = [hold for hold in cut.holds if hold.device == number]
        for hold, size in zip(own, staying(plan, cut, own) if cut.stays else passing(plan, cut, own), strict=True):
            assert size <= hold.peak_bytes <= cut.peak_bytes <= cut.devices.capacity


def passing(plan: Plan, cut: Blocked, holds: list[Hold]) -> Iterator[int]:
    """Most bytes on a device during each of its holds, where the streamed operand passes by."""
    sizes, results = block_bytes(plan), set[int]()
    for hold in holds:
        results |= set(hold.made.tolist())
        chunks = [int(sizes[1 - cut.stationary][chunk.streamed].sum()) for chunk in hold.chunks]
        both = max(a + b for a, b in zip(chunks, [*chunks[1:], 0], strict=True))
        kept = int(sizes[cut.stationary][hold.held].sum() + sizes[2][list(results)].sum())
        yield kept + both + cut.devices.queues * int(sizes[2][list(results)].max())
        results -= set(hold.done.tolist())
    assert not results


def staying(plan: Plan, cut: Blocked, holds: list[Hold]) -> Iterator[int]:
    """The same where the streamed operand stays."""
    sizes, there, results = block_bytes(plan), 0, set[int]()
    for number, hold in enumerate(holds):
        together = holds[max(number + 1 - cut.at_once, 0) : number + 1]
        there += sum(int(sizes[1 - cut.stationary][chunk.streamed].sum()) for chunk in hold.chunks)
        results |= set(hold.made.tolist())
        held = sum(int(sizes[cut.stationary][each.held].sum()) for each in together)
        made = sizes[2][list(results)]
        yield there + held + int(made.sum()) + cut.devices.queues * int(made.max())
        if len(together) == cut.at_once:
            results -= set(together[0].done.tolist())
    assert results <= {block for hold in holds[1 - cut.at_once :] for block in hold.done.tolist()}


def test_what_fits_stays() -> None:
    """A small operand that fits beside a few holds comes once to each device; in less memory it passes by."""
    m, k, n = tw.Space([8] * 2), tw.Space([10] * 6), tw.Space([9] * 30)
    plan = on_devices(tw.plan("ik,kj->ij", tw.Pattern.dense((m, k)), tw.Pattern.dense((k, n))))
    small, large, result = (int(sizes.sum()) for sizes in block_bytes(plan))
    roomy = plan_blocked(plan, Devices(2, small + (large + result) // 4, stationary=1))
    assert roomy.stays
    assert roomy.in_bytes == (2 * small, large)
    tight = plan_blocked(plan, Devices(2, small, stationary=1))
    assert not tight.stays
    assert tight.in_bytes[0] > 2 * small
    assert tight.in_bytes[1] == large


@given(cuts())
def test_what_crosses_is_counted_and_not_below_the_bound(made: tuple[Plan, Blocked]) -> None:
    plan, cut = made
    sizes = block_bytes(plan)
    came: list[list[int]] = [[], []]
    came[cut.stationary] = [block for hold in cut.holds for block in hold.held.tolist()]
    came[1 - cut.stationary] = [b for hold in cut.holds for chunk in hold.chunks for b in chunk.streamed.tolist()]
    assert cut.in_blocks == (len(came[0]), len(came[1]))
    assert cut.in_bytes == (int(sizes[0][came[0]].sum()), int(sizes[1][came[1]].sum()))
    assert cut.out_bytes == plan.result_bytes
    assert cut.moved_bytes == sum(cut.in_bytes) + cut.out_bytes >= bound_bytes(plan, cut.devices)


@given(device_plans(), st.integers(1, 4), st.integers(1, 3))
def test_what_is_said_to_be_needed_does_and_less_is_refused(plan: Plan, count: int, queues: int) -> None:
    assume(plan.products)
    with pytest.raises(tw.MemoryBudgetError, match=r"for devices of 0 bytes\. At least \d+ are needed") as error:
        plan_blocked(plan, Devices(count, 0, queues))
    least = error.value.least_bytes
    assert least_capacity(plan) <= plan_blocked(plan, Devices(count, least, queues)).peak_bytes <= least
    text = rf"for devices of {least - 1} bytes\. At least {least} are needed\. Give that much with capacity="
    with pytest.raises(tw.MemoryBudgetError, match=text) as error:
        plan_blocked(plan, Devices(count, least - 1, queues))
    assert (error.value.budget, error.value.least_bytes) == (least - 1, least)


def test_nothing_is_cut_into_nothing() -> None:
    """Neither blocks that meet none, nor products that are all screened."""
    space = tw.Space([5, 6])
    tensor = tw.random((space, space))
    full, empty = tw.Pattern.dense((space, space)), tw.Pattern.random((space, space), 0.0)
    for plan in (tw.plan("ij,jk->ik", full, empty), tw.plan("ij,jk->ik", tensor, tensor, tol=1e9)):
        cut = plan_blocked(on_devices(plan), Devices(2, 0))
        assert (cut.holds, cut.moved_bytes, cut.peak_bytes, cut.updates) == ((), 0, 0, 0)


def test_only_a_product_goes_to_devices() -> None:
    space = tw.Space([5, 6])
    plan = tw.plan("ij->ji", tw.Pattern.dense((space, space)))
    assert isinstance(plan, Plan)
    with pytest.raises(TypeError, match="Only a product goes to devices"):
        plan_blocked(plan, Devices(1, 1 << 30))
