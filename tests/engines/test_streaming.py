"""Contractions within a memory budget, with operands in memory, made on demand or on disk."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from references import assert_close, stored_bytes
from strategies import DTYPES, EinsumCase, einsum_cases, matrix_cases
from tilewise.plans import Plan, inspector
from tilewise.trace import MEMORY


@pytest.fixture(autouse=True, scope="module")
def short_segments() -> Iterator[None]:
    """Segments of k so short that small products have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspector, "SEGMENT_DEPTH", 4)
        yield


def on_demand(tensor: tw.BlockTensor, calls: Counter[tuple[int, ...]] | None = None) -> tw.BlockTensor:
    """The same tensor, its blocks made when they are asked for."""
    lock = threading.Lock()
    kept = {index: np.array(block) for index, block in tensor.blocks()}

    def make(index: tuple[int, ...]) -> Any:
        if calls is not None:
            with lock:
                calls[index] += 1
        return kept[index]

    made = tw.from_function(make, pattern=tensor.pattern, dtype=tensor.dtype)
    made.error_bound = tensor.error_bound
    return made


def budgeted(case: EinsumCase, operands: list[tw.BlockTensor], share: float) -> None:
    """Run within a share of what everything at once would take: same bits, or an error with a budget that does."""
    whole = tw.einsum(case.text, *case.tensors)
    peak = tw.plan(case.text, *operands, memory="1TB").peak_bytes
    budget = int(share * peak)
    plan = tw.plan(case.text, *operands, memory=budget)
    result = tw.execute(plan, *operands)
    assert plan.peak_bytes <= budget
    assert stored_bytes(result.loaded())[:2] == stored_bytes(whole)[:2]
    for part in [plan] if isinstance(plan, Plan) else [step.plan for step in plan.steps]:
        (trace,) = part.runs
        if part.phases is not None:
            assert trace.buffer_bytes <= part.phases.peak_bytes <= budget
            assert trace.of(MEMORY)[0].in_bytes == part.phases.fetched_bytes
            assert trace.phases == len(part.phases.sequence)
        assert trace.flops == part.flops


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_keeps_its_budget_and_its_bits(dtype: str) -> None:
    @settings(max_examples=60)
    @given(
        st.one_of(matrix_cases(dtype), matrix_cases(dtype, batches=1), matrix_cases(dtype, symmetric=True)),
        st.tuples(st.booleans(), st.booleans()),
        st.floats(0.05, 1.0),
    )
    def check(case: EinsumCase, lazy: tuple[bool, bool], share: float) -> None:
        operands = [on_demand(t) if lazily else t for t, lazily in zip(case.tensors, lazy, strict=True)]
        try:
            budgeted(case, operands, share)
        except tw.MemoryBudgetError as error:
            result = tw.einsum(case.text, *operands, memory=error.least_bytes)
            assert_close(result.loaded(), case.expected, case.scale)

    check()


@given(st.integers(1, 3).flatmap(einsum_cases), st.floats(0.3, 1.0))
def test_any_einsum_keeps_its_budget(case: EinsumCase, share: float) -> None:
    operands = [on_demand(t) for t in case.tensors]
    try:
        budgeted(case, operands, share)
    except tw.MemoryBudgetError as error:
        result = tw.einsum(case.text, *operands, memory=error.least_bytes)
        assert_close(result.loaded(), case.expected, case.scale)


@pytest.mark.parametrize("kernel", ["packed", "gemm", "loops"])
def test_every_kernel_has_the_same_bits_in_phases(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "GEMM_CELLS", 0)
    edge = {"packed": 40, "gemm": 400, "loops": 2}[kernel]
    m, k = tw.Space([edge] * 3), tw.Space([400] * 4 if kernel == "gemm" else [30] * 40)
    left, right = tw.random((m, k), 0.8), tw.random((k, m), 0.8, seed=1)
    whole = tw.plan("ik,kj->ij", left, right)
    assert isinstance(whole, Plan)
    assert whole.kernel == kernel
    expected = tw.execute(whole, left, right)
    lazy = [on_demand(left), on_demand(right)]
    everything = tw.plan("ik,kj->ij", *lazy, memory="1GB").peak_bytes
    plan = tw.plan("ik,kj->ij", *lazy, memory=expected.nbytes * 2 + (everything - expected.nbytes) // 2)
    assert isinstance(plan, Plan)
    assert plan.phases is not None
    assert len(plan.phases.sequence) > 1
    assert stored_bytes(tw.execute(plan, *lazy))[:2] == stored_bytes(expected)[:2]


def test_blocks_are_made_once_where_the_budget_allows_it() -> None:
    m, n, k = tw.Space([20] * 4), tw.Space([25] * 9), tw.Space([30] * 8)
    left, right = tw.random((m, k), 0.7), tw.random((k, n), 0.7, seed=1)
    calls: Counter[tuple[int, ...]] = Counter()
    lazy = on_demand(right, calls)
    plan = tw.plan("ik,kj->ij", left, lazy, memory="1MB")
    assert isinstance(plan, Plan)
    assert plan.phases is not None
    tw.execute(plan, left, lazy)
    assert set(calls.values()) == {1}
    assert sum(calls.values()) == right.pattern.nnz_blocks


def test_only_blocks_that_meet_another_are_made() -> None:
    k = tw.Space([5] * 6)
    left = tw.from_blocks({(0, 2): np.ones((5, 5))}, (k, k))
    calls: Counter[tuple[int, ...]] = Counter()
    tw.einsum("ik,kj->ij", left, on_demand(tw.random((k, k)), calls))
    assert set(calls) == {(2, j) for j in range(6)}


def test_a_budget_below_any_phase_is_an_error_that_says_what_needs_most() -> None:
    space = tw.Space([50] * 4)
    tensor = tw.random((space, space))
    with pytest.raises(tw.MemoryBudgetError, match=r"ij,jk->ik cannot run in 1000 bytes\. At least \d+ are needed"):
        tw.einsum("ij,jk->ik", tensor, tensor, memory=1000)
    with pytest.raises(tw.MemoryBudgetError, match=r"most of them for the result \(80000 bytes\)"):
        tw.einsum("ij,jk->ik", tensor, tensor, out=tw.zeros(pattern=tensor.pattern), memory=1000)


def test_a_result_that_does_not_fit_goes_to_scratch_and_leaves_nothing(tmp_path: Path) -> None:
    m, k = tw.Space([40] * 12), tw.Space([30] * 4)
    left, right = tw.random((m, k), 0.8), tw.random((k, m), 0.8, seed=1)
    expected = tw.einsum("ik,kj->ij", left, right)
    plan = tw.plan("ik,kj->ij", left, right, memory=expected.nbytes // 2, scratch=tmp_path)
    assert isinstance(plan, Plan)
    assert plan.phases is not None
    assert plan.phases.spills
    result = tw.execute(plan, left, right)
    assert not result.in_memory
    assert list(tmp_path.iterdir()) == []
    assert plan.runs[0].buffer_bytes <= plan.peak_bytes <= expected.nbytes // 2
    assert stored_bytes(result.copy())[:2] == stored_bytes(expected)[:2]
    again = tw.einsum("ij,jk->ik", result, right.transpose(), memory="1GB")
    assert_close(again, expected.to_dense() @ right.to_dense().T, expected.norm() * right.norm())


def test_a_scratch_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    m, k = tw.Space([40] * 12), tw.Space([30] * 4)
    left, right = tw.random((m, k)), tw.random((k, m), seed=1)
    with pytest.raises(tw.StorageError, match=r"cannot be written to scratch space in .*none: No such file"):
        tw.einsum("ik,kj->ij", left, right, memory=left.nbytes * 3, scratch=tmp_path / "none")


def test_a_file_streams_through_the_budget(tmp_path: Path) -> None:
    m, k = tw.Space([20] * 3), tw.Space([30] * 40)
    left, right = tw.random((m, k)), tw.random((k, m), seed=1)
    right.save(tmp_path / "right.h5")
    on_disk = tw.load(tmp_path / "right.h5", on_disk=True)
    expected = tw.einsum("ik,kj->ij", left, right)
    plan = tw.plan("ik,kj->ij", left, on_disk, memory=expected.nbytes + right.nbytes // 2)
    assert isinstance(plan, Plan)
    assert plan.phases is not None
    assert len(plan.phases.sequence) > 1
    assert stored_bytes(tw.execute(plan, left, on_disk)) == stored_bytes(expected)


def test_out_is_scaled_once() -> None:
    m, k = tw.Space([20] * 3), tw.Space([30] * 40)
    left, right = tw.random((m, k)), tw.random((k, m), seed=1)
    out = tw.random((m, m), seed=2)
    expected = tw.einsum("ik,kj->ij", left, right, out=out.copy(), alpha=2.0, beta=-0.5)
    lazy = on_demand(right)
    budget = tw.plan("ik,kj->ij", left, lazy, memory="1GB").peak_bytes // 2
    found = tw.einsum("ik,kj->ij", left, lazy, out=out, alpha=2.0, beta=-0.5, memory=budget)
    assert found is out
    assert_close(found, expected.to_dense(), left.norm() * right.norm())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda index: 1 / 0, r"raised ZeroDivisionError for block \(0, 0\): division by zero"),
        (lambda index: np.ones((2, 2)), r"Block \(0, 0\) has shape \(2, 2\)\. Expected \(3, 3\)"),
        (lambda index: np.full((3, 3), np.nan), r"Block \(0, 0\) holds a value that is not finite"),
        (lambda index: np.ones((3, 3), complex), r"returned complex128 elements for block \(0, 0\)"),
        (lambda index: np.full((3, 3), 9.0), r"block \(0, 0\) with norm 27\. The pattern promises at most 3"),
    ],
)
def test_a_bad_generator_is_named_with_its_block(make: Any, message: str) -> None:
    space = tw.Space([3])
    pattern = tw.Pattern.random((space, space), 1.0, norms=3.0)
    bad = tw.from_function(make, pattern=pattern)
    with pytest.raises(tw.GeneratorError, match=message):
        tw.einsum("ij,jk->ik", tw.random((space, space)), bad)
    with pytest.raises(tw.GeneratorError, match=message):
        bad.to_dense()


def test_a_generator_that_is_not_thread_safe_is_called_by_one_thread_at_a_time() -> None:
    space = tw.Space([8] * 6)
    inside, most = [0], [0]

    def make(index: tuple[int, ...]) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.001)
        inside[0] -= 1
        return np.ones((8, 8))

    with tw.engine("threads", workers=4):
        lazy = [tw.from_function(make, (space, space), thread_safe=False)]
        tw.einsum("ij,jk->ik", tw.random((space, space)), *lazy)
    assert most == [1]
