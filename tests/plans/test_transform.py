"""Schedules of four-index transforms: counts, live sets and the choice among them, against independent counting."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.errors import InputError, MemoryBudgetError
from tilewise.plans.transform import SCHEDULES, Problem, Rates, TilePairs, Variant, plan_transform
from tilewise.plans.transform.deal import Deal
from tilewise.plans.transform.schedules import BATCH, cost_of, list_variants
from tilewise.spaces import Space

RATES = Rates(flops=1e11, integrals=5e7)
WORKERS = 2


def uniform(size: int, tile: int, orbitals: int | None = None) -> Problem:
    """All orbitals of one set, or those of two sets that differ: functions to occupied and virtual."""
    functions = Space.uniform(size, tile)
    return Problem.of(functions, (Space.uniform(orbitals or size, tile),) * 4, (True, True))


@given(st.lists(st.integers(1, 4), max_size=4), st.lists(st.integers(1, 4), max_size=4), st.booleans(), st.booleans())
def test_pairs_of_tiles_hold_every_pair_once(first: list[int], second: list[int], equal: bool, packed: bool) -> None:
    spaces = Space(first), Space(first if equal else second)
    pairs = TilePairs(spaces, equal, packed and equal)
    seen: list[tuple[int, int]] = []
    for pair in range(pairs.count):
        rows, twins = pairs.rows(pair)
        assert len(rows) == pairs.unique[pair]
        p, q = pairs.tiles[pair].tolist()
        width = int(spaces[1].sizes[q])
        if pairs.packed and p == q:
            low = [(i, j) for i in range(width) for j in range(i + 1)]
            seen += [tuple(sorted((i + spaces[0].offsets[p], j + spaces[0].offsets[p]))) for i, j in low]
            assert len(low) == pairs.sizes[pair]
            continue
        for row, twin in zip(rows.tolist(), twins.tolist(), strict=True):
            i, j = divmod(row, width)
            if twin >= 0:
                assert divmod(twin, width) == (j, i)
            seen.append((i + int(spaces[0].offsets[p]), j + int(spaces[1].offsets[q])))
    expected = [(i, j) for i in range(spaces[0].size) for j in range(i if equal else 0, spaces[1].size)]
    assert sorted(seen) == expected


def loops(size: int, *, fused: bool, irreps: list[int] | None = None) -> int:
    """Multiplications and additions of Listing 1, or of Listing 8, counted one by one."""
    n, labels = range(size), irreps or [0] * size
    pairs = [(a, b) for a in n for b in n if a >= b]
    count = 0
    for third, fourth in product(n, n):
        if fused or third >= fourth:
            count += sum(1 for _ in product(n, n, n))  # alpha, i, j
            count += sum(1 for _ in product(pairs, n))  # alpha >= beta, j
    for a, b in pairs:
        count += sum(1 for _ in product(n, n, n))  # gamma, k, l
        count += sum(size for c, d in pairs if labels[a] ^ labels[b] ^ labels[c] ^ labels[d] == 0)
    return 2 * count


@pytest.mark.parametrize("size", [1, 2, 5])
def test_flops_are_those_of_the_loops(size: int) -> None:
    problem = uniform(size, 1)
    for schedule in ("unfused", "fused12-34", "recompute"):
        variants = [variant for variant in list_variants(problem) if variant.schedule == schedule]
        assert {cost_of(problem, variant, WORKERS).flops for variant in variants} == {loops(size, fused=False)}


def test_flops_of_slabs_are_those_of_the_loops_but_for_pairs_within_a_slab() -> None:
    """Rows (k, l) with k and l in one slab are made once, also where k and l are exchanged."""
    size = 5
    problem = uniform(size, 1)
    slabs = tuple((tile, tile + 1) for tile in range(size))
    for schedule in ("fused1234", "fused1234-inner"):
        found = cost_of(problem, Variant(schedule, parts=slabs), WORKERS).flops
        assert found == loops(size, fused=True)
        one = cost_of(problem, Variant(schedule, parts=((0, size),)), WORKERS).flops
        assert one == loops(size, fused=False)


def test_flops_with_spatial_symmetry() -> None:
    irreps = [0, 0, 1, 2, 3, 3]
    orbitals = Space([1] * 6, irrep=irreps)
    problem = Problem.of(Space([1] * 6), (orbitals,) * 4, (True, True))
    assert cost_of(problem, Variant("unfused"), 1).flops == loops(6, fused=False, irreps=irreps)


def test_leading_terms() -> None:
    """3 n^5 without fusion and 4.5 n^5 with l by itself, n functions and n orbitals."""
    size = 60
    problem = uniform(size, 1)
    slabs = tuple((tile, tile + 1) for tile in range(size))
    assert cost_of(problem, Variant("unfused"), 1).flops / size**5 == pytest.approx(3.0, rel=0.04)
    assert cost_of(problem, Variant("fused1234", parts=slabs), 1).flops / size**5 == pytest.approx(4.5, rel=0.04)


# ---- live sets ----


def by_hand(size: int, tile: int, schedule: str, count: int = 1) -> int:
    """Peak bytes of a schedule for equal tiles, from the sizes of its tensors alone."""
    n, tiles = size, size // tile
    assert n == tiles * tile
    pairs = n * (n + 1) // 2
    stored = tiles * (tiles + 1) // 2 * tile**2  # a >= b in tiles, those on the diagonal full
    a, o1, o2, o3, c = pairs * tile**2 * 1, pairs * n * n, pairs * stored, pairs * n * n, stored * stored
    factors, square = 4 * n * n, WORKERS * BATCH * n * n
    both = square + WORKERS * n * n
    if schedule == "unfused":
        words = max(a + o1 + square, o1 + o2, o2 + o3 + square, o3 + c)
    elif schedule == "fused12-34":
        words = max(a + o2 + both, o2 + c + both)
    elif schedule == "recompute":
        assert count == tiles
        largest, other = pairs * tiles * tile**2, pairs * (tiles - 1) * tile**2  # the first pass has no result yet
        room = square + WORKERS * tile * n
        words = max(a + largest + room, largest + both + c, a + other + room + c)
    else:
        rows = n * tile - tile * (tile - 1) // 2  # (k, l) with l in a tile, those with k in it once
        half, wide = rows * stored, WORKERS * BATCH * n * tile
        if schedule == "fused1234-inner":
            words = c + max(a + half + both, half + wide + WORKERS * n * tile)
        else:
            slab, first, third = rows * pairs, rows * n * n, pairs * n * tile
            words = c + max(slab + first + square, first + half, half + third + wide, third)
    return 8 * (words + factors)


def variant_of(problem: Problem, schedule: str) -> Variant:
    tiles = tuple((tile, tile + 1) for tile in range(problem.functions.spaces[0].ntiles))
    return Variant(schedule, parts=() if schedule in ("unfused", "fused12-34") else tiles)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("size", "tile"), [(60, 20), (114, 19), (160, 32)])
def test_live_sets(schedule: str, size: int, tile: int) -> None:
    problem = uniform(size, tile)
    found = cost_of(problem, variant_of(problem, schedule), WORKERS).peak_bytes
    assert found == by_hand(size, tile, schedule, size // tile)


@pytest.mark.parametrize(("size", "tile"), [(60, 20), (114, 19), (160, 32)])
def test_the_schedule_that_is_chosen_for_a_budget(size: int, tile: int) -> None:
    """Below each live set another schedule is taken, and the one with the least memory is the last."""
    problem = uniform(size, tile)
    peaks = {schedule: by_hand(size, tile, schedule, size // tile) for schedule in SCHEDULES}
    for schedule in SCHEDULES:
        made = plan_transform(problem, peaks[schedule], WORKERS, RATES, schedule)
        assert made.peak_bytes <= peaks[schedule]
    free = plan_transform(problem, 10**15, WORKERS, RATES)
    assert (free.schedule, free.variant.keeps) == ("fused12-34", True)
    less = plan_transform(problem, peaks["fused12-34"], WORKERS, RATES)
    assert (less.schedule, less.moved_bytes) == ("fused12-34", 0)
    assert not less.variant.keeps or less.peak_bytes <= peaks["fused12-34"]
    seconds = [
        plan_transform(problem, budget, WORKERS, RATES).seconds for budget in sorted({free.peak_bytes, *peaks.values()})
    ]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("schedule", ["auto", *SCHEDULES])
def test_the_least_budget_is_enough(schedule: str) -> None:
    problem = uniform(60, 20)
    with pytest.raises(MemoryBudgetError, match="the least is") as refused:
        plan_transform(problem, 1000, WORKERS, RATES, schedule)
    least = refused.value.least_bytes
    assert plan_transform(problem, least, WORKERS, RATES, schedule).peak_bytes == least
    with pytest.raises(MemoryBudgetError, match="the least is"):
        plan_transform(problem, least - 1, WORKERS, RATES, schedule)


def test_unfused_cannot_run_where_fused_can() -> None:
    problem = uniform(114, 19)
    budget = by_hand(114, 19, "fused1234-inner")
    with pytest.raises(MemoryBudgetError, match="'unfused' needs more than the budget"):
        plan_transform(problem, budget, WORKERS, RATES, "unfused")
    assert plan_transform(problem, budget, WORKERS, RATES, "fused1234-inner").peak_bytes <= budget


def test_slow_integrals_are_not_made_twice() -> None:
    problem = uniform(114, 19)
    budget = by_hand(114, 19, "fused1234-inner")
    slow = plan_transform(problem, budget, WORKERS, Rates(1e12, 1e5))
    fast = plan_transform(problem, budget, WORKERS, Rates(1e9, 1e12, disk=1e6))
    assert slow.integrals < fast.integrals
    assert slow.moved_bytes > fast.moved_bytes == 0


@pytest.mark.parametrize("sizes", [(368, 110e9), (580, 678e9), (698, 1.4e12), (1023, 6.5e12), (1194, 12.1e12)])
def test_unfused_memory_of_the_paper(sizes: tuple[int, float]) -> None:
    """Rajbhandari et al. 2017, section 8: bytes of O1 and O2; the text cuts digits off, tiles add a little."""
    size, published = sizes
    problem = uniform(size, 16)
    stages = dict(cost_of(problem, Variant("unfused"), 1).live)
    assert published * 0.995 <= stages["O1, O2"] <= published * 1.04


def test_an_unknown_schedule() -> None:
    with pytest.raises(InputError, match=r"schedule='best' is unknown\. Expected one of auto, unfused"):
        plan_transform(uniform(4, 2), 10**9, 1, RATES, "best")


def test_rates_must_be_positive() -> None:
    with pytest.raises(InputError, match="Expected positive numbers"):
        Rates(0.0, 1.0)


def test_four_sets_of_orbitals_are_needed() -> None:
    with pytest.raises(InputError, match="to 3 sets of orbitals"):
        Problem.of(Space([2]), (Space([2]),) * 3, (True, True))


# ---- ranks ----


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 40, 1000])
def test_every_block_of_the_first_half_has_one_task(ranks: int) -> None:
    problem = uniform(24, 4)
    deal, rows = Deal(problem, ranks, 4), np.arange(problem.functions.count)
    tasks = deal.tasks(rows, (0, 6))
    done = np.zeros((len(rows), 6), np.int64)
    for task in tasks:
        done[task.row, task.part[0] : task.part[1]] += 1
    assert (done == 1).all()
    assert {task.rank for task in tasks} <= set(range(ranks))
    if ranks <= len(rows):
        assert all(task.part == (0, 6) for task in tasks)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_ranks_hold_less_and_do_the_same(schedule: str) -> None:
    problem = uniform(60, 10)
    variant = variant_of(problem, schedule)
    costs = [cost_of(problem, variant, 1, Deal(problem, ranks, 2)) for ranks in (1, 2, 4, 8)]
    assert len({cost.flops for cost in costs}) == 1
    peaks = [cost.peak_bytes for cost in costs]
    assert peaks == sorted(peaks, reverse=True)
    assert costs[0].between_bytes == costs[1].between_bytes == 0 < costs[2].between_bytes < costs[3].between_bytes
    # A pass of `recompute` has one tile of orbitals here, so that few pairs are left for each rank.
    assert all(1 <= cost.imbalance < (4 if schedule == "recompute" else 1.5) for cost in costs)


def test_orbitals_are_cut_where_pairs_of_functions_are_too_few() -> None:
    """Section 7.3: then integrals are made by several ranks, and the imbalance is seen before the run."""
    problem = uniform(24, 8)
    few, many = (cost_of(problem, Variant("fused12-34"), 1, Deal(problem, ranks, ranks)) for ranks in (6, 18))
    assert many.integrals > few.integrals
    assert many.flops == few.flops
    assert many.imbalance > 1


# ---- bounds ----


@pytest.mark.parametrize(("size", "tile"), [(114, 19), (160, 32), (200, 20)])
@pytest.mark.parametrize("spills_result", [False, True])
def test_what_goes_to_disk_is_close_to_the_bound(size: int, tile: int, spills_result: bool) -> None:
    """Theorem 5.2: O2 leaves and comes back, C leaves; blocks on the diagonal of tiles are full."""
    variant = Variant("fused12-34", rows_held=2, spills_result=spills_result)
    cost = cost_of(uniform(size, tile), variant, WORKERS)
    pairs = size * (size + 1) // 2
    assert cost.bound_bytes == 8 * (2 + spills_result) * pairs**2
    assert cost.bound_bytes <= cost.moved_bytes <= 1.5 * cost.bound_bytes


@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_goes_between_nodes_is_close_to_the_bound(nodes: int, schedule: str) -> None:
    problem = uniform(120, 12)
    cost = cost_of(problem, variant_of(problem, schedule), 1, Deal(problem, 2 * nodes, 2))
    assert cost.between_bytes <= 1.5 * cost.between_bound_bytes
    assert cost.between_bound_bytes > 0


# ---- budgets ----


def ways_by_hand(size: int, tile: int) -> list[tuple[Variant, int]]:
    """What is taken with less and less memory, the fastest first, each with its live set for equal tiles."""
    n, tiles = size, size // tile
    pairs, stored = n * (n + 1) // 2, tiles * (tiles + 1) // 2 * tile**2
    sizes = [tile**2] * (tiles * (tiles - 1) // 2) + [tile * (tile + 1) // 2] * tiles
    kept = (pairs**2 + sum(each**2 for each in sizes)) // 2
    panel, o2, c, both = tile**2 * pairs, pairs * stored, stored**2, WORKERS * (BATCH + 1) * n * n
    row, column, row_of_c = tile**2 * stored, pairs * tile**2, tile**2 * stored
    found = [
        (Variant("fused12-34", keeps=True), max(kept + o2, o2 + c)),
        (Variant("fused12-34", keeps=True, rows_held=2), max(kept + 2 * row, column + c)),
        (Variant("fused12-34", keeps=True, rows_held=1), max(kept + row, column + c)),
        (Variant("fused12-34", True, (), 2, True), max(kept + 2 * row, column + row_of_c)),
        (Variant("recompute", parts=((0, tiles),), spills_result=True), max(panel + o2, o2 + row_of_c)),
        (Variant("fused12-34", True, (), 1, True), max(kept + row, column + row_of_c)),
        (Variant("fused12-34", False, (), 2, True), max(panel + 2 * row, column + row_of_c)),
        (Variant("fused12-34", False, (), 1, True), max(panel + row, column + row_of_c)),
    ]
    return [(variant, 8 * (words + both + 4 * n * n)) for variant, words in found]


@pytest.mark.parametrize(("size", "tile"), [(60, 20), (114, 19), (160, 32)])
@pytest.mark.parametrize("share", [1.0, 0.95, 0.8, 0.65, 0.5, 0.35, 0.2, 0.1, 0.05])
def test_what_is_taken_within_a_budget(size: int, tile: int, share: float) -> None:
    """The table of docs/transform.md, from live sets that are worked out here."""
    ways = ways_by_hand(size, tile)
    budget = int(share * ways[0][1])
    expected = [(variant, peak) for variant, peak in ways if peak <= budget]
    if not expected:
        with pytest.raises(MemoryBudgetError, match="the least is"):
            plan_transform(uniform(size, tile), budget, WORKERS, Rates(1e11, 3e7))
        return
    made = plan_transform(uniform(size, tile), budget, WORKERS, Rates(1e11, 3e7))
    assert (made.variant, made.peak_bytes) == expected[0]
