"""einsum, plan, execute and dot: generated cases against NumPy, out=, errors, programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from references import assert_close, assert_sound, dense, stored_bytes, tile_mask, true_norm
from strategies import DTYPES, EinsumCase, einsum_cases, matrix_cases
from tilewise.machine import Machine
from tilewise.plans import Plan
from tilewise.tensors.protocol import Scalar
from tilewise.tensors.storage import Arena, Result

COMPLEX = ("complex64", "complex128")


def run(case: EinsumCase, **options: Any) -> tw.BlockTensor:
    """The result; the operands must come out of it as they went in."""
    before = [stored_bytes(tensor) for tensor in case.tensors]
    result = tw.einsum(case.text, *case.tensors, **options)
    assert [stored_bytes(tensor) for tensor in case.tensors] == before
    return result


def assert_einsum(case: EinsumCase) -> None:
    """The result is NumPy's; its blocks are those the operands' blocks can reach, and no others."""
    result = run(case)
    assert_close(result, case.expected, case.scale)
    assert result.error_bound == 0.0
    masks = [tile_mask(tensor.pattern) for tensor in case.tensors]
    reached = np.argwhere(np.asarray(np.einsum(case.text, *masks)) > 0)
    np.testing.assert_array_equal(result.pattern.index, reached)


# 1 000 generated cases here, 200 more of mixed types and 360 matrix products below.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operands", [1, 2, 3, 4])
def test_generated_einsum(operands: int, dtype: str) -> None:
    @settings(max_examples=100 if operands == 2 else 50)
    @given(einsum_cases(operands, dtype))
    def check(case: EinsumCase) -> None:
        assert_einsum(case)

    check()


@pytest.mark.parametrize("operands", [2, 3])
def test_generated_einsum_of_mixed_types(operands: int) -> None:
    @settings(max_examples=100)
    @given(einsum_cases(operands))
    def check(case: EinsumCase) -> None:
        assert_einsum(case)

    check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [False, True], ids=["plain", "symmetric"])
@pytest.mark.parametrize("batches", [0, 1, 2])
def test_generated_matrix_products(batches: int, symmetric: bool, dtype: str) -> None:
    @settings(max_examples=15)
    @given(matrix_cases(dtype, batches=batches, symmetric=symmetric))
    def check(case: EinsumCase) -> None:
        assert_einsum(case)

    check()


NAMED = [
    pytest.param("i->i", id="copy"),
    pytest.param("ij->ji", id="transpose"),
    pytest.param("ijkl->ljki", id="exchange"),
    pytest.param("ijkl->klij", id="pairs"),
    pytest.param("ii->", id="trace"),
    pytest.param("ii->i", id="diagonal"),
    pytest.param("iii->i", id="diagonal of three"),
    pytest.param("iijj->ji", id="two diagonals"),
    pytest.param("iijj->", id="two traces"),
    pytest.param("ijij->", id="crossed traces"),
    pytest.param("ij->", id="sum"),
    pytest.param("ijk->j", id="sum of outer modes"),
    pytest.param("ii", id="implicit trace"),
    pytest.param("ji", id="implicit transpose"),
    pytest.param("...i->i...", id="ellipsis rotates"),
    pytest.param("...ii", id="ellipsis over traces"),
    pytest.param("->", id="scalar"),
    pytest.param(",->", id="scalar times scalar"),
    pytest.param(",ij->ij", id="scalar times matrix"),
    pytest.param("i,j->ij", id="outer product"),
    pytest.param("i,j->ji", id="outer product transposed"),
    pytest.param("ij,kl->kilj", id="outer product interleaved"),
    pytest.param("i,i->", id="dot"),
    pytest.param("i,i->i", id="elementwise"),
    pytest.param("ij,ij->ij", id="Hadamard"),
    pytest.param("ij,ji->ij", id="Hadamard with transpose"),
    pytest.param("ij,ji->", id="trace of a product"),
    pytest.param("bij,bjk->bik", id="batch first"),
    pytest.param("ijb,jkb->ikb", id="batch last"),
    pytest.param("ibj,jkb->kbi", id="batch inside"),
    pytest.param("ij,jk->ik", id="product"),
    pytest.param("ji,kj->ki", id="product, all transposed"),
    pytest.param("ij,jk", id="implicit product"),
    pytest.param("ij,j->i", id="matrix times vector"),
    pytest.param("i,ij->j", id="vector times matrix"),
    pytest.param("ij,kk->ij", id="times a trace"),
    pytest.param("ij,jk->i", id="column sum first"),
    pytest.param("ij,jk->", id="everything summed"),
    pytest.param("iij,jkk->ik", id="diagonals of both"),
    pytest.param("...ij,...jk->...ik", id="ellipsis in both"),
    pytest.param("i...,j->...ij", id="ellipsis in one"),
    pytest.param("ijcd,cdab->ijab", id="ladder"),
    pytest.param("ikac,kbcj->ijab", id="ring"),
    pytest.param("ij,jk,kl->il", id="chain"),
    pytest.param("ij,jk,ki->", id="triangle"),
    pytest.param("i,i,i->i", id="elementwise of three"),
    pytest.param("i,j,k->kij", id="outer product of three"),
    pytest.param("pi,qj,pqrs,ra,sb->ijab", id="transform"),
    pytest.param("ab,cd->", id="disconnected sums"),
]


def tensors_for(text: str, spaces: dict[str, tw.Space], density: float, dtype: str) -> EinsumCase:
    terms = text.split("->")[0].replace("...", "XY").split(",")
    made = [tw.random([spaces[letter] for letter in term], density, seed, dtype) for seed, term in enumerate(terms)]
    return EinsumCase(text, tuple(made))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", NAMED)
def test_named_einsum(text: str, dtype: str) -> None:
    tilings = [tw.Space([2, 3]), tw.Space([1, 2, 1])] if len(text) > 20 else [tw.Space([4, 1, 3])]
    spaces = dict.fromkeys("abcdijklpqrsXY", tilings[0])
    spaces |= dict.fromkeys("pqrs", tilings[-1])
    for density in (0.4, 1.0):
        assert_einsum(tensors_for(text, spaces, density, dtype))


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij->", "ii->i", "ij,ij->ij", "i,j->ij", "ij,jk,kl->il"])
@pytest.mark.parametrize("where", ["ijkl", "j", "ik"])
def test_sums_over_spaces_without_tiles_are_zero(text: str, where: str) -> None:
    spaces = {letter: tw.Space([] if letter in where else [2, 1]) for letter in "ijkl"}
    case = tensors_for(text, spaces, 1.0, "float64")
    assert_einsum(case)
    assert true_norm(dense(run(case))) == 0.0 or where not in text


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij->ji", "ij,ij->", "ij,jk,kl->il"])
def test_empty_patterns_give_empty_results(text: str) -> None:
    space = tw.Space([2, 3])
    full, empty = tw.random((space, space)), tw.zeros((space, space))
    operands = [full] * text.count(",") + [empty]
    result = tw.einsum(text, *operands)
    assert result.pattern.nnz_blocks == 0
    assert not result.to_dense().any()


def test_blocks_of_one_element() -> None:
    space = tw.Space([1] * 12)
    for text in ("ij,jk->ik", "ij,jk->ki", "ijk,jkl->il", "ij,ij->ij", "ij->ji"):
        assert_einsum(tensors_for(text, dict.fromkeys("ijkl", space), 0.4, "float64"))


def test_few_blocks_among_very_many_tiles() -> None:
    """Composite tiles are numbered by what occurs, not by what could."""
    space = tw.Space([1, 2, 1, 3] * 20)
    rng = np.random.default_rng(0)
    left, right = (
        tw.random(pattern=tw.Pattern((space,) * 4, np.unique(rng.integers(0, 80, (60, 4)) // 16, axis=0)))
        for _ in range(2)
    )
    result = tw.einsum("ijkl,klab->abij", left, right)
    for index, block in result.blocks():
        a, b, i, j = index
        expected = np.zeros(block.shape)
        for (i_, j_, k, l_), one in left.blocks():
            if (i_, j_) == (i, j):
                expected += np.einsum("ijkl,klab->abij", one, right.block((k, l_, a, b)))
        np.testing.assert_allclose(block, expected, rtol=1e-12, atol=1e-12)


def test_the_same_tensor_twice() -> None:
    space = tw.Space([3, 4, 5])
    tensor = tw.random((space, space), density=0.6)
    for text in ("ij,jk->ik", "ij,ij->", "ij,kj->ik", "ij,jk,kl->il"):
        assert_einsum(EinsumCase(text, (tensor,) * (text.count(",") + 1)))


# ---- out=, alpha=, beta= ----


@st.composite
def scalars(draw: st.DrawFn, dtype: str) -> Scalar:
    real = draw(st.sampled_from((0, 1, -1, 0.1, -2.5, 3)))
    return complex(real, draw(st.sampled_from((0.0, 0.7, -1.0)))) if dtype in COMPLEX else real


@st.composite
def out_cases(draw: st.DrawFn, dtype: str) -> tuple[EinsumCase, tw.BlockTensor, Scalar, Scalar]:
    """A case and a tensor to add to, which stores the result's blocks and perhaps more."""
    case = draw(
        st.one_of(
            einsum_cases(1, dtype),
            einsum_cases(2, dtype),
            einsum_cases(3, dtype),
            matrix_cases(dtype, batches=draw(st.integers(0, 1))),
        )
    )
    needed = tw.plan(case.text, *case.tensors).result
    mask = tile_mask(needed) > 0
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mask |= rng.random(mask.shape) < draw(st.sampled_from((0.0, 0.5, 1.0)))
    out = tw.random(pattern=tw.Pattern.from_mask(needed.spaces, mask), seed=7, dtype=dtype)
    return case, out, draw(scalars(dtype)), draw(scalars(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_generated_out_alpha_beta(dtype: str) -> None:
    @settings(max_examples=60)
    @given(out_cases(dtype))
    def check(given_: tuple[EinsumCase, tw.BlockTensor, Scalar, Scalar]) -> None:
        case, out, alpha, beta = given_
        expected = np.asarray(alpha * case.expected + beta * dense(out)).astype(dtype)
        scale = abs(alpha) * case.scale + abs(beta) * true_norm(dense(out))
        before = out.pattern.index.tobytes()
        result = run(case, out=out, alpha=alpha, beta=beta)
        assert result is out
        assert out.pattern.index.tobytes() == before
        assert_close(out, expected, scale)

    check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_generated_alpha_without_out(dtype: str) -> None:
    @settings(max_examples=30)
    @given(matrix_cases(dtype), scalars(dtype))
    def check(case: EinsumCase, alpha: Scalar) -> None:
        expected = np.asarray(alpha * case.expected).astype(dtype)
        assert_close(run(case, alpha=alpha), expected, abs(alpha) * case.scale)

    check()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("text", ["ij->ji", "ij,jk->ik", "ij,ij->ij", "ij,jk,kl->il"])
def test_complex_alpha_is_never_cut_to_its_real_part(text: str, dtype: str) -> None:
    """Either the result is complex, or the call is refused; the imaginary part must not vanish."""
    space = tw.Space([4, 5])
    case = tensors_for(text, dict.fromkeys("ijkl", space), 1.0, dtype)
    try:
        result = run(case, alpha=1 + 2j)
    except tw.InputError as error:
        message = str(error)
    else:
        assert true_norm(dense(result) - (1 + 2j) * case.expected) <= 1e-5 * case.scale
        return
    assert "alpha" in message


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "2", None])
def test_factors_that_are_no_finite_numbers_are_refused(name: str, value: Any) -> None:
    space = tw.Space([2, 3])
    tensor = tw.random((space, space))
    out = tw.random((space, space), seed=1)
    before = stored_bytes(out)
    with pytest.raises(tw.InputError, match=name):
        tw.einsum("ij,jk->ik", tensor, tensor, out=out, **{name: value})
    assert stored_bytes(out) == before


def test_an_imaginary_part_in_long_double_is_not_lost() -> None:
    space = tw.Space([2, 3])
    tensor = tw.random((space, space))
    with pytest.raises(tw.InputError, match="complex"):
        tw.einsum("ij,jk->ik", tensor, tensor, alpha=np.clongdouble(2 + 3j))  # type: ignore[arg-type]
    twice = tw.einsum("ij,jk->ik", tensor, tensor, alpha=np.longdouble(2))  # type: ignore[arg-type]
    np.testing.assert_allclose(dense(twice), 2 * dense(tensor) @ dense(tensor))


def test_a_complex_beta_on_a_real_out_is_refused() -> None:
    space = tw.Space([2, 3])
    tensor, out = tw.random((space, space)), tw.random((space, space), seed=1)
    before = stored_bytes(out)
    with pytest.raises(tw.InputError, match="beta"):
        tw.einsum("ij,jk->ik", tensor, tensor, out=out, beta=1j)
    assert stored_bytes(out) == before


def test_beta_without_out_is_refused() -> None:
    space = tw.Space([2, 3])
    tensor = tw.random((space, space))
    with pytest.raises(tw.InputError, match="no out="):
        tw.einsum("ij,jk->ik", tensor, tensor, beta=2.0)


@pytest.mark.parametrize("plan", [None, "ij,jk->ik", 3])
def test_what_is_no_plan_is_not_executed(plan: Any) -> None:
    space = tw.Space([2, 3])
    with pytest.raises(tw.InputError, match=re.escape(f"{plan!r} as the plan")):
        tw.execute(plan, tw.random((space, space)))


def test_a_tolerance_beyond_the_largest_float_is_refused() -> None:
    space = tw.Space([2, 3])
    with pytest.raises(tw.InputError, match="tol=1000"):
        tw.einsum("ij,jk->ik", *[tw.random((space, space))] * 2, tol=10**400)


def test_out_forgets_what_it_held_without_beta() -> None:
    space = tw.Space([2, 3])
    tensor, out = tw.random((space, space), density=0.3), tw.random((space, space), seed=1)
    out.error_bound = 5.0
    tw.einsum("ij,jk->ik", tensor, tensor, out=out)
    np.testing.assert_allclose(out.to_dense(), dense(tensor) @ dense(tensor), atol=1e-14)
    assert out.error_bound == 0.0


def test_out_keeps_its_own_error_times_beta() -> None:
    space = tw.Space([2, 3])
    tensor, out = tw.random((space, space)), tw.random((space, space), seed=1)
    out.error_bound = 0.5
    tw.einsum("ij,jk->ik", tensor, tensor, out=out, beta=-2)
    assert out.error_bound == pytest.approx(1.0)


# ---- errors ----

OCC = tw.Space([2, 3], name="occ")
VIR = tw.Space([4, 1], name="vir")
OTHER = tw.Space([3, 2], name="other tiles")
LABELLED = tw.Space([2, 3], name="labelled", irrep=[0, 1])
LONG = tw.Space([2, 3, 1], name="long")


def tensor_over(*spaces: tw.Space) -> tw.BlockTensor:
    return tw.random(spaces, seed=3)


WRONG = [
    pytest.param("ij,jk->iz", [(OCC, OCC), (OCC, OCC)], r"'z'.*no operand.*'ijk'.*Remove", id="unknown output"),
    pytest.param("ij,jk->ii", [(OCC, OCC), (OCC, OCC)], r"'i'.*2 times.*Keep one", id="duplicate output"),
    pytest.param(
        "ij,jk->ik",
        [(OCC, LONG), (OCC, OCC)],
        r"'j'.*6 elements.*'long'.*5 elements.*'occ'.*Rename",
        id="extents",
    ),
    pytest.param("ij,jk->ik", [(OCC, OCC), (OTHER, OCC)], r"'j'.*\[2, 3\].*\[3, 2\].*tw\.retile", id="tiles"),
    pytest.param("ij,jk->ik", [(OCC, OCC), (LABELLED, OCC)], r"'j'.*labels.*the same labelled space", id="labels"),
    pytest.param("ii->i", [(OCC, VIR)], r"'i'.*\[2, 3\].*\[4, 1\].*retile", id="tiles of a diagonal"),
    pytest.param("ijk->i", [(OCC, OCC)], r"Operand 0 has 2 modes.*'ijk'.*3", id="too few modes"),
    pytest.param("i->i", [(OCC, OCC)], r"Operand 0 has 2 modes.*'i'.*'\.\.\.'", id="too many modes"),
    pytest.param("ij,jk->ik", [(OCC, OCC)], r"2 operands.*1 was given", id="too few operands"),
    pytest.param("ij->ij", [(OCC, OCC), (OCC, OCC)], r"1 operand.*2 were given", id="too many operands"),
    pytest.param("ij,jk->i->k", [(OCC, OCC), (OCC, OCC)], r"2 arrows", id="two arrows"),
    pytest.param("i1->i", [(OCC, OCC)], r"'1'.*letter", id="no letter"),
    pytest.param("i.j->ij", [(OCC, OCC)], r"'\.' outside an ellipsis", id="stray dot"),
    pytest.param("...i->i", [(OCC, OCC)], r"no '\.\.\.'.*1 mode", id="lost ellipsis"),
    pytest.param(
        "...i,...j->...ij",
        [(OCC, OCC), (OTHER, OCC)],
        r"under '\.\.\.'.*tw\.retile",
        id="tiles under ellipsis",
    ),
]


@pytest.mark.parametrize("call", [tw.einsum, tw.plan], ids=["einsum", "plan"])
@pytest.mark.parametrize(("text", "spaces", "message"), WRONG)
def test_wrong_strings_and_spaces_are_named(
    text: str, spaces: list[tuple[tw.Space, ...]], message: str, call: Callable[..., Any]
) -> None:
    operands = [tensor_over(*own) for own in spaces]
    before = [stored_bytes(operand) for operand in operands]
    with pytest.raises(tw.InputError, match=message):
        call(text, *operands)
    assert [stored_bytes(operand) for operand in operands] == before


@pytest.mark.parametrize("operand", [np.ones((5, 5)), [[1.0]], None, "x", 2.0])
def test_operands_that_are_no_tensors_are_named(operand: Any) -> None:
    tensor = tensor_over(OCC, OCC)
    with pytest.raises(tw.InputError, match=rf"Operand 1 .*{type(operand).__name__}.*from_dense"):
        tw.einsum("ij,jk->ik", tensor, operand)


def test_a_pattern_is_planned_but_not_contracted() -> None:
    tensor = tensor_over(OCC, OCC)
    plan = tw.plan("ij,jk->ik", tensor, tensor.pattern)
    with pytest.raises(tw.InputError, match=r"Operand 1 .*Pattern.*BlockTensor"):
        tw.einsum("ij,jk->ik", tensor, tensor.pattern)  # type: ignore[arg-type]
    with pytest.raises(tw.InputError, match=r"Operand 1 .*Pattern.*BlockTensor"):
        tw.execute(plan, tensor, tensor.pattern)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["ij->ji", "ij,jk->ik", "ij,jk,kl->il", "ij,kk->ij"])
@pytest.mark.parametrize("tol", [-1.0, -1e-300, float("nan"), "tight", 1j])
def test_tolerances_that_are_none_are_named(text: str, tol: Any) -> None:
    operands = [tensor_over(OCC, OCC)] * (text.count(",") + 1)
    for call in (tw.einsum, tw.plan):
        with pytest.raises(tw.InputError, match=r"tol=.*>= 0"):
            call(text, *operands, tol=tol)


@pytest.mark.parametrize("engine", ["teleport", 3, None.__class__])
def test_engines_that_are_none_are_named(engine: Any) -> None:
    with pytest.raises(tw.InputError, match=r"engine.*threads"):
        tw.einsum("ij->ji", tensor_over(OCC, OCC), engine=engine)


def wrong_out(
    out: Any, message: str, operands: Sequence[tw.BlockTensor], text: str = "ij,jk->ik", **options: Any
) -> None:
    before = [stored_bytes(t) for t in (*operands, out) if isinstance(t, tw.BlockTensor)]
    with pytest.raises(tw.InputError, match=message):
        tw.einsum(text, *operands, out=out, **options)
    assert [stored_bytes(t) for t in (*operands, out) if isinstance(t, tw.BlockTensor)] == before


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk,kl->il", "ij->ji"])
def test_out_without_a_needed_block_is_named_and_left_alone(text: str) -> None:
    operands = [tensor_over(OCC, OCC)] * (text.count(",") + 1)
    holes = tw.random(pattern=tw.Pattern((OCC, OCC), [(0, 0), (0, 1), (1, 1)]), seed=5)
    wrong_out(holes, r"no block \(1, 0\).*zeros\(pattern=", operands, text, beta=2.0)


def test_wrong_outs_are_named() -> None:
    operand = tensor_over(OCC, OCC)
    both = [operand, operand]
    wrong_out(np.zeros((5, 5)), r"out= is a ndarray.*BlockTensor", both)
    wrong_out(tensor_over(OCC, VIR), r"'vir'.*'occ'.*tile by tile", both)
    wrong_out(tensor_over(OCC, OTHER), r"out= has the spaces.*mode 1 has .* against .*Expected equal", both)
    wrong_out(tensor_over(OCC), r"out= has the spaces.*: 1 modes against 2", both)
    wrong_out(operand.astype(np.float32), r"float32.*float64.*astype", both)
    symmetric = tw.random((OCC, OCC), symmetry=tw.Symmetry(((0, 1), 1)))
    wrong_out(symmetric, r"symmetry", both)


def test_out_must_not_be_an_operand() -> None:
    operand, other = tensor_over(OCC, OCC), tensor_over(OCC, OCC)
    wrong_out(operand, r"out= is one of the operands.*copy\(\)", [operand, other])
    wrong_out(other, r"out= is one of the operands.*copy\(\)", [operand, other])
    wrong_out(operand, r"out= is one of the operands.*copy\(\)", [operand], "ij->ji")
    wrong_out(operand, r"out= is one of the operands.*copy\(\)", [operand, other, other], "ij,jk,kl->il")


# ---- plan and execute ----


class Forbidden:
    """An engine that raises if anything computes."""

    name = "forbidden"
    workers = 3
    rank = 0
    machine = Machine.measured()
    ranks = ranks_per_node = 1
    replicates = True

    def agree(self, work: Callable[[], Result], *, once: bool = False) -> Result | None:
        raise AssertionError

    def of_first(self, value: Result) -> Result:
        raise AssertionError

    def least(self, value: int) -> int:
        raise AssertionError

    def abandon(self, error: BaseException, message: str = "") -> None:
        raise AssertionError

    def prepare(self, plan: Plan) -> Plan:
        return plan

    def allocate(self, *args: Any, **options: Any) -> Arena:
        raise AssertionError("an engine was asked for memory")

    def spread(self, *args: Any, **options: Any) -> tw.BlockTensor:
        raise AssertionError("an engine was asked to move blocks")

    def run(self, *args: Any, **options: Any) -> tw.BlockTensor:
        raise AssertionError("an engine was asked to compute")


@pytest.mark.parametrize("text", ["ij->ji", "ij,jk->ik", "iij,jk->ik", "ij,jk,kl->il", "ij,ij->"])
@pytest.mark.parametrize("tol", [None, 1e-3])
def test_planning_computes_nothing(text: str, tol: float | None) -> None:
    spaces = [(OCC, OCC, OCC) if len(term) == 3 else (OCC, OCC) for term in text.split("->")[0].split(",")]
    operands = [tensor_over(*own) for own in spaces]
    for operand in operands:
        operand.engine = Forbidden()
    plan = tw.plan(text, *operands, tol=tol, engine=Forbidden())
    assert plan.workers == 3
    with pytest.raises(AssertionError, match="asked to compute"):
        tw.execute(plan, *operands, engine=Forbidden())


@settings(max_examples=60)
@given(st.integers(1, 3).flatmap(lambda n: einsum_cases(n, "float64")))
def test_a_plan_runs_on_any_tensors_with_its_blocks(case: EinsumCase) -> None:
    plan = tw.plan(case.text, *[tensor.pattern for tensor in case.tensors])
    assert_close(tw.execute(plan, *case.tensors), case.expected, case.scale)
    other = EinsumCase(case.text, tuple(3 * tensor for tensor in case.tensors))
    assert_close(tw.execute(plan, *other.tensors), other.expected, other.scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_plan_of_patterns_runs_on_every_type(dtype: str) -> None:
    """Patterns have no element type: what runs is decided by the tensors."""
    left, right = tw.random((OCC, OCC), dtype=dtype), tw.random((OCC, OCC), seed=1, dtype=dtype)
    result = tw.execute(tw.plan("ij,jk->ik", left.pattern, right.pattern), left, right)
    assert true_norm(dense(result) - dense(left) @ dense(right)) <= 1e-5


def test_execute_names_tensors_that_do_not_fit_the_plan() -> None:
    operand = tensor_over(OCC, OCC)
    plan = tw.plan("ij,jk->ik", operand, operand)
    with pytest.raises(tw.InputError, match=r"1 tensor.*2 operands"):
        tw.execute(plan, operand)
    with pytest.raises(tw.InputError, match=r"3 tensors.*2 operands"):
        tw.execute(plan, operand, operand, operand)
    holes = tw.random((OCC, OCC), density=0.3)
    with pytest.raises(tw.InputError, match=r"Operand 1 has .*the plan was made for .*new plan"):
        tw.execute(plan, operand, holes)
    with pytest.raises(tw.InputError, match=r"Operand 0 has .*the plan was made for"):
        tw.execute(plan, tensor_over(OTHER, OCC), operand)
    symmetric = tw.random((OCC, OCC), symmetry=tw.Symmetry(((0, 1), -1)))
    with pytest.raises(tw.InputError, match=r"Operand 0 has .*the plan was made for"):
        tw.execute(plan, symmetric, operand)
    with pytest.raises(tw.InputError, match=r"Operand 1 .*ndarray.*BlockTensor"):
        tw.execute(plan, operand, np.ones((5, 5)))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk,kl->il"])
def test_a_screened_plan_refuses_larger_norms(text: str) -> None:
    operands = [tensor_over(OCC, OCC)] * (text.count(",") + 1)
    plan = tw.plan(text, *operands, tol=1e-3)
    tw.execute(plan, *[0.5 * operand for operand in operands])
    with pytest.raises(tw.InputError, match=r"Operand 0 .*larger norms.*tol=0\.001.*new plan"):
        tw.execute(plan, *[2 * operand for operand in operands])


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk,kl->il"])
def test_plans_are_made_for_a_machine(text: str) -> None:
    operands = [tensor_over(OCC, OCC)] * (text.count(",") + 1)
    machine = tw.Machine.load("default")
    plan = tw.plan(text, *operands, machine=machine)
    steps = [step.plan for step in plan.steps] if isinstance(plan, tw.Program) else [plan]
    assert all(step.machine == machine for step in steps)
    wrong: Any = "default"
    with pytest.raises(tw.InputError, match=r"machine='default'.*Machine\.load"):
        tw.plan(text, *operands, machine=wrong)
    with pytest.raises(tw.InputError, match=r"machine='default'.*Machine\.load"):
        plan.on(wrong)


# ---- dot ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [False, True], ids=["plain", "symmetric"])
def test_dot_conjugates_the_left(dtype: str, symmetric: bool) -> None:
    symmetry = tw.Symmetry(((0, 1), -1)) if symmetric else None
    left = tw.random((OCC, OCC, VIR), 0.7, 0, dtype, symmetry=symmetry)
    right = tw.random((OCC, OCC, VIR), 0.7, 1, dtype)
    found = tw.dot(left, right)
    assert found == pytest.approx(np.vdot(dense(left), dense(right)), rel=1e-5 if dtype[-2:] != "28" else 1e-12)
    assert isinstance(found, complex if dtype in COMPLEX else float)


def test_dot_of_scalars_and_of_nothing() -> None:
    assert tw.dot(tw.from_dense(np.array(2.0), ()), tw.from_dense(np.array(3.0), ())) == 6.0
    assert tw.dot(tw.zeros((OCC,)), tensor_over(OCC)) == 0.0


def test_dot_names_tensors_that_do_not_fit() -> None:
    with pytest.raises(tw.InputError, match=r"2.*3.*modes|modes.*2.*3"):
        tw.dot(tensor_over(OCC, OCC), tensor_over(OCC, OCC, OCC))
    with pytest.raises(tw.InputError, match="retile"):
        tw.dot(tensor_over(OCC, OCC), tensor_over(OCC, OTHER))
    with pytest.raises(tw.InputError, match="BlockTensor"):
        tw.dot(np.ones((5, 5)), tensor_over(OCC, OCC))  # type: ignore[arg-type]


def test_results_can_be_used_again() -> None:
    left, right = tensor_over(OCC, VIR), tensor_over(VIR, OCC)
    once: npt.NDArray[Any] = dense(left) @ dense(right)
    result = tw.einsum("ia,aj->ij", left, right)
    again = tw.einsum("ij,jk->ik", result, result)
    np.testing.assert_allclose(again.to_dense(), once @ once, atol=1e-13)
    assert_sound(again)
