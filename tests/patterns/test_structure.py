"""Patterns: their arrays, figures, lookup and errors."""

from __future__ import annotations

import math
import pickle
import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import patterns, symmetric_patterns
from tilewise.errors import InputError, TilewiseError
from tilewise.patterns import Pattern, Symmetry, expand, without_symmetry
from tilewise.spaces import Space

OCC = Space([2, 3], name="occ")
VIR = Space([4, 4, 1], name="vir")


@given(patterns() | symmetric_patterns(), st.randoms())
def test_blocks_are_sorted_whatever_their_order(pattern: Pattern, random: Any) -> None:
    order = list(range(pattern.nnz_blocks))
    random.shuffle(order)
    shuffled = Pattern(pattern.spaces, pattern.index[order], pattern.norms[order], pattern.symmetry)
    shuffled.check()
    assert shuffled == pattern
    assert hash(shuffled) == hash(pattern)
    assert shuffled.index.tolist() == sorted(pattern.index.tolist())


@given(patterns() | symmetric_patterns())
def test_figures_follow_their_definitions(pattern: Pattern) -> None:
    mask = np.zeros(pattern.shape, dtype=bool)
    for block in expand(pattern).index.tolist():
        pairs = zip(pattern.spaces, block, strict=True)
        mask[tuple(slice(space.offsets[tile], space.offsets[tile + 1]) for space, tile in pairs)] = True
    assert pattern.density == (mask.sum() / mask.size if mask.size else 0.0)
    shapes = [[int(s.sizes[t]) for s, t in zip(pattern.spaces, b, strict=True)] for b in pattern.index.tolist()]
    assert pattern.block_shapes.tolist() == shapes
    assert pattern.block_sizes.tolist() == [math.prod(shape) for shape in shapes]
    assert pattern.nnz_elements == sum(math.prod(shape) for shape in shapes)
    assert pattern.nbytes(np.complex128) == 16 * pattern.nnz_elements
    assert pattern.ndim == len(pattern.shape) == len(pattern.ntiles) == len(pattern.spaces)
    assert pattern.norm == pytest.approx(math.hypot(*expand(pattern).norms.tolist()))


def test_norm_of_tiny_and_huge_bounds_stays_a_bound() -> None:
    assert Pattern((OCC,), [[0], [1]], [3e-200, 4e-200]).norm == pytest.approx(5e-200)
    assert Pattern((OCC,), [[0], [1]], [3e200, 4e200]).norm == pytest.approx(5e200)
    assert Pattern((OCC,), [[0]]).norm == math.inf
    assert Pattern.empty((OCC,)).norm == 0.0


@given(patterns() | symmetric_patterns())
def test_every_block_is_found_and_others_are_not(pattern: Pattern) -> None:
    every = Pattern.dense(pattern.spaces).index
    rows = {tuple(block): row for row, block in enumerate(pattern.index.tolist())}
    expected = [rows.get(tuple(block), -1) for block in every.tolist()]
    assert pattern.find(every).tolist() == expected
    assert [pattern.row(tuple(block)) for block in every.tolist()] == expected
    assert pattern.find(every[:, None]).shape == (len(every), 1)
    assert (np.diff(pattern.keys()) > 0).all()


def test_lookup_refuses_blocks_that_do_not_exist() -> None:
    pattern = Pattern.dense((OCC, VIR))
    message = "Block (0, 3) names tile 3 in mode 1 (Space('vir', 9 in 3 tiles of 1 to 4)). Tiles"
    lookups: tuple[Any, ...] = (pattern.find, pattern.row)
    for find in lookups:
        with pytest.raises(InputError, match=re.escape(message)):
            find((0, 3))
        with pytest.raises(InputError, match=re.escape("names tile -1 in mode 0")):
            find((-1, 0))
        with pytest.raises(InputError, match=re.escape("have shape (3,). The last axis has 2 entries")):
            find((0, 0, 0))
        with pytest.raises(InputError, match="The blocks to find are of type float64"):
            find((0.0, 1.0))
        with pytest.raises(InputError, match="The blocks to find are of type"):
            find("01")
    assert pattern.row(tuple(np.array([1, 2]))) == pattern.find(np.array([1, 2])) == 5


def test_keys_that_do_not_fit_are_an_error_but_the_pattern_is_not() -> None:
    space = Space(np.ones(3000, dtype=np.int64))
    pattern = Pattern((space,) * 6, [[2999] * 6, [0] * 6, [0, 0, 0, 0, 0, 1]], [3.0, 1.0, 2.0])
    pattern.check()
    assert pattern.norms.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(InputError, match=re.escape("has 7.29e+20 blocks. Block keys are 64-bit")):
        pattern.keys()


@pytest.mark.parametrize("index", [[()], np.zeros((1, 0), dtype=int), []])
def test_scalars(index: Any) -> None:
    scalar = Pattern((), index)
    scalar.check()
    assert scalar.index.shape == (len(index), 0)
    assert (scalar.shape, scalar.ndim, scalar.nnz_elements, scalar.density) == (
        (),
        0,
        len(index),
        float(len(index)),
    )
    assert scalar.row(()) == (0 if len(index) else -1)
    assert scalar.find(()).tolist() == scalar.row(())
    with pytest.raises(InputError, match=r"A scalar has 2 blocks\. It has one or none"):
        Pattern((), [(), ()])


def test_empty_spaces() -> None:
    pattern = Pattern.dense((OCC, Space([])))
    pattern.check()
    assert (pattern.nnz_blocks, pattern.density, pattern.shape) == (0, 0.0, (5, 0))
    with pytest.raises(InputError, match="Tiles do not exist in this space"):
        Pattern((OCC, Space([])), [(0, 0)])


def test_arrays_are_read_only_copies() -> None:
    index, norms = np.array([[0, 1], [1, 2]]), np.array([1.0, 2.0])
    pattern = Pattern((OCC, VIR), index, norms)
    index[0] = 0
    norms[0] = 7
    assert pattern.index.tolist() == [[0, 1], [1, 2]]
    assert pattern.norms.tolist() == [1.0, 2.0]
    for array in (pattern.index, pattern.norms, pattern.keys(), pattern.block_sizes, pattern.block_shapes):
        assert not array.flags.writeable
    with pytest.raises(AttributeError):
        pattern.symmetry = None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("index", "norms", "message"),
    [
        ([(0, 1), (0, 1)], None, "Block (0, 1) is listed more than once. Each non-zero block appears once"),
        ([(0, 3)], None, "Block (0, 3) names tile 3 in mode 1 (Space('vir'"),
        ([(-1, 0)], None, "Block (-1, 0) names tile -1 in mode 0 (Space('occ'"),
        ([(0, 1, 2)], None, "have shape (1, 3). Shape (blocks, 2) is expected for 2 modes"),
        ([0, 1], None, "have shape (2,). Shape (blocks, 2) is expected"),
        ([(0.0, 1.0)], None, "The block indices of a pattern are of type float64: [0.0, 1.0]"),
        ([(True, False)], None, "are of type bool"),
        (
            [(0, 1)],
            [-1.0],
            "The norm of block 0 is -1.0. A bound is at least 0, and infinite where it is unknown",
        ),
        ([(0, 1)], [float("nan")], "The norm of block 0 is nan"),
        ([(0, 1)], [1.0, 2.0], "The norms have shape (2,) for 1 blocks"),
        ([(0, 1)], ["x"], "The norms of a pattern cannot be read as numbers"),
    ],
)
def test_bad_blocks(index: Any, norms: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Pattern((OCC, VIR), index, norms)


def test_bad_spaces() -> None:
    with pytest.raises(InputError, match=re.escape("spaces is the single Space('occ', 5 in 2 tiles of 2 to 3)")):
        Pattern.dense(OCC)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=re.escape("The space of mode 1 is 5. A Space is expected")):
        Pattern.dense((OCC, 5))  # type: ignore[arg-type]


def test_blocks_that_are_not_unique_name_the_one_that_is() -> None:
    message = "Block (1, 0) is not a unique block of Symmetry(((0, 1), -1)). Tile numbers must not decrease"
    with pytest.raises(InputError, match=re.escape(message) + r".* List \(0, 1\) in its place"):
        Pattern((OCC, OCC), [(1, 0)], symmetry=Symmetry(((0, 1), -1)))


@pytest.mark.parametrize(
    ("index", "norms", "message"),
    [
        (np.array([[1], [0]]), np.ones(2), "not sorted"),
        (np.array([[0], [0]]), np.ones(2), "listed more than once"),
        (np.array([[0], [5]]), np.ones(2), "names tile 5"),
        (np.array([[0], [1]], dtype=np.int32), np.ones(2), "holds an array of int32"),
        (np.array([[0], [1]]), np.ones(2, dtype=np.float32), "holds an array of float32"),
        (np.array([[0], [1]]), -np.ones(2), "The norm of block 0 is -1.0"),
        (np.array([[0], [1]]), np.ones(4)[::2], "C-contiguous"),
    ],
)
def test_check_finds_what_trusted_let_through(index: Any, norms: Any, message: str) -> None:
    with pytest.raises(TilewiseError, match=message):
        Pattern.trusted((OCC,), index, norms).check()


def test_trusted_keeps_the_arrays_themselves() -> None:
    index, norms = np.array([[0], [1]]), np.ones(2)
    pattern = Pattern.trusted((OCC,), index, norms)
    assert pattern.index is index
    assert pattern.norms is norms
    assert Pattern.trusted((OCC,), index).norms.tolist() == [math.inf, math.inf]


def test_equality_sees_norms_spaces_and_symmetry() -> None:
    pattern = Pattern((OCC, OCC), [(0, 1)], [1.0])
    assert pattern == Pattern((OCC, OCC), [(0, 1)], [1.0])
    assert pattern != Pattern((OCC, OCC), [(0, 1)], [2.0])
    assert pattern != Pattern((OCC, VIR), [(0, 1)], [1.0])
    assert pattern != Pattern((OCC, OCC), [(0, 1)], [1.0], Symmetry(((0, 1), -1)))
    assert pattern != "pattern"


@given(patterns() | symmetric_patterns())
def test_pickle_keeps_a_pattern(pattern: Pattern) -> None:
    other = pickle.loads(pickle.dumps(pattern))  # noqa: S301
    other.check()
    assert other == pattern


def test_repr() -> None:
    assert repr(Pattern((OCC, VIR), [(0, 0)])) == "Pattern(5 x 9, 1 block, density 0.178)"
    assert repr(Pattern((), [()])) == "Pattern(scalar, 1 block, density 1)"


def test_a_million_blocks_take_less_than_a_second() -> None:
    space = Space.uniform(2400, 24)
    index = Pattern.dense((space,) * 3).index[::-1]
    start = time.process_time()
    pattern = Pattern((space,) * 3, index)
    seconds = time.process_time() - start
    assert pattern.nnz_blocks == 10**6
    assert seconds < 1


def test_the_full_pattern_of_a_symmetric_one_has_its_density_and_norm() -> None:
    pattern = Pattern.random((OCC,) * 4, 0.6, symmetry=Symmetry(((0, 1), -1), ((2, 3), -1)), norms=2.0)
    full = without_symmetry(pattern)
    full.check()
    assert full.density == pattern.density
    assert full.norm == pytest.approx(pattern.norm)
