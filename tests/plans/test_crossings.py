"""What crosses on a grid, against a count over the block products of a plan one by one."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewise as tw
from plans.enumeration import work_of
from strategies import EinsumCase, matrix_cases
from tilewise.patterns import Symmetry
from tilewise.plans import Plan
from tilewise.plans.cells import piece_of_segment
from tilewise.plans.crossings import Choice, Crossings
from tilewise.plans.grids import Grid, RankRates, divisors, factorisations, node_shapes
from tilewise.plans.pairs import list_pairs
from tilewise.plans.sides import Side

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

RATES = RankRates(flops=1e9, between=1e8, inside=1e9)


def planned(text: str, *patterns: tw.Pattern, tol: float | None = None) -> Plan:
    plan = tw.plan(text, *patterns, tol=tol)
    assert isinstance(plan, Plan)
    return plan


@dataclass(frozen=True)
class Touched:
    """The block products of a plan without symmetry, with where they are on a grid."""

    row: Ints
    col: Ints
    segment: Ints
    flops: Floats
    blocks: tuple[Ints, Ints, Ints]
    """Block of the row operand, of the column operand and of the result."""
    block_bytes: tuple[Ints, Ints, Ints]

    @classmethod
    def of(cls, plan: Plan) -> Touched:
        work, pairs = work_of(plan), list_pairs(plan)
        order = (1, 0) if work.swapped else (0, 1)
        own, met = (pairs.left, pairs.right)[order[0]], (pairs.left, pairs.right)[order[1]]
        row, inner = places(work.rows, own)
        col, same = places(work.cols, met)
        np.testing.assert_array_equal(inner, same)
        left, right = (plan.operands[i].pattern.block_sizes * plan.dtype.itemsize for i in order)
        result = plan.result.block_sizes * plan.dtype.itemsize
        segment = work.choices.segment[inner]
        return cls(row, col, segment, pairs.flops, (own, met, pairs.target), (left, right, result))

    def crossing(self, holder: Ints) -> int:
        """Bytes of every block, once for each holder but one that touches it."""
        total = 0
        for block, size in zip(self.blocks, self.block_bytes, strict=True):
            for number, _ in set(zip(block.tolist(), holder.tolist(), strict=True)):
                total += int(size[number])
            total -= int(size[np.unique(block)].sum())
        return total


def places(side: Side, block: Ints) -> tuple[Ints, Ints]:
    """Panel and k tile of some blocks of an operand."""
    panel = np.repeat(np.arange(len(side.size)), np.diff(side.ptr))
    entry = {number: at for at, number in enumerate(side.block.tolist())}
    at = np.array([entry[number] for number in block.tolist()], np.int64)
    return panel[at], side.inner[at]


def over_mean(loads: Floats) -> float:
    return float(loads.max() / loads.mean()) if loads.any() else 1.0


def check(plan: Plan, choice: Choice) -> None:
    """Everything that is said to be exact."""
    touched = Touched.of(plan)
    rank = choice.ranks_of(touched.row, touched.col, touched.segment)
    flops = np.asarray(np.bincount(rank, touched.flops, choice.grid.size), np.float64)
    assert choice.rank_bytes == touched.crossing(rank)
    assert choice.node_bytes == touched.crossing(rank // choice.grid.ranks_per_node)
    assert choice.imbalance == pytest.approx(over_mean(flops))


@st.composite
def deep_plans(draw: st.DrawFn, screened: bool | None = None) -> Plan:
    """A product with several k segments, whose rows come from either operand."""
    most = draw(st.sampled_from(((5, 40), (40, 5), (20, 20))))
    m, n = (tw.Space(draw(st.lists(st.integers(3, size), min_size=1, max_size=7))) for size in most)
    k = tw.Space(draw(st.lists(st.integers(100, 900), min_size=1, max_size=9)))
    density = draw(st.sampled_from((0.3, 0.6, 1.0)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    both = []
    for pair in ((m, k), (k, n)):
        every = tw.Pattern.dense(pair).index
        index = every[rng.random(len(every)) < density]
        both.append(tw.Pattern(pair, index, 10.0 ** rng.uniform(-4, 0, len(index))))
    keep_all = not draw(st.booleans()) if screened is None else not screened
    text = draw(st.sampled_from(("mk,kn->mn", "mk,kn->nm")))
    return planned(text, *both, tol=None if keep_all else draw(st.sampled_from((1e-3, 1e-1))))


@st.composite
def rank_numbers(draw: st.DrawFn) -> tuple[int, int]:
    ranks = draw(st.sampled_from((1, 2, 4, 6, 8, 12, 24)))
    return ranks, draw(st.sampled_from(divisors(ranks)))


@st.composite
def small_grids(draw: st.DrawFn) -> Grid:
    nodes, inside = (draw(st.tuples(*[st.integers(1, most)] * 3)) for most in (3, 2))
    return Grid(tuple(g * m for g, m in zip(nodes, inside, strict=True)), inside)


@given(deep_plans(), small_grids())
def test_what_crosses_is_what_the_products_touch(plan: Plan, grid: Grid) -> None:
    crossings = Crossings(plan)
    found = crossings.weigh([grid], RATES)
    assert found.choices
    for choice in found.choices:
        assert choice.grid == grid
        check(plan, choice)


@given(matrix_cases("float64", batches=1), rank_numbers())
def test_what_crosses_with_batches_and_composite_tiles(case: EinsumCase, numbers: tuple[int, int]) -> None:
    plan = planned(case.text, *[tensor.pattern for tensor in case.tensors])
    crossings = Crossings(plan)
    for choice in crossings.search(*numbers, RATES, most=4).choices:
        check(plan, choice)


@given(matrix_cases("complex128"))
def test_complex_elements_are_sixteen_bytes_and_eight_flops(case: EinsumCase) -> None:
    plan = tw.plan(case.text, *case.tensors)
    assert isinstance(plan, Plan)
    crossings = Crossings(plan)
    choice = crossings.search(4, 2, RATES).best
    check(plan, choice)
    assert crossings.meetings.flops.sum() == plan.flops


@given(deep_plans(screened=True))
def test_what_screening_drops_is_not_sent(plan: Plan) -> None:
    crossings = Crossings(plan)
    assert crossings.meetings.flops.sum() == plan.flops
    for choice in crossings.search(8, 2, RATES, most=8).choices:
        check(plan, choice)


@given(deep_plans(), rank_numbers())
def test_the_fastest_grid_is_the_fastest_of_all(plan: Plan, numbers: tuple[int, int]) -> None:
    """Every grid, mapping and dealing, its flops counted over the products."""
    crossings, touched = Crossings(plan), Touched.of(plan)
    found = crossings.search(*numbers, RATES, most=10**6)
    assert found.is_proven
    limits = [max(len(np.unique(axis)), 1) for axis in (touched.row, touched.col, crossings.meetings.part)]
    shapes = list(factorisations(numbers[0], 3))
    busy = [shape for shape in shapes if all(p <= most for p, most in zip(shape, limits, strict=True))]
    seconds = []
    for shape in busy or shapes:
        for inside in node_shapes(shape, numbers[1]):
            grid = Grid(shape, inside)
            axes = [crossings.dealings(axis, grid.nodes[axis], inside[axis]) for axis in range(3)]
            for rows, cols, k in itertools.product(*axes):
                part = k.group[crossings.part_of_segment[touched.segment]]
                rank = grid.ranks()[rows.group[touched.row], cols.group[touched.col], part]
                busiest = np.bincount(rank, touched.flops, grid.size).max() / RATES.flops
                between = touched.crossing(rank // grid.ranks_per_node)
                inner = touched.crossing(rank) - between
                nodes = math.prod(grid.nodes)
                seconds.append(
                    busiest + between / nodes / RATES.between + inner / grid.size / RATES.inside,
                )
    assert found.considered == len(seconds)
    assert found.best.seconds == pytest.approx(min(seconds))
    assert [choice.seconds for choice in found.choices] == sorted(choice.seconds for choice in found.choices)


def segmented(tiles: int = 12) -> Plan:
    """Sixteen result blocks and several k segments."""
    edge, k = tw.Space([30, 10, 20, 40]), tw.Space([500, 300] * (tiles // 2))
    return planned("mk,kn->mn", tw.Pattern.dense((edge, k)), tw.Pattern.dense((k, edge)))


@pytest.mark.parametrize("axis", range(3), ids=["rows", "columns", "k"])
@pytest.mark.parametrize(("nodes", "inside"), [(1, 2), (2, 1), (2, 2), (4, 1)])
def test_a_dense_product_sends_what_the_formula_says(axis: int, nodes: int, inside: int) -> None:
    plan = segmented()
    left, right = (operand.pattern.nbytes("float64") for operand in plan.operands)
    words = ((left, right) if work_of(plan).swapped else (right, left)) + (plan.result_bytes,)
    for way in Crossings(plan).dealings(axis, nodes, inside):
        assert way.rank_bytes == words[axis] * (len(np.unique(way.group)) - 1)
        assert way.node_bytes == words[axis] * (len(np.unique(way.group // inside)) - 1)


def test_groups_of_k_are_runs_of_whole_segments_and_nodes_have_neighbours() -> None:
    plan = segmented()
    choices = Crossings(plan).search(16, 4, RATES, most=10**6).choices
    assert any(choice.grid.shape[2] > 1 for choice in choices)
    for choice in choices:
        assert len(choice.segment_group) == work_of(plan).choices.segments
        assert (np.diff(choice.segment_group) >= 0).all()
        groups = (choice.row_group, choice.col_group, choice.segment_group)
        for group, count in zip(groups, choice.grid.shape, strict=True):
            assert set(group.tolist()) <= set(range(count))


def test_groups_of_k_are_whole_pieces_where_sums_are_added_up_in_pieces() -> None:
    one, k = tw.Space([200]), tw.Space([400] * 40)
    plan = planned("mk,kn->mn", tw.Pattern.dense((one, k)), tw.Pattern.dense((k, one)))
    choices = work_of(plan).choices
    assert 1 < choices.pieces < choices.segments
    piece = piece_of_segment(np.arange(choices.segments), choices.segments, choices.pieces)
    crossings = Crossings(plan)
    for choice in crossings.search(4, 2, RATES).choices:
        pairs = set(zip(piece.tolist(), choice.segment_group.tolist(), strict=True))
        assert len(pairs) == len(set(piece.tolist()))  # one group for each piece
        assert choice.grid.shape == (1, 1, 4)
        assert choice.rank_bytes == 3 * plan.result_bytes
        check(plan, choice)


def test_panels_are_dealt_in_two_ways_and_k_in_one() -> None:
    crossings = Crossings(segmented())
    assert [[dealing.way for dealing in crossings.dealings(axis, 2, 1)] for axis in range(3)] == [
        ["neighbours", "weight"],
        ["neighbours", "weight"],
        ["neighbours"],
    ]


def test_panels_of_several_modes_are_dealt_in_boxes_where_less_crosses() -> None:
    i, j, k, n = (tw.Space([4] * 12, name=name) for name in "ijkn")
    blocks = np.argwhere(np.ones((12, 12, 12)))
    near = tw.Pattern((i, j, k), blocks[blocks[:, 1] // 4 == blocks[:, 2] // 4])
    plan = planned("ijk,kn->ijn", near, tw.Pattern.dense((k, n)))
    crossings, axis = Crossings(plan), int(work_of(plan).swapped)
    together, apart, boxes = crossings.dealings(axis, 3, 3)
    assert [dealing.way for dealing in (together, apart, boxes)] == ["neighbours", "weight", "boxes"]
    # Nodes have runs of i, and all of k each; ranks of a node have runs of j, and a third of k each.
    size = 12 * 12 * 4 * 4 * 8
    assert together.rank_bytes == 8 * size
    assert boxes.rank_bytes == 2 * size < apart.rank_bytes
    assert boxes.imbalance == 1.0
    rates = RankRates(flops=1e15, between=1e6, inside=1e6)
    shapes = np.ones((2, 3), int)
    shapes[:, axis] = 9, 3
    best = crossings.weigh([Grid(*map(tuple, shapes.tolist()))], rates).best
    assert best.ways[axis] == "boxes"
    check(plan, best)


def test_a_grid_that_is_given_is_weighed_with_its_dealings() -> None:
    plan, grid = segmented(), Grid((2, 2, 2), (1, 2, 1))
    crossings = Crossings(plan)
    found = crossings.weigh([grid], RATES)
    assert found.considered == 4
    assert {choice.grid for choice in found.choices} == {grid}
    for choice in found.choices:
        check(plan, choice)


def test_a_block_that_symmetry_makes_counts_like_a_stored_one() -> None:
    space = tw.Space([20, 30, 25, 15])
    full = tw.Pattern.dense((space, space))
    symmetric = tw.Pattern.dense((space, space), Symmetry(((0, 1), 1)))
    plans = [planned("ik,kj->ij", first, full) for first in (full, symmetric)]
    stored, made = (Crossings(plan).search(4, 2, RATES).best for plan in plans)
    assert (stored.node_bytes, stored.rank_bytes) == (made.node_bytes, made.rank_bytes)


def test_neighbours_stay_together_where_the_pattern_is_banded() -> None:
    """A banded product crosses only at the ends of runs; dealt by weight, nearly everything would."""
    space = tw.Space([20] * 64)
    near = np.abs(np.subtract.outer(np.arange(64), np.arange(64))) <= 1
    band = tw.Pattern((space, space), np.argwhere(near))
    crossings = Crossings(planned("ik,kj->ij", band, band))
    together, apart = crossings.dealings(1, 4, 2)
    assert together.node_bytes * 10 < apart.node_bytes
    rates = RankRates(flops=1e15, between=1e6, inside=1e9)
    assert crossings.search(8, 2, rates).best.ways[1] == "neighbours"


def test_counts_are_kept_for_several_numbers_of_ranks() -> None:
    plan = segmented()
    crossings = Crossings(plan)
    for ranks in (4, 8, 16):
        again = Crossings(plan).search(ranks, 4, RATES)
        found = crossings.search(ranks, 4, RATES)
        assert [(c.grid, c.seconds) for c in again.choices] == [(c.grid, c.seconds) for c in found.choices]


def test_a_search_that_is_cut_short_says_what_it_may_have_missed() -> None:
    crossings = Crossings(segmented())
    whole, cut = (crossings.search(16, 4, RATES, most=most) for most in (10**6, 1))
    assert len(cut.choices) == 1
    assert cut.bound_seconds <= whole.best.seconds <= cut.best.seconds


def test_more_ranks_than_panels_leave_some_idle() -> None:
    one = tw.Space([8])
    plan = planned("ik,kj->ij", tw.Pattern.dense((one, one)), tw.Pattern.dense((one, one)))
    crossings = Crossings(plan)
    best = crossings.search(6, 2, RATES).best
    assert best.imbalance == 6.0
    check(plan, best)


def test_a_product_without_blocks_crosses_nothing() -> None:
    i, k = tw.Space([3, 4]), tw.Space([5])
    nothing = tw.Pattern((i, k), np.zeros((0, 2), np.int64))
    plan = planned("ik,kj->ij", nothing, tw.Pattern.dense((k, i)))
    crossings = Crossings(plan)
    best = crossings.search(4, 2, RATES).best
    assert (best.node_bytes, best.rank_bytes, best.imbalance, best.seconds) == (0, 0, 1.0, 0.0)


def test_a_choice_shows_its_grid() -> None:
    text = repr(Crossings(segmented()).search(4, 2, RATES).best)
    assert "nodes of" in text
    assert "bytes between nodes" in text


def test_what_has_no_grid_is_refused() -> None:
    i = tw.Space([3, 4])
    dense = tw.Pattern.dense((i, i))
    with pytest.raises(tw.InputError, match="ij->i has no products to share"):
        Crossings(planned("ij->i", dense))
    with pytest.raises(tw.InputError, match="6 ranks, 4 on a node, do not fill whole nodes"):
        Crossings(planned("ij,jk->ik", dense, dense)).search(6, 4, RATES)
    with pytest.raises(tw.InputError, match="are not all positive"):
        RankRates(flops=1e9, between=0.0, inside=1e9)
