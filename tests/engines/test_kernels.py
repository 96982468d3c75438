"""The compiled loops where they are most likely to go wrong: edges of strips, chunks, vectors, mode orders."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from engines.conformance import numpy_einsum, plan_of
from references import assert_close
from strategies import DTYPES
from tilewise.engines.base import current_engine
from tilewise.engines.kernels.microkernel import REGISTER_BYTES
from tilewise.engines.kernels.packing import sliver_reals
from tilewise.plans.inspector import VECTOR_BYTES

pytestmark = pytest.mark.usefixtures("blas_for_few_cells")


def run(text: str, operands: list[tw.BlockTensor], kernel: str) -> tw.BlockTensor:
    """The result of a plan that must choose this kernel, compared with NumPy's."""
    plan = plan_of(text, operands, current_engine())
    assert plan.kernel == kernel
    result = tw.execute(plan, *operands)
    assert_close(result, *numpy_einsum(text, operands))
    return result


def matrices(m: list[int], n: list[int], k: list[int], dtype: str, density: float = 1.0) -> list[tw.BlockTensor]:
    rows, cols, inner = tw.Space(m), tw.Space(n), tw.Space(k)
    return [tw.random((rows, inner), density, 0, dtype), tw.random((inner, cols), density, 1, dtype)]


# ---- packed ----


def test_packed_columns_have_room_for_the_registers_of_this_cpu() -> None:
    assert VECTOR_BYTES % REGISTER_BYTES == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_rows_and_columns(dtype: str) -> None:
    """All shapes of register tiles, whole and padded vectors."""
    sizes = [3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33]
    run("ik,kj->ij", matrices(sizes, sizes, [1, 2, 7, 8, 9], dtype), "packed")
    run("ki,jk->ji", [t.transpose() for t in matrices(sizes, sizes, [1, 2, 7, 8, 9], dtype)], "packed")


EDGES = [119, 120, 121, 239, 241, 361]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", EDGES)
def test_strips_of_rows(rows: int, dtype: str) -> None:
    run("ik,kj->ij", matrices([rows, 4], [9, 70], [6, 3], dtype, 0.8), "packed")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [511, 512, 513, 1024, 1025, 1300])
def test_strips_of_columns(cols: int, dtype: str) -> None:
    run("ik,kj->ij", matrices([5, 40], [cols, 3], [6, 3], dtype, 0.8), "packed")
    run("ik,kj->ji", matrices([5, 40], [cols, 3], [6, 3], dtype, 0.8), "packed")


@pytest.mark.parametrize("dtype", DTYPES)
def test_strips_of_both(dtype: str) -> None:
    for text in ("ik,kj->ij", "ik,kj->ji"):
        run(text, matrices([130, 250, 7], [600, 12], [5, 30], dtype, 0.8), "packed")


DEPTHS = [
    pytest.param([383], id="below"),
    pytest.param([384], id="equal"),
    pytest.param([385], id="above"),
    pytest.param([192, 192], id="two make one"),
    pytest.param([192, 193], id="two make more"),
    pytest.param([1] * 800, id="many small"),
    pytest.param([200, 250, 400, 1, 384, 191, 193], id="mixed"),
    pytest.param([1200], id="several in one"),
    pytest.param([768, 5, 768], id="twice"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", DEPTHS)
def test_runs_of_k_around_the_chunk_depth(k: list[int], dtype: str) -> None:
    run("ik,kj->ij", matrices([6, 11], [5, 18], k, dtype), "packed")
    run("ik,kj->ij", matrices([6, 11], [5, 18], k, dtype, 0.5), "packed")


ORDERS = [
    f"{''.join(a)},{''.join(b)}->{''.join(c)}"
    for number, (a, b, c) in enumerate(product(permutations("ijk"), permutations("kla"), permutations("ijla")))
    if number % 29 == 0
]


@pytest.mark.parametrize("text", ORDERS)
def test_any_order_of_modes(text: str) -> None:
    home = {
        "i": tw.Space([3, 5]),
        "j": tw.Space([4, 2, 6]),
        "k": tw.Space([7, 1]),
        "l": tw.Space([9]),
        "a": tw.Space([3, 8]),
    }
    left, right = text.split("->")[0].split(",")
    operands = [tw.random([home[c] for c in term], 0.7, n) for n, term in enumerate((left, right))]
    run(text, operands, "packed")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", ["iakb,bljk->ilja", "kbia,jlkb->ajli", "aikb,kbjl->alij", "kbai,jbkl->lija"])
def test_any_order_of_modes_and_type(text: str, dtype: str) -> None:
    home = {c: tw.Space(sizes) for c, sizes in zip("iajlkb", ([3, 4], [5], [2, 6], [4, 3], [7, 2], [3]), strict=True)}
    left, right = text.split("->")[0].split(",")
    operands = [tw.random([home[c] for c in term], 0.8, n, dtype) for n, term in enumerate((left, right))]
    run(text, operands, "packed")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", ["xik,xkj->xij", "ixk,kxj->ijx", "ikx,jkx->xji", "xiky,ykjx->iyjx"])
def test_packed_batches(text: str, dtype: str) -> None:
    home = {
        "x": tw.Space([2, 3]),
        "y": tw.Space([1, 2]),
        "i": tw.Space([9, 130]),
        "j": tw.Space([8, 17]),
        "k": tw.Space([20, 11]),
    }
    left, right = text.split("->")[0].split(",")
    operands = [tw.random([home[c] for c in term], 0.8, n, dtype) for n, term in enumerate((left, right))]
    run(text, operands, "packed")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_packed_symmetric_operands(sign: int, dtype: str) -> None:
    space = tw.Space([4, 7, 3])
    pairs = tw.Symmetry(((0, 1), sign), ((2, 3), sign))
    triples = tw.Symmetry(((0, 1, 3), sign))
    for symmetry in (pairs, triples):
        left, right = (tw.random((space,) * 4, 0.6, seed, dtype, symmetry=symmetry) for seed in (0, 1))
        for text in ("ijkl,klab->ijab", "ikjl,albk->biaj"):
            run(text, [left, right], "packed")


@settings(max_examples=60)
@given(
    st.lists(st.integers(3, 40), min_size=1, max_size=4),
    st.lists(st.integers(3, 40), min_size=1, max_size=4),
    st.lists(st.integers(1, 90), min_size=1, max_size=6),
    st.sampled_from(DTYPES),
    st.sampled_from(("ik,kj->ij", "ik,kj->ji")),
)
def test_packed_products_of_any_tiles(m: list[int], n: list[int], k: list[int], dtype: str, text: str) -> None:
    run(text, matrices(m, n, k, dtype, 0.8), "packed")


def test_one_result_block_from_very_many_products() -> None:
    """A sum long enough to be cut into pieces."""
    for dtype in DTYPES:
        run("ik,kj->ij", matrices([50], [40], [100] * 40, dtype), "packed")


# ---- gemm ----

FORMS = ["ik,kj->ij", "ki,kj->ij", "ik,jk->ij", "ki,jk->ij", "ik,kj->ji", "ki,kj->ji", "ik,jk->ji", "ki,jk->ji"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", FORMS)
def test_gemm_takes_every_transpose(text: str, dtype: str) -> None:
    home = {"i": tw.Space([400]), "j": tw.Space([410]), "k": tw.Space([385, 390])}
    left, right = text.split("->")[0].split(",")
    operands = [tw.random([home[c] for c in term], 1.0, n, dtype) for n, term in enumerate((left, right))]
    run(text, operands, "gemm")


def test_gemm_overwrites_what_memory_held_before() -> None:
    operands = matrices([400, 390], [410], [385, 390], "float64")
    first = tw.einsum("ik,kj->ij", *operands)
    first.arena.data[...] = np.nan
    del first
    run("ik,kj->ij", operands, "gemm")


def test_gemm_strips_of_rows_and_columns() -> None:
    run("ik,kj->ij", matrices([800, 400], [1000], [200, 150], "float64", 0.9), "gemm")
    run("ik,kj->ji", matrices([800], [770, 900], [120], "float32"), "gemm")


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_gemm_batches_and_composite_modes(dtype: str) -> None:
    x, i, j, k = tw.Space([2, 1]), tw.Space([400]), tw.Space([390]), tw.Space([400])
    run("xik,xkj->xij", [tw.random((x, i, k), dtype=dtype), tw.random((x, k, j), seed=1, dtype=dtype)], "gemm")
    a, b = tw.Space([20, 21]), tw.Space([21])
    run("abk,kj->abj", [tw.random((a, b, k), dtype=dtype), tw.random((k, j), seed=1, dtype=dtype)], "gemm")


def test_large_permuted_or_symmetric_blocks_are_packed() -> None:
    a, b, k = tw.Space([20]), tw.Space([21]), tw.Space([400])
    run("akb,kj->abj", [tw.random((a, k, b)), tw.random((k, k), seed=1)], "packed")
    symmetric = tw.random((k, k), symmetry=tw.Symmetry(((0, 1), -1)))
    run("ik,kj->ij", [symmetric, symmetric], "packed")


# ---- in place ----


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("text", FORMS)
def test_rows_in_place_take_every_transpose(text: str, dtype: str) -> None:
    """Of either operand, and of the result; all shapes of register tiles along the way."""
    home = {"i": tw.Space([16, 17, 25, 33]), "j": tw.Space([435, 401, 121]), "k": tw.Space([260, 513, 384])}
    left, right = text.split("->")[0].split(",")
    operands = [tw.random([home[c] for c in term], 0.9, n, dtype) for n, term in enumerate((left, right))]
    run(text, operands, "inplace")
    exchanged = f"{right},{left}->{text.split('->')[1]}"
    run(exchanged, operands[::-1], "inplace")


@pytest.mark.parametrize("text", ["ik,kj->ij", "ki,kj->ij", "ik,jk->ij", "ki,kj->ji"])
@pytest.mark.parametrize("columns", range(16, 61))
def test_columns_of_every_width_in_place(text: str, columns: int) -> None:
    """Slivers end with any number of halves of a vector, and with less."""
    home = {"i": tw.Space([260]), "j": tw.Space([columns]), "k": tw.Space([263])}
    operands = [tw.random([home[c] for c in term], seed=n) for n, term in enumerate(text.split("->")[0].split(","))]
    run(text, operands, "inplace")


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("widest", [4, 5])
def test_slivers_of_columns(lanes: int, widest: int) -> None:
    """They are whole vectors up to the last; wider ones do not leave one or three halves behind."""
    for size in range(1, 200):
        cut, left = [], size
        while left:
            cut.append(sliver_reals(left, lanes, widest))
            left -= cut[-1]
        halves = [-(-2 * each // lanes) for each in cut]
        assert max(halves) <= widest
        assert all(each % lanes == 0 for each in cut[:-1])
        assert widest == 4 or len(cut) == 1 or halves[-1] not in (1, 3)


@pytest.mark.parametrize("text", ["xq,pq->xp", "xq,pq->px", "pq,qx->px"])
def test_a_symmetric_matrix_is_read_in_place(text: str) -> None:
    """Half of its blocks are transposes of those that are stored."""
    x, p = tw.Space([36, 21]), tw.Space([435, 400, 301])
    home = {"x": x, "p": p, "q": p}
    matrix = tw.random((p, p), symmetry=tw.Symmetry(((0, 1), 1)))
    operands = [matrix if term == "pq" else tw.random([home[c] for c in term], seed=1) for term in text[:5].split(",")]
    result = run(text, operands, "inplace")
    with tw.engine("threads", workers=1):
        assert np.array_equal(tw.einsum(text, *operands).to_dense(), result.to_dense())
    out = result.copy()
    tw.einsum(text, *operands, out=out, alpha=-0.5, beta=2.0)
    np.testing.assert_allclose(out.to_dense(), 1.5 * result.to_dense(), rtol=0, atol=1e-10)


def test_rows_in_place_of_composite_modes() -> None:
    a, b, k, x = tw.Space([12, 11]), tw.Space([13]), tw.Space([300, 280]), tw.Space([18])
    run("abk,kx->abx", [tw.random((a, b, k)), tw.random((k, x), seed=1)], "inplace")
    run("kab,kx->xab", [tw.random((k, a, b)), tw.random((k, x), seed=1)], "inplace")


def test_rows_in_place_are_those_of_the_larger_operand() -> None:
    """It has one element more than four times as many as the other, whose modes are not in the order of a matrix."""
    m, n, k, p = tw.Space([127, 121]), tw.Space([16, 15]), tw.Space([256, 257]), tw.Space([2])
    rng = np.random.default_rng(5)
    large: dict[tuple[int, ...], Any] = {(i, i): rng.normal(size=(m.sizes[i], k.sizes[i])) for i in range(2)}
    small: dict[tuple[int, ...], Any] = {(i, i, 0): rng.normal(size=(n.sizes[i], k.sizes[i], 2)) for i in range(2)}
    operands = [tw.from_blocks(large, (m, k)), tw.from_blocks(small, (n, k, p))]
    assert operands[0].pattern.nnz_elements == 4 * operands[1].pattern.nnz_elements + 1
    run("mk,nkp->mnp", operands, "inplace")
    run("nkp,mk->mnp", operands[::-1], "inplace")


def test_what_is_not_read_in_place() -> None:
    """Antisymmetric and permuted tensors, complex elements, batches, short sums, few columns."""
    x, p, q = tw.Space([20]), tw.Space([400, 300]), tw.Space([260, 300])
    turned = tw.random((p, p), symmetry=tw.Symmetry(((0, 1), -1)))
    run("xq,pq->xp", [tw.random((x, p)), turned], "packed")
    a, b = tw.Space([20]), tw.Space([15])
    run("akb,kx->abx", [tw.random((a, q, b)), tw.random((q, x), seed=1)], "packed")
    run("pq,qx->px", [tw.random((p, q), dtype="complex128"), tw.random((q, x), seed=1, dtype="complex128")], "packed")
    y = tw.Space([2])
    run("ypq,yqx->ypx", [tw.random((y, p, q)), tw.random((y, q, x), seed=1)], "packed")
    short = tw.Space([250] * 3)
    run("pq,qx->px", [tw.random((p, short)), tw.random((short, x), seed=1)], "packed")
    few = tw.Space([15])
    run("pq,qx->px", [tw.random((p, q)), tw.random((q, few), seed=1)], "packed")


# ---- loops ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("k", [[1], [2, 5], [700]])
def test_few_rows_or_columns(m: int, k: list[int], dtype: str) -> None:
    for text in ("ik,kj->ij", "ik,kj->ji"):
        run(text, matrices([m] * 3, [50, 1], k, dtype, 0.9), "loops")
        run(text, matrices([50, 3], [m] * 4, k, dtype, 0.9), "loops")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", ["xy,xy->xy", "xy,yx->xy", "xyz,zxy->yz", "x,xy->xy", "xyi,yxj->ijxy", "xyi,yix->xy"])
def test_elementwise_products(text: str, dtype: str) -> None:
    home = dict(
        zip(
            "xyzij",
            (tw.Space([4, 3]), tw.Space([2, 5, 1]), tw.Space([3]), tw.Space([2]), tw.Space([1, 2])),
            strict=True,
        )
    )
    left, right = text.split("->")[0].split(",")
    operands = [tw.random([home[c] for c in term], 0.8, n, dtype) for n, term in enumerate((left, right))]
    run(text, operands, "loops")


# ---- reductions ----

PERMUTED = ["".join(order) for order in permutations("ijkl")]


@pytest.mark.parametrize("order", PERMUTED)
def test_every_permutation_of_four_modes(order: str) -> None:
    spaces = tw.Space([3, 40]), tw.Space([5, 1]), tw.Space([2, 7]), tw.Space([4, 33])
    for dtype in ("float64", "complex64"):
        run(f"ijkl->{order}", [tw.random(spaces, 0.7, dtype=dtype)], "reduction")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "text", ["ijji->ij", "ijij->ji", "iiii->i", "iiij->ji", "ijkj->ik", "jijj->", "ijkl->", "ijkl->k"]
)
def test_diagonals_and_sums_of_four_modes(text: str, dtype: str) -> None:
    run(text, [tw.random((tw.Space([3, 1, 17]),) * 4, 0.5, dtype=dtype)], "reduction")


def test_large_blocks_are_permuted_in_squares() -> None:
    for sizes in ([31], [32], [33], [64, 65], [100, 7]):
        run("ij->ji", [tw.random((tw.Space(sizes), tw.Space([45, 70])))], "reduction")
        run("ijk->kij", [tw.random((tw.Space(sizes), tw.Space([3]), tw.Space([70])), dtype=np.float32)], "reduction")
