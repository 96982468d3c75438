"""Tensors over pairs and back: the matrices of a change of basis, round trips, products at a quarter of the work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewise as tw
from references import assert_sound, dense, stored_bytes
from tilewise.engines.base import current_engine
from tilewise.engines.folding import Folding, fold, folded_block, folded_pattern, for_each_block, unfold
from tilewise.patterns import Pattern, Symmetry
from tilewise.spaces import Pairs, Space

Array = npt.NDArray[Any]
Both = tuple[Folding, Folding]

TURNED = Symmetry(((0, 1), 1))
"""A matrix that is its own transpose."""


def pair_basis(pairs: Pairs) -> Array:
    """Each normalised pair as a matrix over two elements, by its definition."""
    size, begin = pairs.base.size, pairs.base.offsets.tolist()
    vectors = []
    for first, second in pairs.tiles.tolist():
        for p, q in product(range(begin[first], begin[first + 1]), range(begin[second], begin[second + 1])):
            if p > q or (p == q and pairs.sign > 0):
                vector = np.zeros((size, size))
                vector[p, q] += 1
                vector[q, p] += pairs.sign
                vectors.append(vector / np.linalg.norm(vector))
    return np.array(vectors).reshape(pairs.space.size, size, size)


def folded_dense(x: Array, folding: Folding) -> Array:
    """The matrix of an array over pairs."""
    return np.asarray(np.einsum("xpr,pqrs,yqs->xy", pair_basis(folding.rows), x, pair_basis(folding.cols)))


def both_foldings(rows: Space, cols: Space) -> Both:
    return Folding.of(rows, cols, 1), Folding.of(rows, cols, -1)


def exchanged_tensor(rows: Space, cols: Space, seed: int, fill: float = 1.0) -> tw.BlockTensor:
    """Random x(p, q, r, s) = x(r, s, p, q) with some of the blocks that irreps allow."""
    random = np.random.default_rng(seed)
    irrep = None if rows.irrep is None else 0
    every = Pattern.allowed((rows, cols, rows, cols), irrep=irrep)
    kept = {tuple(block) for block in every.index[random.random(every.nnz_blocks) < fill].tolist()}
    blocks: dict[tuple[int, ...], Array] = {}
    for p, q, r, s in sorted(kept):
        block = random.normal(size=[int(sp.sizes[t]) for sp, t in zip(every.spaces, (p, q, r, s), strict=True)])
        if (p, q) == (r, s):
            block += block.transpose(2, 3, 0, 1)
        blocks[p, q, r, s] = block
        blocks[r, s, p, q] = np.ascontiguousarray(block.transpose(2, 3, 0, 1))
    return tw.from_blocks(blocks, every.spaces)


@st.composite
def labelled(draw: st.DrawFn, with_irreps: bool, max_tiles: int = 3) -> Space:
    """A space of a few uneven tiles, sometimes none."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=max_tiles))
    if not with_irreps:
        return Space(sizes)
    return Space(sizes, irrep=draw(st.lists(st.integers(0, 3), min_size=len(sizes), max_size=len(sizes))))


@st.composite
def exchanged_tensors(draw: st.DrawFn) -> tw.BlockTensor:
    with_irreps = draw(st.booleans())
    rows, cols = draw(labelled(with_irreps)), draw(labelled(with_irreps))
    fill = draw(st.sampled_from((1.0, 0.5, 0.2, 0.0)))
    return exchanged_tensor(rows, cols, draw(st.integers(0, 2**16)), fill)


@given(exchanged_tensors(), st.sampled_from((1, -1)))
def test_folding_is_a_change_of_basis(x: tw.BlockTensor, sign: int) -> None:
    folding = Folding.of(x.spaces[0], x.spaces[1], sign)
    before = stored_bytes(x)
    found = fold(x, folding)
    assert_sound(found)
    assert found.spaces == (folding.rows.space, folding.cols.space)
    np.testing.assert_allclose(dense(found), folded_dense(dense(x), folding), rtol=0, atol=1e-12)
    assert stored_bytes(x) == before


@given(exchanged_tensors())
def test_a_turned_matrix_is_the_transpose(x: tw.BlockTensor) -> None:
    plain = both_foldings(*x.spaces[:2])
    turned = tuple(Folding(each.rows, each.cols, turned=True) for each in plain)
    found = [fold(x, each) for each in turned]
    for folding, matrix in zip(plain, found, strict=True):
        assert_sound(matrix)
        np.testing.assert_array_equal(dense(matrix), dense(fold(x, folding)).T)
    back = tw.zeros(pattern=x.pattern)
    unfold(found[0], found[1], (turned[0], turned[1]), back)
    np.testing.assert_allclose(dense(back), dense(x), rtol=0, atol=1e-12)


@given(exchanged_tensors())
def test_blocks_that_are_zero_are_not_stored(x: tw.BlockTensor) -> None:
    """A block of a matrix is stored just if one of those it is made of is."""
    for folding in both_foldings(x.spaces[0], x.spaces[1]):
        pattern = folded_pattern(x.pattern, folding)
        found = {tuple(index) for index in pattern.index.tolist()}
        for index in product(range(folding.rows.space.ntiles), range(folding.cols.space.ntiles)):
            sources = [block for parts in folding.parts(index) for block in folding.sources(parts)]
            stored = any(x.pattern.row(block) >= 0 for block in sources)
            assert (index in found) == stored


@given(exchanged_tensors(), st.integers(0, 2**16))
def test_unfolding_adds_what_was_folded(x: tw.BlockTensor, seed: int) -> None:
    rows, cols = x.spaces[:2]
    foldings = both_foldings(rows, cols)
    out = exchanged_tensor(rows, cols, seed)
    expected = dense(out) + dense(x)
    unfold(fold(x, foldings[0]), fold(x, foldings[1]), foldings, out)
    assert_sound(out)
    np.testing.assert_allclose(dense(out), expected, rtol=0, atol=1e-12)


def product_over_pairs(x: tw.BlockTensor, y: tw.BlockTensor, symmetry: Symmetry | None = None) -> Array:
    """sum_cd x(i, c, j, d) y(a, c, b, d) by matrices over pairs."""
    (occ, vir), (new, _) = x.spaces[:2], y.spaces[:2]
    halves, targets = [], both_foldings(occ, new)
    for left, right in zip(both_foldings(occ, vir), both_foldings(new, vir), strict=True):
        halves.append(tw.einsum("xq,pq->xp", fold(x, left), fold(y, right, symmetry)))
    out = tw.zeros(pattern=Pattern.dense((occ, new, occ, new)))
    unfold(halves[0], halves[1], targets, out)
    assert_sound(out)
    return dense(out)


@given(st.data(), st.booleans(), st.sampled_from((1.0, 0.4)), st.integers(0, 2**16))
def test_a_product_over_pairs_is_the_product(data: st.DataObject, with_irreps: bool, fill: float, seed: int) -> None:
    occ, vir, new = (data.draw(labelled(with_irreps)) for _ in range(3))
    x, y = exchanged_tensor(occ, vir, seed, fill), exchanged_tensor(new, vir, seed + 1, fill)
    expected = np.einsum("icjd,acbd->iajb", dense(x), dense(y))
    np.testing.assert_allclose(product_over_pairs(x, y), expected, rtol=0, atol=1e-10)


def coulomb_like(vir: Space, seed: int) -> Array:
    """An array (ac|bd) with the eight symmetries of integrals, zero where irreps say so."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(vir.size,) * 4)
    for order in ((2, 3, 0, 1), (1, 0, 2, 3), (0, 1, 3, 2)):
        x = x + x.transpose(order)
    if vir.irrep is not None:
        label = np.repeat(vir.irrep, vir.sizes)
        pair = label[:, None] ^ label
        x[pair[:, :, None, None] != pair] = 0
    return x


@pytest.mark.parametrize("irrep", [None, [0, 1, 0]], ids=["no labels", "irreps"])
@pytest.mark.parametrize(
    "symmetry",
    [None, Symmetry(((0, 1), 1)), Symmetry(((0, 1), 1), ((2, 3), 1))],
    ids=["plain", "one pair", "two pairs"],
)
def test_the_matrix_of_integrals_is_its_own_transpose(symmetry: Symmetry | None, irrep: list[int] | None) -> None:
    """Half of it is stored, whether the integrals are stored whole or not."""
    occ, vir = Space([2, 1], irrep=irrep and irrep[:2]), Space([3, 1, 2], irrep=irrep)
    array = coulomb_like(vir, 3)
    integrals = tw.from_dense(array, (vir,) * 4, symmetry=symmetry)
    for folding in both_foldings(vir, vir):
        half, whole = fold(integrals, folding, TURNED), fold(integrals, folding)
        assert (half.pattern.index[:, 0] <= half.pattern.index[:, 1]).all()
        np.testing.assert_allclose(dense(half), dense(whole), rtol=0, atol=1e-12)
        np.testing.assert_allclose(dense(whole), folded_dense(array, folding), rtol=0, atol=1e-12)
    tau = exchanged_tensor(occ, vir, 4)
    expected = np.einsum("icjd,acbd->iajb", dense(tau), array)
    np.testing.assert_allclose(product_over_pairs(tau, integrals, TURNED), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("nocc", "nvir", "tile"), [(5, 19, 4), (10, 40, 16), (21, 93, 32)])
def test_a_product_over_pairs_takes_a_quarter_of_the_operations(nocc: int, nvir: int, tile: int) -> None:
    occ, vir = Space.uniform(nocc, tile), Space.uniform(nvir, tile)
    plain = tw.plan("icjd,acbd->iajb", Pattern.dense((occ, vir, occ, vir)), Pattern.dense((vir,) * 4)).flops
    assert plain == 2 * nocc**2 * nvir**4
    folded = 0
    for folding, square in zip(both_foldings(occ, vir), both_foldings(vir, vir), strict=True):
        tau = folded_pattern(Pattern.dense((occ, vir, occ, vir)), folding)
        integrals = folded_pattern(Pattern.dense((vir,) * 4), square, TURNED)
        folded += tw.plan("xq,pq->xp", tau, integrals).flops
    counts = [(n * (n + 1) // 2, n * (n - 1) // 2) for n in (nocc, nvir)]
    assert folded == 2 * sum(left * right**2 for left, right in zip(*counts, strict=True))
    assert folded / plain == pytest.approx(0.25, abs=0.25 / nvir**2 + 0.5 / (nocc * nvir) + 1e-12)


def test_one_block_can_be_asked_for() -> None:
    x = exchanged_tensor(Space([2, 3]), Space([3, 1, 2]), 7, 0.6)
    for folding in both_foldings(*x.spaces[:2]):
        whole = fold(x, folding)
        for index in product(range(folding.rows.space.ntiles), range(folding.cols.space.ntiles)):
            np.testing.assert_array_equal(folded_block(x, folding, index), whole.block(index))


def test_tensors_that_are_not_in_memory_are_folded() -> None:
    x = exchanged_tensor(Space([2, 3]), Space([3, 1, 2]), 8, 0.6)
    blocks = {index: np.array(block) for index, block in x.blocks()}
    lazy = tw.from_function(lambda index: blocks[index], pattern=x.pattern)
    assert not lazy.in_memory
    for folding in both_foldings(*x.spaces[:2]):
        assert stored_bytes(fold(lazy, folding)) == stored_bytes(fold(x, folding))


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_other_element_types(dtype: str) -> None:
    rows, cols = Space([2, 1]), Space([2, 3])
    x = exchanged_tensor(rows, cols, 9, 0.7).astype(dtype) * (1 if dtype == "float32" else 1 - 2j)
    foldings = both_foldings(rows, cols)
    halves = [fold(x, folding) for folding in foldings]
    out = tw.zeros(pattern=Pattern.dense(x.spaces), dtype=dtype)
    unfold(halves[0], halves[1], foldings, out)
    assert {each.dtype for each in (*halves, out)} == {np.dtype(dtype)}
    np.testing.assert_allclose(dense(out), dense(x), rtol=0, atol=1e-5)


def test_bounds_on_errors_are_kept() -> None:
    x = exchanged_tensor(Space([2]), Space([3]), 0)
    x.error_bound = 0.25
    foldings = both_foldings(*x.spaces[:2])
    halves = [fold(x, folding) for folding in foldings]
    assert [half.error_bound for half in halves] == [0.25, 0.25]
    out = tw.zeros(pattern=x.pattern)
    unfold(halves[0], halves[1], foldings, out)
    assert out.error_bound == 0.5


def test_elements_that_are_no_numbers_show_in_the_norms() -> None:
    x = exchanged_tensor(Space([2, 2]), Space([3, 1]), 1)
    next(part for row, part in x.arena.parts(x.pattern) if x.pattern.index[row].tolist() == [1, 1, 0, 0])[0] = np.nan
    foldings = both_foldings(*x.spaces[:2])
    halves = [fold(x, folding) for folding in foldings]
    for half, folding in zip(halves, foldings, strict=True):
        wrong = half.pattern.index[np.isinf(half.pattern.norms)].tolist()
        assert [(folding.rows.tiles[r].tolist(), folding.cols.tiles[c].tolist()) for r, c in wrong] == [
            ([1, 0], [1, 0])
        ]
    out = tw.zeros(pattern=x.pattern)
    unfold(halves[0], halves[1], foldings, out)
    wrong = out.pattern.index[np.isinf(out.pattern.norms)].tolist()
    assert wrong == [[0, 0, 1, 1], [0, 1, 1, 0], [1, 0, 0, 1], [1, 1, 0, 0]]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_share_the_blocks(workers: int) -> None:
    done: list[int] = []
    with tw.engine("threads", workers=workers) as engine:
        for_each_block(engine, [3, 0, 5, 1, 1], done.append)
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_what_goes_wrong_with_a_block_is_raised() -> None:
    def work(number: int) -> None:
        if number == 2:
            raise tw.InputError("block 2")

    sizes: Sequence[int] = [1, 1, 1]
    with pytest.raises(tw.InputError, match="block 2"):
        for_each_block(current_engine(), sizes, work)
