"""What every engine must do: a suite that the tests of an engine subclass.

A subclass gives a fixture `engine` with an engine to test, and inherits all tests::

    class TestThreads(EngineConformance):
        @pytest.fixture(params=[1, 2])
        def engine(self, request):
            return ThreadsEngine(request.param)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from references import assert_close, assert_sound, dense, stored_bytes, true_norm
from strategies import DTYPES
from tilewise.plans import Plan
from tilewise.tensors import Engine

SMALL = tw.Space([2, 1, 3], name="small")
MIDDLE = tw.Space([5, 12, 8], name="middle")
LARGE = tw.Space([60, 35], name="large")
DEEP = tw.Space([170] * 8, name="deep")

# Expression, spaces of each operand, and the loop that the inspector chooses for it.
CASES = [
    pytest.param("ij->ji", [(LARGE, MIDDLE)], "reduction", id="transpose"),
    pytest.param("ijkl->ljik", [(SMALL, MIDDLE, SMALL, MIDDLE)], "reduction", id="permutation"),
    pytest.param("iji->j", [(MIDDLE, LARGE, MIDDLE)], "reduction", id="diagonal sum"),
    pytest.param("iij->ji", [(MIDDLE, MIDDLE, SMALL)], "reduction", id="diagonal"),
    pytest.param("ij->", [(LARGE, LARGE)], "reduction", id="sum"),
    pytest.param("ij,jk->ik", [(LARGE, MIDDLE), (MIDDLE, LARGE)], "packed", id="product"),
    pytest.param("ji,kj->ki", [(MIDDLE, LARGE), (LARGE, MIDDLE)], "packed", id="transposed product"),
    pytest.param(
        "iajb,bkcj->ikac",
        [(SMALL, MIDDLE, SMALL, MIDDLE), (MIDDLE, SMALL, MIDDLE, SMALL)],
        "packed",
        id="permuted product",
    ),
    pytest.param("xij,jxk->xik", [(SMALL, MIDDLE, LARGE), (LARGE, SMALL, MIDDLE)], "packed", id="batch"),
    pytest.param("i,j->ij", [(LARGE,), (MIDDLE,)], "packed", id="outer product"),
    pytest.param("ij,jk->ki", [(tw.Space([40]), DEEP), (DEEP, tw.Space([45]))], "packed", id="few cells"),
    pytest.param("ij,ij->ij", [(LARGE, MIDDLE), (LARGE, MIDDLE)], "loops", id="Hadamard"),
    pytest.param("ij,ij->", [(DEEP, DEEP), (DEEP, DEEP)], "loops", id="long dot"),
    pytest.param("ij,ij->", [(LARGE, MIDDLE), (LARGE, MIDDLE)], "loops", id="dot"),
    pytest.param("ij,j->i", [(LARGE, MIDDLE), (MIDDLE,)], "loops", id="matrix times vector"),
    pytest.param(
        "ij,jk->ik",
        [(tw.Space([400]), tw.Space([390, 400])), (tw.Space([390, 400]), tw.Space([390]))],
        "gemm",
        id="large blocks",
    ),
    pytest.param(
        "ij,jk->ki",
        [(tw.Space([24, 17]), tw.Space([300, 270])), (tw.Space([300, 270]), tw.Space([250, 130]))],
        "inplace",
        id="in place",
    ),
]

WORK = [
    pytest.param("ij,jk->ik", [(tw.Space.uniform(420, 23),) * 2] * 2, 0.5, "packed", id="packed"),
    pytest.param("ijk,kl->jil", [(MIDDLE, MIDDLE, LARGE), (LARGE, LARGE)], 0.9, "packed", id="permuted"),
    pytest.param(
        "ij,jk->ik",
        [(tw.Space([40]), tw.Space([300] * 9)), (tw.Space([300] * 9), tw.Space([40]))],
        1.0,
        "packed",
        id="few cells",
    ),
    pytest.param(
        "ij,jk->ik",
        [(tw.Space([24, 17]), tw.Space([300] * 2)), (tw.Space([300] * 2), tw.Space([250] * 3))],
        1.0,
        "inplace",
        id="in place",
    ),
    pytest.param("ij,jk->ik", [(tw.Space([400] * 2),) * 2] * 2, 1.0, "gemm", id="gemm"),
    pytest.param("ij,jk->ik", [(tw.Space([2] * 9), LARGE), (LARGE, tw.Space([700] * 3))], 0.8, "loops", id="loops"),
    pytest.param("ij,ij->", [(tw.Space.uniform(1600, 100),) * 2] * 2, 0.9, "loops", id="dot"),
    pytest.param("ijk->kij", [(LARGE,) * 3], 0.8, "reduction", id="permutation"),
    pytest.param("ijk->j", [(LARGE,) * 3], 0.8, "reduction", id="sum"),
]


def operands_of(
    engine: Engine, spaces: Sequence[Sequence[tw.Space]], dtype: str, density: float = 0.7
) -> list[tw.BlockTensor]:
    """Random operands that belong to an engine."""
    made = [tw.random(own, density, seed, dtype) for seed, own in enumerate(spaces)]
    for tensor in made:
        tensor.engine = engine
    return made


def plan_of(text: str, operands: Sequence[tw.BlockTensor], engine: Engine, **options: Any) -> Plan:
    plan = tw.plan(text, *operands, engine=engine, **options)
    assert isinstance(plan, Plan)
    return plan


def numpy_einsum(text: str, operands: Sequence[tw.BlockTensor]) -> tuple[Any, float]:
    """NumPy's result, and the scale of its rounding."""
    arrays = [dense(operand) for operand in operands]
    scale = float(np.prod([true_norm(array) for array in arrays]))
    return np.asarray(np.einsum(text, *arrays, optimize=True)), scale


def kernel_for(kernel: str, dtype: str) -> str:
    """The loop for an element type: complex elements are never read in place."""
    return "packed" if kernel == "inplace" and dtype.startswith("complex") else kernel


class EngineConformance:
    """Tests that hold for every engine."""

    @pytest.fixture
    def engine(self) -> Engine:
        """The engine under test."""
        raise NotImplementedError

    def expected_kernel(self, kernel: str) -> str:
        """What runs a case on this engine, given the compiled loop that the inspector chooses for it."""
        return kernel

    def test_it_says_who_it_is(self, engine: Engine) -> None:
        assert engine.name in ("threads", "mpi", "device")
        assert engine.workers >= 1

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize(("text", "spaces", "kernel"), CASES)
    def test_results_are_those_of_numpy(
        self, engine: Engine, text: str, spaces: list[tuple[tw.Space, ...]], kernel: str, dtype: str
    ) -> None:
        operands = operands_of(engine, spaces, dtype)
        before = [stored_bytes(operand) for operand in operands]
        plan = plan_of(text, operands, engine)
        assert plan.kernel == self.expected_kernel(kernel_for(kernel, dtype))
        result = engine.run(plan, operands)
        assert_close(result, *numpy_einsum(text, operands))
        assert result.engine is engine
        assert [stored_bytes(operand) for operand in operands] == before
        np.testing.assert_array_equal(result.pattern.index, plan.result.index)

    @pytest.mark.parametrize("dtype", ["float32", "complex128"])
    @pytest.mark.parametrize(("text", "spaces", "kernel"), CASES)
    def test_results_are_added_to_out(
        self, engine: Engine, text: str, spaces: list[tuple[tw.Space, ...]], kernel: str, dtype: str
    ) -> None:
        """Also to one that stores more blocks; those are scaled alone."""
        operands = operands_of(engine, spaces, dtype, 0.4)
        plan = plan_of(text, operands, engine)
        out = tw.random(plan.result.spaces, 1.0, 9, dtype)
        factor = 0.7 - 0.2j if dtype.startswith("complex") else 0.7
        expected, scale = numpy_einsum(text, operands)
        total = np.asarray(factor * expected - 0.3 * dense(out)).astype(dtype)
        size = scale + true_norm(dense(out))
        assert engine.run(plan, operands, out=out, alpha=factor, beta=-0.3) is out
        assert_close(out, total, size)

    @pytest.mark.parametrize(("text", "spaces", "kernel"), CASES)
    def test_out_is_overwritten_without_beta(
        self, engine: Engine, text: str, spaces: list[tuple[tw.Space, ...]], kernel: str
    ) -> None:
        operands = operands_of(engine, spaces, "float64", 0.4)
        out = tw.random(plan_of(text, operands, engine).result.spaces, seed=9)
        engine.run(plan_of(text, operands, engine), operands, out=out)
        assert_close(out, *numpy_einsum(text, operands))

    @pytest.mark.parametrize(("text", "spaces", "density", "kernel"), WORK)
    @pytest.mark.parametrize("dtype", ["float64", "complex64"])
    def test_twice_the_same_bits(
        self, engine: Engine, text: str, spaces: Any, density: float, kernel: str, dtype: str
    ) -> None:
        operands = operands_of(engine, spaces, dtype, density)
        plan = plan_of(text, operands, engine)
        assert plan.kernel == self.expected_kernel(kernel_for(kernel, dtype))
        first, second = (stored_bytes(engine.run(plan, operands)) for _ in range(2))
        assert first == second

    @pytest.mark.parametrize("text", ["ij->ji", "ij,jk->ik", "ij,ij->ij"])
    def test_nothing_in_nothing_out(self, engine: Engine, text: str) -> None:
        full, empty = (tw.random((LARGE, LARGE), density) for density in (1.0, 0.0))
        for operands in ([empty], [full, empty], [empty, full], [empty, empty]):
            if len(operands) == text.count(",") + 1:
                result = engine.run(plan_of(text, operands, engine), operands)
                assert result.pattern.nnz_blocks == 0
                out = tw.random((LARGE, LARGE), seed=3)
                before = dense(out)
                engine.run(plan_of(text, operands, engine), operands, out=out, beta=2)
                np.testing.assert_allclose(dense(out), 2 * before)
                assert_sound(out)

    def test_operands_are_promoted(self, engine: Engine) -> None:
        left, right = tw.random((LARGE, MIDDLE), dtype="float32"), tw.random((MIDDLE, LARGE), dtype="complex128")
        result = engine.run(plan_of("ij,jk->ik", [left, right], engine), [left, right])
        assert_close(result, *numpy_einsum("ij,jk->ik", [left, right]))

    @pytest.mark.parametrize("sign", [1, -1])
    @pytest.mark.parametrize("text", ["ijab,abkl->kijl", "ijab,klba->ijkl", "ijab->baij", "ijab,ijab->"])
    def test_symmetric_operands(self, engine: Engine, text: str, sign: int) -> None:
        symmetry = tw.Symmetry(((0, 1), sign), ((2, 3), sign))
        operands = [tw.random((SMALL,) * 4, 0.6, seed, symmetry=symmetry) for seed in range(text.count(",") + 1)]
        result = engine.run(plan_of(text, operands, engine), operands)
        assert_close(result, *numpy_einsum(text, operands))

    def test_an_out_without_a_needed_block_is_refused_before_anything_is_written(self, engine: Engine) -> None:
        operands = operands_of(engine, [(LARGE, MIDDLE), (MIDDLE, LARGE)], "float64", 1.0)
        out = tw.random(pattern=tw.Pattern((LARGE, LARGE), [(0, 0), (1, 1)]))
        before = stored_bytes(out)
        with pytest.raises(tw.InputError, match=r"no block \(0, 1\)"):
            engine.run(plan_of("ij,jk->ik", operands, engine), operands, out=out, beta=5)
        assert stored_bytes(out) == before

    def test_tensor_operators_run_on_it(self, engine: Engine) -> None:
        left, right = operands_of(engine, [(LARGE, MIDDLE)] * 2, "float64", 0.5)
        assert_close(left + right, dense(left) + dense(right), 10.0)
        assert_close(left.transpose(), dense(left).T, 0.0)
        assert (left + right).engine is left.transpose().engine is engine
