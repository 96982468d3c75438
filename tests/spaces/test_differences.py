"""What errors say of spaces that differ."""

from __future__ import annotations

import pytest

import tilewise as tw
from tilewise.spaces.differences import difference_text, modes_text


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (tw.Space([2, 4]), "5 elements against 6"),
        (tw.Space([3, 2]), "2 tiles [2, 3] against 2 tiles [3, 2]"),
        (tw.Space([2, 3], irrep=[0, 1]), "no labels against irrep [0, 1]"),
        (tw.Space([1] * 5), "2 tiles [2, 3] against 5 tiles [1, 1, 1, 1, 1]"),
    ],
)
def test_the_difference_is_named(other: tw.Space, text: str) -> None:
    own = tw.Space([2, 3])
    assert difference_text(own, other) == text
    assert modes_text((own, own), (own, other)) == f"mode 1 has {text}"


def test_modes_may_differ_in_number() -> None:
    own = tw.Space([2, 3])
    assert modes_text((own,), (own, own)) == "1 modes against 2"
