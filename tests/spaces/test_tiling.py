"""Spaces: sizes, labels, identity, errors."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import spaces
from tilewise.errors import InputError, TilewiseError
from tilewise.spaces import Space


def test_sizes_and_offsets() -> None:
    space = Space([4, 6, 5], name="occ")
    assert space.sizes.tolist() == [4, 6, 5]
    assert space.offsets.tolist() == [0, 4, 10, 15]
    assert (space.size, space.ntiles, space.name) == (15, 3, "occ")
    assert space.sizes.dtype == space.offsets.dtype == np.int64
    assert space.irrep is space.spin is space.charge is None
    assert space.order.tolist() == list(range(15))


@pytest.mark.parametrize("sizes", [[], (), np.array([], dtype=np.int64), np.array([]), range(0)])
def test_a_space_may_have_no_tiles(sizes: Any) -> None:
    space = Space(sizes)
    assert (space.size, space.ntiles, space.offsets.tolist()) == (0, 0, [0])
    assert space == Space([])
    assert repr(space) == "Space(0 in 0 tiles)"


@pytest.mark.parametrize(
    "sizes",
    [
        np.array([2, 3], dtype=np.int32),
        np.array([2, 3], dtype=np.uint8),
        (np.int64(2), np.int16(3)),
        range(2, 4),
    ],
)
def test_any_integer_type_gives_the_same_space(sizes: Any) -> None:
    assert Space(sizes) == Space([2, 3])
    assert Space(sizes).sizes.dtype == np.int64


def test_arrays_are_read_only_copies() -> None:
    source = np.array([2, 3])
    space = Space(source, spin=source)
    source[0] = 9
    assert space.sizes.tolist() == [2, 3]
    assert space.spin is not None
    assert space.spin.tolist() == [2, 3]
    for array in (space.sizes, space.offsets, space.spin):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        space.name = "other"  # type: ignore[misc]


@given(spaces(labels=True), spaces(labels=True))
def test_equal_means_equal_sizes_and_labels(left: Space, right: Space) -> None:
    def content(space: Space) -> list[list[int]]:
        return [array.tolist() for array in (space.sizes, space.irrep, space.spin, space.charge) if array is not None]

    assert (left == right) == (content(left) == content(right))
    twin = Space(left.sizes, name="twin", irrep=left.irrep, spin=left.spin, charge=left.charge)
    assert twin == left
    assert hash(twin) == hash(left)


def test_name_is_no_part_of_identity_but_labels_are() -> None:
    assert Space([2, 3], name="a") == Space([2, 3], name="b")
    assert len({Space([2, 3], name="a"), Space([2, 3], name="b")}) == 1
    assert Space([2, 3]) != Space([3, 2])
    assert Space([1, 1], spin=[1, 1]) != Space([1, 1], charge=[1, 1])
    assert Space([1, 1], spin=[0, 0]) != Space([1, 1])
    assert Space([1, 1, 1, 1]) != Space([1, 1], spin=[1, 1])
    assert Space([2, 3]) != "Space"


@given(spaces(labels=True))
def test_pickle_and_copy_keep_a_space(space: Space) -> None:
    for other in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):  # noqa: S301
        assert other == space
        assert not other.sizes.flags.writeable
        assert other.offsets.tolist() == space.offsets.tolist()


def test_pickle_keeps_name_and_order() -> None:
    space = Space.clustered(np.array([[3.0, 0, 0], [0, 0, 0]]), 2, name="ao")
    other = pickle.loads(pickle.dumps(space))  # noqa: S301
    assert (other.name, other.order.tolist()) == ("ao", [1, 0])


def test_repr() -> None:
    assert repr(Space([4, 6, 5], name="occ")) == "Space('occ', 15 in 3 tiles of 4 to 6)"
    assert repr(Space([4])) == "Space(4 in 1 tile of 4)"
    assert repr(Space([4, 4], irrep=[0, 1], spin=[1, -1])) == "Space(8 in 2 tiles of 4, irrep, spin)"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([4, 0], "Tile 1 of a space has size 0. A tile has at least one element. Leave"),
        ([-2], "Tile 0 of a space has size -2."),
        (
            [2.0, 3.0],
            "The tile sizes of a space are of type float64: [2.0, 3.0]. Integers are expected. Pass one",
        ),
        ([2, float("nan")], "[2.0, nan]"),
        ([True, True], "are of type bool"),
        ([3, True], "are of type bool"),
        (np.array([True]), "are of type bool"),
        (["2"], "Integers are expected"),
        ([2**70], "Integers are expected"),
        ([[1], [1, 2]], "cannot be read as integers"),
        ([[1, 2]], "have 2 dimensions. One is expected"),
        (
            5,
            "have 0 dimensions. One is expected. Pass one positive integer per tile, such as Space([4,",
        ),
        (None, "Integers are expected"),
        (np.array([2**63], dtype=np.uint64), "Integers below 2**63 are expected"),
        ([2**62, 2**62], "sum to 9.22e+18 elements. A space has fewer than 2**62"),
    ],
)
def test_bad_sizes(sizes: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Space(sizes)


def test_errors_name_the_space_and_are_ours() -> None:
    with pytest.raises(TilewiseError, match="Tile 0 of the space 'occ' has size 0"):
        Space([0], name="occ")
    with pytest.raises(InputError, match=re.escape("The name of a space is 6. It must be a string")):
        Space(4, 6)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            {"spin": [1]},
            "The labels spin of the space 'occ' have shape (1,). There are 2 tiles, so shape (2,)",
        ),
        ({"charge": [[1, 2]]}, "have shape (1, 2)"),
        ({"irrep": [0, -1]}, "The labels irrep of the space 'occ' contain -1. Irreps are numbered from 0"),
        ({"spin": [0.5, -0.5]}, "The labels spin of the space 'occ' are of type float64: [0.5, -0.5]"),
        ({"spin": 1}, "have shape ()"),
    ],
)
def test_bad_labels(labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Space([2, 3], name="occ", **labels)


def test_label_by_kind() -> None:
    space = Space([2, 3], spin=[1, -1])
    assert space.label("spin") is space.spin
    assert space.label("irrep") is None
    with pytest.raises(
        InputError, match=re.escape("Label 'parity' is unknown. Labels are ('irrep', 'spin', 'charge')")
    ):
        space.label("parity")


@given(st.integers(0, 500), st.integers(1, 60))
def test_uniform_tiles_are_few_and_balanced(size: int, tile: int) -> None:
    space = Space.uniform(size, tile, name="vir")
    assert space.size == size
    assert space.name == "vir"
    assert space.ntiles == -(-size // tile)
    if size:
        assert space.sizes.max() <= tile
        assert space.sizes.max() - space.sizes.min() <= 1
        assert (np.diff(space.sizes) <= 0).all()


def test_uniform_defaults_to_tiles_of_24() -> None:
    assert Space.uniform(120).sizes.tolist() == [24] * 5


@pytest.mark.parametrize(
    ("size", "tile", "message"),
    [
        (-1, 4, "A uniform space of -1 elements in tiles of 4 cannot be made"),
        (10, 0, "A uniform space of 10 elements in tiles of 0 cannot be made"),
        (10.0, 4, "The size of a uniform space is 10.0. It must be an integer"),
        (10, True, "The tile size of a uniform space is True"),
        (None, 4, "The size of a uniform space is None"),
    ],
)
def test_bad_uniform(size: Any, tile: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Space.uniform(size, tile)
