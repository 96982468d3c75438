"""Clustered spaces: k-means over centres."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.errors import InputError
from tilewise.spaces import Space


@st.composite
def centres(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], list[int], int]:
    """Points (some of them equal), functions on each, and a possible number of tiles."""
    count = draw(st.integers(1, 25))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    points = rng.normal(size=(count, 3)).round(draw(st.integers(0, 3)))
    functions = rng.integers(1, 6, size=count).tolist()
    return points, functions, draw(st.integers(1, count))


@given(centres(), st.integers(0, 5))
def test_clusters_cover_all_elements_once(case: Any, seed: int) -> None:
    points, functions, ntiles = case
    space = Space.clustered(points, ntiles, functions=functions, seed=seed)
    assert space.ntiles == ntiles
    assert space.size == sum(functions)
    assert sorted(space.order.tolist()) == list(range(space.size))
    again = Space.clustered(points, ntiles, functions=functions, seed=seed)
    assert again == space
    assert again.order.tolist() == space.order.tolist()


@given(centres())
def test_elements_of_one_centre_stay_neighbours_in_one_tile(case: Any) -> None:
    points, functions, ntiles = case
    space = Space.clustered(points, ntiles, functions=functions)
    centre = np.repeat(np.arange(len(functions)), functions)[space.order]
    tile = np.repeat(np.arange(ntiles), space.sizes)
    starts = np.flatnonzero(np.diff(centre, prepend=-1))
    assert len(starts) == len(functions)
    for number in range(len(functions)):
        assert len(set(tile[centre == number].tolist())) == 1


def test_separated_groups_become_tiles_in_order_along_the_line() -> None:
    rng = np.random.default_rng(1)
    group = rng.permutation(np.repeat(np.arange(4), [3, 5, 2, 6]))
    points = np.stack([0.1 * rng.random(16), 10.0 * group, 0.1 * rng.random(16)], axis=1)
    space = Space.clustered(points, 4, name="ao")
    assert space.name == "ao"
    assert space.sizes.tolist() == [3, 5, 2, 6]
    assert (np.diff(group[space.order]) >= 0).all()


def test_dense_in_tile_order() -> None:
    points = np.array([[0.0, 0, 0], [9.0, 0, 0], [1.0, 0, 0]])
    space = Space.clustered(points, 2, functions=[2, 1, 1])
    dense = np.array([10, 11, 20, 30])
    assert dense[space.order].tolist() == [10, 11, 30, 20]
    assert space.sizes.tolist() == [3, 1]


def test_equal_points_still_fill_all_tiles() -> None:
    space = Space.clustered(np.zeros((5, 3)), 4)
    assert space.ntiles == 4
    assert sorted(space.sizes.tolist()) == [1, 1, 1, 2]


def test_no_centres_make_no_tiles() -> None:
    assert Space.clustered([], 0) == Space([])
    assert Space.clustered(np.zeros((0, 3)), 0).order.tolist() == []


def test_order_is_no_part_of_identity() -> None:
    one = Space.clustered([[0.0, 0, 0], [5.0, 0, 0]], 2)
    other = Space.clustered([[5.0, 0, 0], [0.0, 0, 0]], 2)
    assert one == other
    assert one.order.tolist() != other.order.tolist()
    assert not one.order.flags.writeable


@pytest.mark.parametrize(
    ("points", "ntiles", "functions", "message"),
    [
        (
            np.zeros((3, 3)),
            4,
            None,
            "3 centres cannot be clustered into 4 tiles. From 1 to 3 tiles are possible",
        ),
        (np.zeros((3, 3)), 0, None, "3 centres cannot be clustered into 0 tiles"),
        (
            np.zeros((3, 3)),
            1.5,
            None,
            "The number of tiles of a clustered space is 1.5. It must be an integer",
        ),
        (np.zeros(3), 1, None, "The points of a clustered space have shape (3,) or are not finite"),
        ([[0.0, np.nan, 0.0]], 1, None, "or are not finite"),
        ([["x", "y"]], 1, None, "The points of a clustered space are no numbers"),
        (np.zeros((3, 3)), 1, [1, 1], "The functions per centre have shape (2,) and minimum 1. Shape (3,)"),
        (np.zeros((3, 3)), 1, [1, 0, 1], "have shape (3,) and minimum 0. Shape (3,) and at least 1"),
    ],
)
def test_bad_centres(points: Any, ntiles: Any, functions: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Space.clustered(points, ntiles, functions=functions)
