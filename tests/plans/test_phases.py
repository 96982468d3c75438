"""Products cut into phases: everything once, in order, within the budget."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from plans.enumeration import planned_products, work_of
from tilewise.plans import Plan
from tilewise.plans.inspector import inspect_part
from tilewise.plans.phases import Phases, Source, plan_phases

RATE = 10.0


pytestmark = pytest.mark.usefixtures("short_segments")


@st.composite
def products(draw: st.DrawFn) -> Plan:
    """A product of two random matrices."""
    m, k, n = (tw.Space(draw(st.lists(st.integers(3, 9), min_size=1, max_size=most))) for most in (4, 8, 6))
    left, right = (
        tw.Pattern.random(pair, draw(st.sampled_from((0.3, 0.6, 1.0))), seed)
        for seed, pair in enumerate(((m, k), (k, n)))
    )
    text = draw(st.sampled_from(("ik,kj->ij", "ki,kj->ji", "ik,jk->ij")))
    given_ = [left if text[0] == "i" else transposed(left), right if text[3] == "k" else transposed(right)]
    plan = tw.plan(text, *given_)
    assert isinstance(plan, Plan)
    return plan


def transposed(pattern: tw.Pattern) -> tw.Pattern:
    return tw.Pattern(pattern.spaces[::-1], pattern.index[:, ::-1])


def cut(plan: Plan, resident: tuple[bool, bool], share: float) -> Phases:
    """Phases within a share of what everything at once takes, or the finest there are."""
    sources = (Source(resident[0]), Source(resident[1]))
    everything = plan_phases(plan, sources, 1 << 50, RATE).peak_bytes
    try:
        return plan_phases(plan, sources, int(share * everything), RATE)
    except tw.MemoryBudgetError as error:
        return plan_phases(plan, sources, error.least_bytes, RATE)


CUTS = (products(), st.tuples(st.booleans(), st.booleans()), st.floats(0.01, 1.0))


@settings(max_examples=100)
@given(*CUTS)
def test_every_product_appears_once(plan: Plan, resident: tuple[bool, bool], share: float) -> None:
    found: Counter[object] = Counter()
    for phase in cut(plan, resident, share).sequence:
        found += planned_products(inspect_part(plan, *phase.blocks))
    assert found == planned_products(plan)


@settings(max_examples=100)
@given(*CUTS)
def test_the_budget_is_kept_and_counted(plan: Plan, resident: tuple[bool, bool], share: float) -> None:
    phases = cut(plan, resident, share)
    assert phases.peak_bytes <= phases.budget
    fetched = [0, 0]
    held: set[int] = set()
    for phase in phases.sequence:
        sizes = [plan.operands[n].pattern.block_sizes * plan.dtype.itemsize for n in (0, 1)]
        if phase.held is not None:
            held = set(phase.held.tolist())
            assert sizes[phases.stationary][phase.held].sum() <= phases.held_bytes
            fetched[phases.stationary] += int(sizes[phases.stationary][phase.held].sum())
        streamed = 1 - phases.stationary
        assert sizes[streamed][phase.streamed].sum() <= phases.chunk_bytes
        fetched[streamed] += int(sizes[streamed][phase.streamed].sum())
        part = inspect_part(plan, *phase.blocks)
        assert part.packed_bytes + part.worker_bytes * part.workers <= phases.buffer_bytes
        for number, here in ((phases.stationary, held), (streamed, set(phase.streamed.tolist()))):
            if not resident[number]:
                assert set(phase.blocks[number].tolist()) <= here
    assert tuple(fetched) == phases.fetched_bytes


@settings(max_examples=100)
@given(*CUTS)
def test_what_is_stationary_is_fetched_once(plan: Plan, resident: tuple[bool, bool], share: float) -> None:
    phases = cut(plan, resident, share)
    fetched = [phase.held for phase in phases.sequence if phase.held is not None]
    times = Counter(np.concatenate(fetched).tolist()) if fetched else Counter()
    assert set(times.values()) <= {1}


@settings(max_examples=50)
@given(*CUTS)
def test_segments_of_a_result_block_come_in_order(plan: Plan, resident: tuple[bool, bool], share: float) -> None:
    last: dict[tuple[int, ...], int] = {}
    for phase in cut(plan, resident, share).sequence:
        part = inspect_part(plan, *phase.blocks)
        cells = work_of(part).cells
        for block, begin, end in zip(cells.block.tolist(), cells.begin.tolist(), cells.end.tolist(), strict=True):
            segments = work_of(part).terms[begin:end, 3] >> 1
            index = tuple(part.result.index[block].tolist())
            assert (np.diff(segments) >= 0).all()
            assert last.get(index, -1) < segments[0]
        for block, end in zip(cells.block.tolist(), cells.end.tolist(), strict=True):
            last[tuple(part.result.index[block].tolist())] = int(work_of(part).terms[end - 1, 3] >> 1)


def test_the_operand_that_moves_less_is_held() -> None:
    """A small operand is held while the large one passes once; the other way round it would pass many times."""
    m, k, n = tw.Space([40] * 2), tw.Space([50] * 20), tw.Space([50] * 20)
    plan = tw.plan("ik,kj->ij", tw.Pattern.dense((m, k)), tw.Pattern.dense((k, n)))
    assert isinstance(plan, Plan)
    phases = plan_phases(plan, (Source(False), Source(False)), plan.result_bytes + 8_000_000, RATE)
    assert phases.fetched_bytes == (80 * 1000 * 8, 1000 * 1000 * 8)


def test_a_cost_per_block_changes_what_is_held() -> None:
    space = tw.Space([40] * 12)
    pattern = tw.Pattern.dense((space, space))
    plan = tw.plan("ik,kj->ij", pattern, pattern)
    assert isinstance(plan, Plan)
    costly, cheap = Source(False, np.full(pattern.nnz_blocks, 10.0)), Source(False, np.zeros(pattern.nnz_blocks))
    budget = plan.result_bytes + 3_000_000
    assert plan_phases(plan, (costly, cheap), budget, RATE).stationary == 0
    assert plan_phases(plan, (cheap, costly), budget, RATE).stationary == 1
