"""The pieces of memory that the ranks of a node share: never two in one place, and all of it comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewise.engines.mpi.heap import Pieces

SIZE = 1000


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=60))
def test_pieces_do_not_overlap_and_come_back(asked: list[tuple[bool, int]]) -> None:
    pieces = Pieces(100, 100 + SIZE)
    held: dict[int, tuple[int, int]] = {}
    for give, size in asked:
        if give and held:
            slot = sorted(held)[size % len(held)]
            pieces.give(slot)
            del held[slot]
            continue
        slot, begin = pieces.take(size)
        if slot < 0:
            assert begin == sum(end - first for first, end in held.values())
            assert all(end - first < size for first, end in pieces.free)
            continue
        assert 100 <= begin <= 100 + SIZE - size
        assert all(begin + size <= first or end <= begin for first, end in held.values())
        held[slot] = begin, begin + size
    for slot in list(held):
        pieces.give(slot)
    assert pieces.free == [(100, 100 + SIZE)]


def test_what_was_used_before_is_used_again_first() -> None:
    pieces = Pieces(0, SIZE)
    slot, begin = pieces.take(300)
    pieces.take(300)
    pieces.give(slot)
    assert pieces.warm == 300
    assert pieces.take(200)[1] == begin
    assert pieces.warm == 100
