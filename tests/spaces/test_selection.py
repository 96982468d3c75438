"""Selection rules against the enumeration of all blocks."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import spaces
from tilewise.errors import InputError
from tilewise.spaces import Rule, Space, allowed_blocks


def obeys(rule: Rule, modes: tuple[Space, ...], block: tuple[int, ...]) -> bool:
    """The rule by its definition, for one block."""
    signs = rule.signs or (1,) * len(modes)
    total = 0
    for space, sign, tile in zip(modes, signs, block, strict=True):
        label = space.label(rule.label)
        assert label is not None
        total = (total ^ int(label[tile]) * abs(sign)) if rule.label == "irrep" else total + sign * int(label[tile])
    return total == rule.target


@st.composite
def selections(draw: st.DrawFn) -> tuple[tuple[Space, ...], list[Rule]]:
    modes = tuple(draw(st.lists(spaces(labels=True), max_size=4)))
    signs = st.none() | st.tuples(*[st.sampled_from((-1, 0, 1))] * len(modes))
    rules = []
    for label in draw(st.sets(st.sampled_from(("irrep", "spin", "charge")))):
        target = draw(st.integers(0, 3) if label == "irrep" else st.integers(-3, 3))
        rules.append(Rule(label, target, draw(signs)))
    return modes, rules


@given(selections())
def test_allowed_blocks_are_those_that_obey_every_rule(case: tuple[tuple[Space, ...], list[Rule]]) -> None:
    modes, rules = case
    every = product(*(range(space.ntiles) for space in modes))
    expected = [list(block) for block in every if all(obeys(rule, modes, block) for rule in rules)]
    found = allowed_blocks(modes, rules)
    assert found.tolist() == expected
    assert found.shape == (len(expected), len(modes))
    assert found.dtype == np.int64


@given(spaces(labels=True, min_tiles=1), spaces(labels=True), st.integers(-2, 2))
def test_ascending_groups_keep_sorted_blocks_only(pair: Space, single: Space, target: int) -> None:
    modes = (pair, single, pair, pair)
    rule = Rule("charge", target, (1, -1, 1, 1))
    expected = [row for row in allowed_blocks(modes, [rule]).tolist() if row[0] <= row[2] <= row[3]]
    assert allowed_blocks(modes, [rule], ascending=[(0, 2, 3)]).tolist() == expected


def test_zeros_are_not_enumerated() -> None:
    labels = np.arange(2000) % 8
    space = Space(np.full(2000, 4), irrep=labels, spin=np.arange(2000))
    found = allowed_blocks((space,) * 4, [Rule("spin", 3, None)])  # 1.6e13 blocks in all
    assert len(found) == 20
    assert (found.sum(axis=1) == 3).all()


def test_a_mode_left_out_needs_no_label() -> None:
    auxiliary, orbital = Space([5, 5]), Space([2, 2], spin=[1, -1])
    found = allowed_blocks((auxiliary, orbital, orbital), [Rule("spin", signs=(0, 1, -1))])
    assert found.tolist() == [[0, 0, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]]


def test_scalars_and_empty_spaces() -> None:
    assert allowed_blocks(()).shape == (1, 0)
    assert allowed_blocks((), [Rule("irrep", 1)]).shape == (0, 0)
    assert allowed_blocks((Space([2]), Space([]))).shape == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("parity",), "Label 'parity' is unknown. Labels are ('irrep', 'spin', 'charge'). Use one of these."),
        (("spin", 0.5), "The target of the spin rule is 0.5. It must be an integer"),
        (("irrep", -1), "The target of the irrep rule is -1. Irreps are numbered from 0"),
        (("spin", 0, (1, 2)), "The spin rule has the signs (1, 2). Each is +1, -1 or 0"),
        (("spin", 0, (0.5, 1)), "The signs of the spin rule are of type float64"),
    ],
)
def test_bad_rules(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Rule(*arguments)


def test_rules_that_do_not_fit_the_spaces() -> None:
    space = Space([2, 3], name="occ", spin=[1, -1])
    with pytest.raises(InputError, match=re.escape("The spin rule has 3 signs (1, 1, -1) for 2 modes. One sign per")):
        allowed_blocks((space, space), [Rule("spin", signs=(1, 1, -1))])
    with pytest.raises(InputError, match=re.escape("Mode 1 (Space('occ', 5 in 2 tiles of 2 to 3, spin)) has no irrep")):
        allowed_blocks((Space([1], irrep=[0]), space), [Rule("irrep")])
