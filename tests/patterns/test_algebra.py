"""Sums, multiples, transposes and parts of patterns, against small dictionaries."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import norm_bounds, patterns, space_lists, symmetric_patterns
from tilewise.errors import InputError
from tilewise.patterns import (
    Pattern,
    Symmetry,
    above,
    equal_structure,
    expand,
    intersection,
    scaled,
    transposed,
    union,
    without_symmetry,
)
from tilewise.spaces import Space

Blocks = dict[tuple[int, ...], float]


def listed(pattern: Pattern) -> Blocks:
    """Norm of each block of the full tensor."""
    full = expand(pattern)
    return dict(zip(map(tuple, full.index.tolist()), full.norms.tolist(), strict=True))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Pattern, Pattern]:
    """Two patterns over the same spaces; both, one or none with a symmetry."""
    if draw(st.booleans()):
        modes = draw(space_lists())
        return draw(patterns(modes)), draw(patterns(modes))
    left = draw(symmetric_patterns())
    kept = np.random.default_rng(draw(st.integers(0, 99))).random(left.nnz_blocks) < 0.5
    right = Pattern(left.spaces, left.index[kept], draw(norm_bounds(int(kept.sum()))), left.symmetry)
    return left, draw(st.sampled_from((right, without_symmetry(right))))


@given(pairs())
def test_union_adds_norms(case: tuple[Pattern, Pattern]) -> None:
    left, right = map(listed, case)
    total = union(*case)
    total.check()
    assert listed(total) == {block: left.get(block, 0.0) + right.get(block, 0.0) for block in left | right}
    assert total.symmetry == (case[0].symmetry if case[0].symmetry == case[1].symmetry else None)


@given(pairs())
def test_intersection_takes_the_smaller_norm(case: tuple[Pattern, Pattern]) -> None:
    left, right = map(listed, case)
    both = intersection(*case)
    both.check()
    assert listed(both) == {block: min(left[block], right[block]) for block in left.keys() & right.keys()}


def test_intersection_of_two_bounds_and_of_an_unknown() -> None:
    space = Space([2, 3, 4])
    left = Pattern((space,), [[0], [1], [2]], [1.0, 5.0, math.inf])
    right = Pattern((space,), [[0], [1], [2]], [2.0, 3.0, 7.0])
    assert intersection(left, right).norms.tolist() == [1.0, 3.0, 7.0]
    assert intersection(left, Pattern.dense((space,))) == left


@given(symmetric_patterns() | patterns(), st.sampled_from((0.0, -2.0, 3 + 4j, 1)))
def test_scaled(pattern: Pattern, factor: complex) -> None:
    multiple = scaled(pattern, factor)
    multiple.check()
    assert equal_structure(multiple, pattern)
    assert multiple.norms.tolist() == [norm * abs(factor) if factor else 0.0 for norm in pattern.norms.tolist()]


@given(symmetric_patterns() | patterns(), st.data())
def test_transposed(pattern: Pattern, data: st.DataObject) -> None:
    axes = data.draw(st.permutations(range(pattern.ndim)))
    turned = transposed(pattern, axes)
    turned.check()
    assert turned.spaces == tuple(pattern.spaces[axis] for axis in axes)
    expected = {tuple(block[axis] for axis in axes): norm for block, norm in listed(pattern).items()}
    assert listed(turned) == expected
    assert (turned.symmetry is None) == (pattern.symmetry is None)
    assert transposed(turned, np.argsort(axes).tolist()) == pattern


def test_transposed_relabels_groups() -> None:
    occ, vir = Space([2, 3]), Space([1, 4])
    pattern = Pattern.dense((occ, occ, vir), Symmetry(((0, 1), -1)))
    assert transposed(pattern).symmetry == Symmetry(((1, 2), -1))
    assert transposed(pattern, (0, 2, 1)).symmetry == Symmetry(((0, 2), -1))
    assert transposed(pattern, (-1, 0, 1)) == transposed(pattern, (2, 0, 1))
    assert transposed(pattern, (0, 1, 2)) is pattern


@given(symmetric_patterns() | patterns(), st.sampled_from((0.0, 0.7, 1e5)))
def test_above(pattern: Pattern, threshold: float) -> None:
    part = above(pattern, threshold)
    part.check()
    assert listed(part) == {block: norm for block, norm in listed(pattern).items() if norm > threshold}


def test_equal_structure_ignores_norms_only() -> None:
    space = Space([2, 3])
    pattern = Pattern((space, space), [(0, 1)], [1.0])
    assert equal_structure(pattern, pattern)
    assert equal_structure(pattern, Pattern((space, space), [(0, 1)]))
    assert not equal_structure(pattern, Pattern((space, space), [(1, 1)], [1.0]))
    assert not equal_structure(pattern, Pattern((space, space), [(0, 1)], [1.0], Symmetry(((0, 1), 1))))
    assert not equal_structure(pattern, Pattern((space, Space([2, 4])), [(0, 1)], [1.0]))


def test_without_symmetry_of_a_plain_pattern_is_the_pattern() -> None:
    pattern = Pattern.dense((Space([2]),))
    assert without_symmetry(pattern) is pattern


def test_different_spaces_are_named() -> None:
    one, other = Space([2, 3], name="occ"), Space([3, 2], name="cut")
    message = (
        "Patterns over different spaces cannot be added: mode 1 has Space('occ', 5 in 2 tiles of 2 to 3) and "
        "Space('cut', 5 in 2 tiles of 2 to 3). Equal tile sizes and labels"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        union(Pattern.dense((one, one)), Pattern.dense((one, other)))
    with pytest.raises(InputError, match=re.escape("cannot be intersected: they have 1 and 2 modes")):
        intersection(Pattern.dense((one,)), Pattern.dense((one, one)))


@pytest.mark.parametrize("factor", [math.inf, math.nan, complex(0, math.inf)])
def test_bad_factor(factor: complex) -> None:
    with pytest.raises(InputError, match=r"The factor of a pattern is .* A finite number is expected"):
        scaled(Pattern.dense((Space([2]),)), factor)


@pytest.mark.parametrize("axes", [(0,), (0, 0), (0, 2), (0.0, 1.0), (0, 1, 2), 1])
def test_bad_axes(axes: Any) -> None:
    with pytest.raises(InputError, match=re.escape(f"axes is {axes!r} for 2 modes. Each mode from 0 to 1")):
        transposed(Pattern.dense((Space([2]), Space([2]))), axes)


@pytest.mark.parametrize("threshold", [-1.0, math.nan, math.inf])
def test_bad_threshold(threshold: float) -> None:
    with pytest.raises(InputError, match=r"The threshold on norms is .* A non-negative, finite number is expected"):
        above(Pattern.dense((Space([2]),)), threshold)
