"""Pairs of the elements of a space: how many, in which tiles, of which irreps."""

from __future__ import annotations

from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import spaces
from tilewise.errors import InputError
from tilewise.spaces import Pairs, Space
from tilewise.spaces.pairs import MOST_GATHERED

SIGNS = st.sampled_from((1, -1))


@given(spaces(max_tiles=5), SIGNS)
def test_every_pair_of_elements_is_in_the_tile_of_its_tiles(base: Space, sign: int) -> None:
    pairs = Pairs.of(base, sign)
    tile_of = np.repeat(np.arange(base.ntiles), base.sizes).tolist()
    choose = combinations_with_replacement if sign > 0 else combinations
    found = [(tile_of[p], tile_of[q]) for q, p in choose(range(base.size), 2)]
    assert pairs.space.size == len(found) == base.size * (base.size + sign) // 2
    listed = list(map(tuple, pairs.tiles.tolist()))
    assert sorted(listed) == sorted(set(found))
    assert pairs.space.sizes.tolist() == [found.count(tiles) for tiles in listed]
    assert pairs.tile_of(np.arange(len(listed))).tolist() == list(range(len(listed)))


@given(spaces(max_tiles=5, labels=True), SIGNS)
def test_irreps_are_products(base: Space, sign: int) -> None:
    pairs = Pairs.of(base, sign)
    assert base.irrep is not None
    assert pairs.space.irrep is not None
    first, second = pairs.tiles.T
    tile = pairs.tile_of(np.arange(len(pairs.tiles)))
    np.testing.assert_array_equal(pairs.space.irrep[tile], base.irrep[first] ^ base.irrep[second])


@given(spaces(max_tiles=5, labels=True), SIGNS)
def test_parts_of_one_irrep_follow_each_other_in_a_tile(base: Space, sign: int) -> None:
    pairs = Pairs.of(base, sign)
    assert pairs.space.irrep is not None
    assert len(set(pairs.space.irrep.tolist())) == pairs.space.ntiles
    for tile in range(pairs.space.ntiles):
        ends = [int(pairs.begin[part]) for part in pairs.parts(tile)] + [int(pairs.space.sizes[tile])]
        lengths = []
        for part in pairs.parts(tile):
            first, second = pairs.tiles[part].tolist()
            size, other = int(base.sizes[first]), int(base.sizes[second])
            lengths.append(size * (size + sign) // 2 if first == second else size * other)
        assert np.diff(ends).tolist() == lengths
        assert ends[0] == 0


def test_a_tile_of_pairs_does_not_grow_without_limit() -> None:
    base = Space([10, 12, 9, 11, 15], irrep=[0, 0, 0, 0, 0])
    pairs = Pairs.of(base, 1)
    assert pairs.space.sizes.sum() == 57 * 58 // 2
    assert pairs.space.sizes.max() <= MOST_GATHERED
    assert 1 < pairs.space.ntiles < len(pairs.tiles)


@given(spaces(max_tiles=6, min_tiles=1), SIGNS)
def test_number_finds_the_tile_in_either_order(base: Space, sign: int) -> None:
    pairs = Pairs.of(base, sign)
    numbers = pairs.number(*np.indices((base.ntiles,) * 2))
    np.testing.assert_array_equal(numbers, numbers.T)
    for first, second in combinations_with_replacement(range(base.ntiles), 2):
        number = int(numbers[first, second])
        if sign < 0 and first == second and base.sizes[first] == 1:
            assert number == -1
        else:
            assert [second, first] in pairs.tiles[pairs.ptr[number] : pairs.ptr[number + 1]].tolist()
            assert pairs.tiles[pairs.part(np.array(first), np.array(second))].tolist() == [second, first]
    assert int(pairs.number(np.array(0), np.array(base.ntiles - 1))) == numbers[0, -1]


def test_tiles_of_one_element_have_no_antisymmetric_pair_of_their_own() -> None:
    base = Space([1, 1, 2], irrep=[3, 1, 0], name="occ")
    even, odd = Pairs.of(base, 1), Pairs.of(base, -1)
    assert even.space.sizes.tolist() == [5, 2, 1, 2]
    assert odd.space.sizes.tolist() == [1, 2, 1, 2]
    assert odd.tiles.tolist() == [[2, 2], [2, 1], [1, 0], [2, 0]]
    assert odd.space.irrep is not None
    assert odd.space.irrep.tolist() == [0, 1, 2, 3]
    assert (even.space.name, odd.space.name) == ("symmetric occ pairs", "antisymmetric occ pairs")


@pytest.mark.parametrize(("sizes", "even", "odd"), [([], 0, 0), ([1], 1, 0)], ids=["nothing", "one element"])
def test_the_smallest_spaces(sizes: list[int], even: int, odd: int) -> None:
    base = Space(sizes)
    for sign, count in ((1, even), (-1, odd)):
        pairs = Pairs.of(base, sign)
        assert (pairs.space.size, pairs.space.ntiles, pairs.tiles.shape) == (count, count, (count, 2))
        assert (pairs.base, pairs.sign) == (base, sign)
        assert (pairs.space.irrep, pairs.space.name) == (None, None)


@pytest.mark.parametrize("sign", [0, 2, "+"])
def test_other_signs_are_refused(sign: int) -> None:
    with pytest.raises(InputError, match=r"Pairs have the sign .*\. Expected 1 or -1\. Pass one of them"):
        Pairs.of(Space([2]), sign)
