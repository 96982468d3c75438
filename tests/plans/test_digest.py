"""Tests of the numbers that tell things apart."""

from __future__ import annotations

import numpy as np

import tilewise as tw
from tilewise.plans.digest import digest, pattern_digest

ONE, OTHER = tw.Space([2, 3]), tw.Space([3, 2])


def test_words_and_arrays_count() -> None:
    numbers = np.arange(6)
    marks = [digest("a"), digest("b"), *(digest("a", [array]) for array in (numbers, numbers[::-1], numbers[::2]))]
    assert len(set(marks)) == len(marks)
    assert digest("a", [numbers]) == digest("a", [numbers.copy()])
    assert all(0 <= mark < 1 << 32 for mark in marks)


def test_patterns_differ_in_tiles_blocks_and_symmetry_but_not_in_norms() -> None:
    full = tw.Pattern.dense((ONE, ONE))
    others = [
        tw.Pattern.dense((OTHER, ONE)),
        tw.Pattern.dense((ONE, OTHER)),
        tw.Pattern((ONE, ONE), [[0, 0], [1, 1]]),
        tw.Pattern.dense((ONE, ONE), tw.Symmetry(((0, 1), 1))),
        tw.Pattern.dense((ONE, ONE), tw.Symmetry(((0, 1), -1))),
    ]
    whole, halves = tw.Space([3]), tw.Space([3, 3])
    others += [tw.Pattern((halves, whole), [[0, 0]]), tw.Pattern((whole, halves), [[0, 0]])]
    marks = [pattern_digest(pattern) for pattern in (full, *others)]
    assert len(set(marks)) == len(marks)
    assert pattern_digest(tw.Pattern((ONE, ONE), full.index, np.full(4, 2.0))) == marks[0]
