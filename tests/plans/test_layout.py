"""Layouts: every block has one owner; a change of layout moves what has to move, once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewise as tw
from tilewise.plans.layout import EVERYBODY, LAYOUTS, Layout, make_layout, plan_exchange


@st.composite
def patterns(draw: st.DrawFn) -> tw.Pattern:
    sizes = draw(st.lists(st.lists(st.integers(1, 5), max_size=5), max_size=4))
    return tw.Pattern.random(
        tuple(map(tw.Space, sizes)), density=draw(st.floats(0.05, 1.0)), seed=draw(st.integers(0, 99))
    )


def blocks_of(layout: Layout, rank: int) -> np.ndarray:
    """Which blocks a rank has."""
    return np.asarray((layout.owner == rank) | (layout.owner == EVERYBODY))


@given(patterns(), st.sampled_from(LAYOUTS), st.integers(1, 13))
def test_every_block_has_an_owner(pattern: tw.Pattern, name: str, ranks: int) -> None:
    layout = make_layout(name, pattern, ranks)
    assert len(layout.owner) == pattern.nnz_blocks
    having = np.stack([blocks_of(layout, rank) for rank in range(ranks)]).sum(axis=0)
    assert (having == (ranks if name == "replicated" else 1)).all()


@given(patterns(), st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.integers(1, 7))
def test_an_exchange_brings_what_is_missing_and_nothing_else(
    pattern: tw.Pattern, old: str, new: str, ranks: int
) -> None:
    before, after = (make_layout(name, pattern, ranks) for name in (old, new))
    size = pattern.block_sizes * 8
    exchange = plan_exchange(before, after, size)
    has = [set(np.flatnonzero(blocks_of(before, rank)).tolist()) for rank in range(ranks)]
    pairs = set()
    for number, (source, target) in enumerate(zip(exchange.source.tolist(), exchange.target.tolist(), strict=True)):
        blocks = exchange.block[exchange.ptr[number] : exchange.ptr[number + 1]].tolist()
        assert set(blocks) <= set(np.flatnonzero(blocks_of(before, source)).tolist())
        assert not set(blocks) & has[target]
        assert exchange.message_bytes[number] == size[blocks].sum()
        assert source != target
        assert (source, target) not in pairs
        pairs.add((source, target))
        has[target] |= set(blocks)
    for rank in range(ranks):
        assert set(np.flatnonzero(blocks_of(after, rank)).tolist()) <= has[rank]


def test_columns_are_dealt_by_their_bytes() -> None:
    pattern = tw.Pattern.dense((tw.Space([4]), tw.Space([1, 5, 2, 4, 3])))
    # Bytes of the columns, largest first: 5, 4, 3, 2, 1; dealt 0, 1, 1, 0, 0.
    assert make_layout("column", pattern, 2).owner.tolist() == [0, 0, 0, 1, 1]


def test_a_grid_of_ranks_counts_tiles_round() -> None:
    pattern = tw.Pattern.dense((tw.Space([1] * 3), tw.Space([1] * 4)))
    assert make_layout("cyclic2d", pattern, 6).owner.reshape(3, 4).tolist() == [
        [0, 1, 2, 0],
        [3, 4, 5, 3],
        [0, 1, 2, 0],
    ]


def test_what_makes_no_sense_is_refused() -> None:
    pattern = tw.Pattern.dense((tw.Space([1]),))
    with pytest.raises(tw.InputError, match="is unknown\\. Expected one of cyclic"):
        make_layout("random", pattern, 2)
    with pytest.raises(tw.InputError, match="cannot be spread over 0 ranks"):
        make_layout("cyclic", pattern, 0)
    with pytest.raises(tw.InputError, match="A layout of 1 blocks on 2 ranks cannot become one of 0 blocks on 2"):
        plan_exchange(make_layout("cyclic", pattern, 2), Layout(2, np.zeros(0, np.int64)), np.ones(1, np.int64))
    assert EVERYBODY not in range(10)
