"""Symmetries and the expansion of unique blocks, against dense arrays."""

from __future__ import annotations

import re
from itertools import permutations, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import patterns, symmetric_patterns
from tilewise.errors import InputError
from tilewise.patterns import Pattern, Symmetry, expand
from tilewise.spaces import Space

Array = npt.NDArray[np.float64]


def permuted_sum(array: Array, symmetry: Symmetry) -> Array:
    """An array with the symmetry: the signed sum over all permutations of modes, made group by group."""
    for modes, sign in symmetry.groups:
        total = np.zeros_like(array)
        for order in permutations(range(len(modes))):
            axes = list(range(array.ndim))
            for place, source in zip(modes, order, strict=True):
                axes[place] = modes[source]
            parity = round(np.linalg.det(np.eye(len(modes))[list(order)]))
            total += (parity if sign < 0 else 1) * np.transpose(array, axes)
        array = total
    return array


def cut_block(array: Array, pattern: Pattern, block: tuple[int, ...]) -> Array:
    """One block of a dense array."""
    ranges = [
        slice(space.offsets[tile], space.offsets[tile + 1]) for space, tile in zip(pattern.spaces, block, strict=True)
    ]
    return array[tuple(ranges)]


@given(symmetric_patterns())
def test_expanded_blocks_rebuild_a_dense_symmetric_array(pattern: Pattern) -> None:
    assert pattern.symmetry is not None
    dense = permuted_sum(np.random.default_rng(0).normal(size=pattern.shape), pattern.symmetry)
    full = expand(pattern)
    unique = [tuple(row) for row in pattern.index.tolist()]
    for row, block in enumerate(full.index.tolist()):
        stored = cut_block(dense, pattern, unique[full.source[row]])
        made = full.sign[row] * np.transpose(stored, full.perms[full.perm[row]])
        np.testing.assert_allclose(made, cut_block(dense, pattern, tuple(block)), rtol=0, atol=1e-12)


@given(symmetric_patterns())
def test_expansion_lists_each_permuted_block_once(pattern: Pattern) -> None:
    assert pattern.symmetry is not None
    expected = set()
    for block in pattern.index.tolist():
        choices = [list(permutations(modes)) for modes, _ in pattern.symmetry.groups]
        for orders in product(*choices):
            image = list(block)
            for (modes, _), order in zip(pattern.symmetry.groups, orders, strict=True):
                for place, source in zip(modes, order, strict=True):
                    image[place] = block[source]
            expected.add(tuple(image))
    full = expand(pattern)
    assert [tuple(row) for row in full.index.tolist()] == sorted(expected)
    assert full.norms.tolist() == pattern.norms[full.source].tolist()
    assert full.index.flags.c_contiguous
    assert full.index.dtype == full.source.dtype == full.perm.dtype == full.perms.dtype == np.int64
    assert full.perms[0].tolist() == list(range(pattern.ndim))


@given(symmetric_patterns())
def test_unique_blocks_expand_to_themselves_unpermuted(pattern: Pattern) -> None:
    full = expand(pattern)
    kept = full.perm == 0
    assert full.index[kept].tolist() == pattern.index.tolist()
    assert full.source[kept].tolist() == list(range(pattern.nnz_blocks))
    assert (full.sign[kept] == 1).all()


@given(symmetric_patterns())
def test_locate_agrees_with_the_expansion(pattern: Pattern) -> None:
    assert pattern.symmetry is not None
    full = expand(pattern)
    for row, block in enumerate(full.index.tolist()):
        unique, axes, sign = pattern.symmetry.locate(block)
        assert list(unique) == pattern.index[full.source[row]].tolist()
        assert list(axes) == full.perms[full.perm[row]].tolist()
        assert sign == full.sign[row]


@given(symmetric_patterns())
def test_multiplicity_counts_the_blocks_of_the_expansion(pattern: Pattern) -> None:
    counts = np.bincount(expand(pattern).source, minlength=pattern.nnz_blocks)
    assert pattern.multiplicity.tolist() == counts.tolist()


@given(patterns())
def test_without_symmetry_the_expansion_is_the_pattern(pattern: Pattern) -> None:
    full = expand(pattern)
    assert full.index is pattern.index
    assert full.norms is pattern.norms
    assert full.source.tolist() == list(range(pattern.nnz_blocks))
    assert full.perms.tolist() == [list(range(pattern.ndim))]
    assert (full.perm == 0).all()
    assert (full.sign == 1).all()
    for array in (full.index, full.source, full.perm, full.perms, full.sign, full.norms):
        assert not array.flags.writeable


@given(st.integers(2, 4), st.sampled_from((-1, 1)))
def test_operations_are_the_signed_permutations(ndim: int, sign: int) -> None:
    symmetry = Symmetry((range(ndim), sign))
    axes, signs = symmetry.operations(ndim)
    assert sorted(map(tuple, axes.tolist())) == sorted(permutations(range(ndim)))
    parities = [round(np.linalg.det(np.eye(ndim)[row])) for row in axes]
    assert signs.tolist() == (parities if sign < 0 else [1.0] * len(parities))


def test_groups_are_ordered_and_compared_by_value() -> None:
    symmetry = Symmetry(((3, 2), -1), ([1, 0], 1))
    assert symmetry.groups == (((0, 1), 1), ((2, 3), -1))
    assert symmetry == Symmetry(((0, 1), 1), ((2, 3), -1))
    assert hash(symmetry) == hash(Symmetry(((0, 1), 1), ((2, 3), -1)))
    assert repr(symmetry) == "Symmetry(((0, 1), 1), ((2, 3), -1))"
    assert symmetry != Symmetry(((0, 1), -1), ((2, 3), -1))


def test_a_symmetry_without_groups_is_none_in_a_pattern() -> None:
    space = Space([2])
    assert Pattern.dense((space, space), Symmetry()).symmetry is None


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([((0, 1), -1), ((1, 2), 1)], "Mode 1 appears more than once in the symmetry groups"),
        ([((0, 0), -1)], "Mode 0 appears more than once"),
        ([((0,), -1)], "has the modes (0,). Two or more modes, numbered from 0, are expected"),
        ([((-1, 0), -1)], "has the modes (-1, 0)"),
        (
            [((0, 1), 2)],
            "The sign of the symmetry group ((0, 1), 2) is 2. It is +1 or -1. Write each group as",
        ),
        ([((0, 1), True)], "is True. It is +1 or -1"),
        ([((0, 1.5), -1)], "A mode of a symmetry group is 1.5. It must be an integer"),
        ([(0, 1)], "(0, 1) is no symmetry group. (modes, sign) is expected"),
        ([5], "5 is no symmetry group"),
    ],
)
def test_bad_groups(groups: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Symmetry(*groups)


def test_groups_must_fit_the_spaces() -> None:
    occ, vir = Space([2, 3], name="occ"), Space([3, 2], name="vir")
    message = "Modes 0 (Space('occ', 5 in 2 tiles of 2 to 3)) and 1 (Space('vir', 5 in 2 tiles of 2 to 3)) are"
    with pytest.raises(InputError, match=re.escape(message)):
        Pattern.dense((occ, vir), Symmetry(((0, 1), -1)))
    with pytest.raises(InputError, match=re.escape("names mode 2 of a tensor with 2 modes. Modes run from 0 to 1")):
        Pattern.dense((occ, occ), Symmetry(((0, 2), -1)))
    with pytest.raises(InputError, match=r"symmetry is -1\. A Symmetry or None is expected"):
        Pattern.dense((occ, occ), -1)  # type: ignore[arg-type]
