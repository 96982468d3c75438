"""Grids of ranks, the nodes that are laid over them, and weights dealt along an axis."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewise as tw
from tilewise.plans.balance import deal_mirrored
from tilewise.plans.grids import (
    Grid,
    choose_grid,
    deal_axis,
    deal_boxes,
    divisors,
    factorisations,
    map_nodes,
    node_shapes,
    row_major_volume,
)

Words = tuple[float, ...]

SHAPES = {
    "square": (1, 1, 1),
    "large K": (1, 1, 10),
    "large M": (10, 1, 1),
    "small K": (10, 10, 1),
}
"""Rows, columns and k of the products of Irmler et al. 2023 (3.2), whose edges have the ratio 10."""


def dense_words(rows: int, cols: int, inner: int) -> Words:
    """What a dense product sends along rows, columns and k: the right operand, the left one, the result."""
    return float(inner * cols), float(rows * inner), float(rows * cols)


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    nodes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    inside = draw(st.lists(st.integers(1, 4), min_size=len(nodes), max_size=len(nodes)))
    return Grid(tuple(n * m for n, m in zip(nodes, inside, strict=True)), tuple(inside))


def words_for(data: st.DataObject, axes: int) -> list[int]:
    return data.draw(st.lists(st.integers(0, 100), min_size=axes, max_size=axes))


def counted_volume(node: npt.NDArray[np.int64], words: list[int]) -> float:
    """Nodes of every fibre but one, times the words of the fibre, one fibre after the other."""
    total = 0.0
    for axis, sent in enumerate(words):
        fibres = np.moveaxis(node, axis, -1).reshape(-1, node.shape[axis]).tolist()
        total += sum(sent / len(fibres) * (len(set(fibre)) - 1) for fibre in fibres)
    return total


@given(st.integers(1, 2000))
def test_divisors_divide_and_none_is_left_out(number: int) -> None:
    assert list(divisors(number)) == [d for d in range(1, number + 1) if number % d == 0]


@given(st.integers(1, 200), st.integers(1, 3))
def test_factorisations_are_all_there_and_once(number: int, axes: int) -> None:
    found = list(factorisations(number, axes))
    everything = itertools.product(divisors(number), repeat=axes)
    assert sorted(found) == sorted(each for each in everything if math.prod(each) == number)


@given(grids())
def test_every_place_of_a_grid_has_one_rank(grid: Grid) -> None:
    ranks = grid.ranks()
    assert sorted(ranks.ravel().tolist()) == list(range(grid.size))
    for rank, place in enumerate(grid.coordinates().tolist()):
        assert ranks[tuple(place)] == rank


@given(grids())
def test_a_node_has_a_box_of_the_grid(grid: Grid) -> None:
    place = grid.coordinates() // np.array(grid.inside)
    for node in range(math.prod(grid.nodes)):
        own = place[node * grid.ranks_per_node : (node + 1) * grid.ranks_per_node]
        assert len(np.unique(own, axis=0)) == 1


@given(grids(), st.data())
def test_the_volume_counts_the_nodes_of_every_fibre(grid: Grid, data: st.DataObject) -> None:
    words = words_for(data, len(grid.shape))
    assert grid.volume(words) == pytest.approx(counted_volume(grid.ranks() // grid.ranks_per_node, words))
    assert grid.rank_volume(words) == pytest.approx(counted_volume(grid.ranks(), words))


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 12), st.data())
def test_the_volume_of_ranks_numbered_row_by_row(shape: list[int], per_node: int, data: st.DataObject) -> None:
    words = words_for(data, len(shape))
    node = np.arange(math.prod(shape)).reshape(shape) // per_node
    assert row_major_volume(shape, words, per_node) == pytest.approx(counted_volume(node, words))


@given(grids(), st.data())
def test_the_best_mapping_is_the_best_of_all(grid: Grid, data: st.DataObject) -> None:
    words = words_for(data, len(grid.shape))
    best = map_nodes(grid.shape, words, grid.ranks_per_node)
    assert best is not None
    boxes = itertools.product(*map(divisors, grid.shape))
    others = [Grid(grid.shape, box) for box in boxes if math.prod(box) == grid.ranks_per_node]
    assert grid in others
    assert [other.inside for other in others] == node_shapes(grid.shape, grid.ranks_per_node)
    assert best.volume(words) == min(other.volume(words) for other in others)


@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_the_chosen_grid_is_the_best_of_all_shapes_and_mappings(nodes: int, per_node: int, data: st.DataObject) -> None:
    words = words_for(data, 3)
    best = choose_grid(words, nodes * per_node, per_node)
    assert (best.size, best.ranks_per_node) == (nodes * per_node, per_node)
    mapped = [map_nodes(shape, words, per_node) for shape in factorisations(nodes * per_node, 3)]
    assert best.volume(words) == min(grid.volume(words) for grid in mapped if grid is not None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nodes", [j * 2**i for j in (1, 3, 9) for i in range(9) if j * 2**i <= 288])
def test_shape_and_mapping_chosen_together_cross_least(shape: str, nodes: int) -> None:
    """The node numbers and matrix shapes of Irmler et al. 2023 (3.2), 72 ranks on a node."""
    words, ranks = dense_words(*SHAPES[shape]), 72 * nodes
    blind = min(factorisations(ranks, 3), key=lambda grid: Grid(grid, grid).rank_volume(words))
    mapped, chosen = map_nodes(blind, words, 72), choose_grid(words, ranks, 72)
    assert mapped is not None
    assert chosen.volume(words) <= min(mapped.volume(words), row_major_volume(blind, words, 72))


@given(grids(), st.data())
def test_ranks_numbered_row_by_row_are_one_of_the_mappings_if_a_node_has_a_part_of_a_row(
    grid: Grid, data: st.DataObject
) -> None:
    words, per_node = words_for(data, len(grid.shape)), data.draw(st.sampled_from(divisors(grid.shape[-1])))
    row_by_row = Grid(grid.shape, (*(1 for _ in grid.shape[1:]), per_node))
    best = map_nodes(grid.shape, words, per_node)
    assert best is not None
    assert row_major_volume(grid.shape, words, per_node) == pytest.approx(row_by_row.volume(words))
    assert best.volume(words) <= row_by_row.volume(words)


def test_planes_that_are_cut_can_cross_less_than_any_box() -> None:
    """A node has four and a half of 36 planes of 4 x 4: only one plane in nine lies on two nodes."""
    shape, words = (36, 4, 4), dense_words(*SHAPES["large M"])
    box = map_nodes(shape, words, 72)
    assert box is not None
    assert box.volume(words) == 13
    assert row_major_volume(shape, words, 72) == pytest.approx(7 + 10 / 9)


def test_a_node_that_covers_a_square_sends_least() -> None:
    """288 nodes of 72 ranks on a square grid, a square product that is not cut along k."""
    words = (1.0, 1.0)
    best = map_nodes((144, 144), words, 72)
    assert best is not None
    assert sorted(best.inside) == [8, 9]
    assert best.volume(words) == 144 / 8 + 144 / 9 - 2
    assert row_major_volume((144, 144), words, 72) == (144 - 1) + (2 - 1)


def test_nodes_that_do_not_fit_are_refused() -> None:
    assert map_nodes((3, 5), (1.0, 1.0), 2) is None
    with pytest.raises(tw.InputError, match="A node of 2 x 1 ranks does not fit a grid of 3 x 5"):
        Grid((3, 5), (2, 1))
    with pytest.raises(tw.InputError, match=r"10 ranks, 4 on a node, do not fill whole nodes.*Use 8 ranks"):
        choose_grid((1.0, 1.0, 1.0), 10, 4)


weights = st.lists(st.integers(0, 50), max_size=60).map(lambda values: np.array(values, np.float64))


@given(weights, st.integers(1, 6), st.integers(1, 5))
def test_neighbours_together_are_runs_near_the_mean(weight: npt.NDArray[np.float64], nodes: int, inside: int) -> None:
    group = deal_axis(weight, nodes, inside, contiguous=True)
    assert len(group) == len(weight)
    assert (np.diff(group) >= 0).all()
    for part, count in ((group, nodes * inside), (group // inside, nodes)):
        loads = np.bincount(part, weight, count)
        assert len(loads) == count
        assert loads.max() <= weight.sum() / count + weight.max(initial=0) + 1e-9


@given(weights, st.integers(1, 6), st.integers(1, 5))
def test_largest_first_is_forward_and_back_over_nodes_and_over_each_node(
    weight: npt.NDArray[np.float64], nodes: int, inside: int
) -> None:
    group = deal_axis(weight, nodes, inside, contiguous=False)
    np.testing.assert_array_equal(group // inside, deal_mirrored(weight, nodes))
    for node in range(nodes):
        own = group // inside == node
        np.testing.assert_array_equal(group[own] % inside, deal_mirrored(weight[own], inside))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(1, 6), st.integers(1, 6), st.data())
def test_boxes_deal_every_mode_by_itself(counts: list[int], nodes: int, inside: int, data: st.DataObject) -> None:
    tiles = np.argwhere(np.ones(counts))
    weight = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(tiles), max_size=len(tiles))), np.float64)
    group = deal_boxes(weight, tiles, nodes, inside)
    assert group.min() >= 0
    assert group.max() < nodes * inside
    for part in (group, group // inside):
        for own in np.unique(part):
            members = tiles[part == own]
            sides = [np.unique(column) for column in members.T]
            assert len(members) == math.prod(map(len, sides))  # a box
            assert all((np.diff(side) == 1).all() for side in sides)
