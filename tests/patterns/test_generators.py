"""Random, dense, decaying, selected and masked patterns."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import patterns, space_lists, spaces, symmetric_patterns
from tilewise.errors import InputError
from tilewise.patterns import Pattern, Symmetry, expand, without_symmetry
from tilewise.spaces import Rule, Space


def elements_of(pattern: Pattern) -> list[int]:
    """Elements of the full tensor that each unique block stands for."""
    return [int(size) for size in pattern.block_sizes * pattern.multiplicity]


@given(symmetric_patterns() | patterns(), st.floats(0, 1), st.integers(0, 100))
def test_random_stops_where_one_more_removal_goes_under(like: Pattern, density: float, seed: int) -> None:
    pattern = Pattern.random(like.spaces, density, seed, like.symmetry)
    pattern.check()
    total = math.prod(pattern.shape)
    sizes = elements_of(pattern)
    if total:
        assert pattern.density >= density
    if sizes:
        # The next block was drawn at random, so some block must be one whose removal goes under.
        assert (sum(sizes) - max(sizes)) / total < density
    assert Pattern.random(like.spaces, density, seed, like.symmetry) == pattern


def test_random_with_equal_tiles_is_exact() -> None:
    space = Space([3] * 10)
    for percent in range(101):
        assert Pattern.random((space, space), percent / 100, seed=percent).nnz_blocks == percent


def test_random_blocks_are_uniform() -> None:
    space = Space([1] * 4)
    kept = np.zeros((4, 4))
    for seed in range(2000):
        kept[tuple(Pattern.random((space, space), 0.25, seed).index.T)] += 1
    # Four of sixteen blocks stay: binomial with mean 500 and standard deviation 19.4 per block.
    assert abs(kept - 500).max() < 5 * 19.4
    assert kept.sum() == 4 * 2000


def test_random_goes_on_drawing_when_the_first_draw_is_too_small() -> None:
    # One tile holds nearly all elements: without it the target is not reached by any other draw.
    space = Space([100_000] + [1] * 4999)
    for seed in range(5):
        pattern = Pattern.random((space,), 0.5, seed)
        pattern.check()
        assert pattern.row((0,)) == 0
        assert pattern.density >= 0.5


def test_random_ends_and_seeds() -> None:
    space = Space([2, 3, 4])
    assert Pattern.random((space, space), 1).nnz_blocks == 9
    assert Pattern.random((space, space), 0).nnz_blocks == 0
    assert Pattern.random((), 1.0).nnz_blocks == 1
    assert Pattern.random((Space([]),), 0.5).nnz_blocks == 0
    wide = Space([2] * 30)
    assert Pattern.random((wide, wide), 0.3, seed=1) != Pattern.random((wide, wide), 0.3, seed=2)
    assert set(Pattern.random((wide,), 0.5, norms=2.5).norms.tolist()) == {2.5}
    assert set(Pattern.random((wide,), 0.5).norms.tolist()) == {math.inf}


@pytest.mark.parametrize("density", [-0.1, 1.1, float("nan"), True, "0.5", None, [0.5]])
def test_bad_density(density: Any) -> None:
    with pytest.raises(InputError, match=re.escape(f"density is {density!r}. A number from 0 to 1 is expected")):
        Pattern.random((Space([2]),), density)


def test_ten_million_candidates_take_seconds_at_most() -> None:
    space = Space.uniform(57 * 24, 24)
    start = time.process_time()
    pattern = Pattern.random((space,) * 4, 0.03)
    assert time.process_time() - start < 3
    assert pattern.nnz_blocks == pytest.approx(0.03 * 57**4, rel=1e-3)


@given(space_lists())
def test_dense_and_empty(modes: tuple[Space, ...]) -> None:
    every, none = Pattern.dense(modes), Pattern.empty(modes)
    every.check()
    none.check()
    assert every.nnz_blocks == math.prod(space.ntiles for space in modes)
    assert every.nnz_elements == math.prod(space.size for space in modes)
    assert none.nnz_blocks == 0


@given(symmetric_patterns())
def test_dense_with_symmetry_expands_to_every_block(like: Pattern) -> None:
    pattern = Pattern.dense(like.spaces, like.symmetry)
    pattern.check()
    assert expand(pattern).index.tolist() == Pattern.dense(like.spaces).index.tolist()


def test_decaying_matrix() -> None:
    space = Space([3] * 12)
    pattern = Pattern.decaying((space, space), length=2.0, cut=1e-2)
    pattern.check()
    distance = abs(np.subtract.outer(np.arange(12), np.arange(12)))
    norms = np.exp(-distance / 2.0)
    assert pattern.index.tolist() == np.argwhere(norms > 1e-2).tolist()
    np.testing.assert_allclose(pattern.norms, norms[norms > 1e-2])


@given(space_lists(min_modes=1), st.floats(0.3, 5), st.floats(0, 1), st.floats(0, 3))
def test_decaying_by_its_definition(modes: tuple[Space, ...], length: float, cut: float, norm: float) -> None:
    pattern = Pattern.decaying(modes, length, cut, norm=norm)
    pattern.check()
    longest = max(space.ntiles for space in modes)
    every = Pattern.dense(modes).index
    scale = np.array([longest / max(space.ntiles, 1) for space in modes])
    places = (every + 0.5) * scale
    norms = norm * np.exp(-(places.max(axis=1, initial=-np.inf) - places.min(axis=1, initial=np.inf)) / length)
    assert pattern.index.tolist() == every[norms > cut].tolist()
    np.testing.assert_allclose(pattern.norms, norms[norms > cut])


def test_decaying_over_pairs_of_modes() -> None:
    space = Space([2] * 4)
    pattern = Pattern.decaying((space,) * 4, 1.0, 0.1, norm=2.0, pairs=((0, 2), (3, 1)))
    pattern.check()
    every = Pattern.dense((space,) * 4).index
    norms = 2.0 * np.exp(-(abs(every[:, 0] - every[:, 2]) + abs(every[:, 1] - every[:, 3])))
    assert pattern.index.tolist() == every[norms > 0.1].tolist()
    np.testing.assert_allclose(pattern.norms, norms[norms > 0.1])


def test_decaying_with_symmetry_is_the_unique_part() -> None:
    space = Space([2] * 6)
    symmetry = Symmetry(((0, 1), -1))
    pattern = Pattern.decaying((space, space), 2.0, 0.2, symmetry=symmetry)
    pattern.check()
    assert without_symmetry(pattern) == Pattern.decaying((space, space), 2.0, 0.2)


def test_decaying_scalar_and_nothing() -> None:
    assert Pattern.decaying((), 2.0, 0.5).nnz_blocks == 1
    assert Pattern.decaying((), 2.0, 1.0).nnz_blocks == 0
    assert Pattern.decaying((Space([2]),), 2.0, 1.0).nnz_blocks == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0.0}, "length=0.0, cut=0.0 and norm=1.0 give no decaying pattern"),
        ({"cut": -1.0}, "cut=-1.0"),
        ({"norm": float("nan")}, "norm=nan"),
        ({"pairs": [(0, 2)]}, "pairs contains (0, 2). Two different modes from 0 to 1 are expected"),
        ({"pairs": [(1, 1)]}, "pairs contains (1, 1)"),
    ],
)
def test_bad_decay(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Pattern.decaying((Space([2]), Space([2])), **arguments)


@given(st.lists(spaces(labels=True), min_size=2, max_size=4))
def test_allowed_joins_its_rules(modes: list[Space]) -> None:
    signs = ([1, -1] * 2)[: len(modes)]
    pattern = Pattern.allowed(modes, irrep=1, spin=signs, charge=signs, rules=[Rule("charge", 0, tuple(signs))])
    pattern.check()
    labels = np.zeros((3, *(space.ntiles for space in modes)), dtype=np.int64)
    for mode, (space, sign) in enumerate(zip(modes, signs, strict=True)):
        shape = [-1 if axis == mode else 1 for axis in range(len(modes))]
        assert space.irrep is not None
        assert space.spin is not None
        assert space.charge is not None
        labels[0] ^= space.irrep.reshape(shape)
        labels[1] += sign * space.spin.reshape(shape)
        labels[2] += sign * space.charge.reshape(shape)
    mask = (labels[0] == 1) & (labels[1] == 0) & (labels[2] == 0)
    assert pattern == Pattern.from_mask(modes, mask)


def test_allowed_with_symmetry_expands_to_allowed_without() -> None:
    occ = Space([2, 1, 2, 1], spin=[1, 1, -1, -1], irrep=[0, 3, 0, 3])
    vir = Space([3, 3, 2], spin=[1, -1, -1], irrep=[0, 0, 2])
    symmetry = Symmetry(((0, 1), -1), ((2, 3), -1))
    modes, signs = (occ, occ, vir, vir), (1, 1, -1, -1)
    pattern = Pattern.allowed(modes, irrep=0, spin=signs, symmetry=symmetry)
    pattern.check()
    assert without_symmetry(pattern) == Pattern.allowed(modes, irrep=0, spin=signs)
    assert 0 < pattern.nnz_blocks < expand(pattern).index.shape[0]


def test_rules_must_treat_exchanged_modes_alike() -> None:
    occ = Space([2, 1], spin=[1, -1])
    message = "The spin rule gives modes (0, 1), which are one symmetry group, the signs (1, -1). Modes that are"
    with pytest.raises(InputError, match=re.escape(message)):
        Pattern.allowed((occ, occ), spin=(1, -1), symmetry=Symmetry(((0, 1), -1)))


@given(symmetric_patterns() | patterns())
def test_from_mask_reads_back_what_a_pattern_lists(pattern: Pattern) -> None:
    mask = np.zeros(pattern.ntiles, dtype=bool)
    for block in expand(pattern).index.tolist():
        mask[tuple(block)] = True
    made = Pattern.from_mask(pattern.spaces, mask, pattern.symmetry)
    made.check()
    assert made.index.tolist() == pattern.index.tolist()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 0], [0, 1]], "The mask is an array of int64 with shape (2, 2). A boolean array"),
        (
            [True, False],
            "with shape (2,). A boolean array with one entry per block, shape (2, 2), is expected",
        ),
        (
            [[True, True], [False, True]],
            "The mask changes when modes 0 and 1 are exchanged. Symmetry(((0, 1), -1))",
        ),
    ],
)
def test_bad_mask(mask: Any, message: str) -> None:
    space = Space([2, 3])
    with pytest.raises(InputError, match=re.escape(message)):
        Pattern.from_mask((space, space), mask, Symmetry(((0, 1), -1)))
