"""Contractions within a memory budget, with operands in memory, made on demand or on disk."""

from __future__ import annotations

import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
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


@pytest.mark.parametrize("kernel", ["packed", "inplace", "gemm", "loops"])
def test_every_kernel_has_the_same_bits_in_phases(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "GEMM_CELLS", 0)
    edge = {"packed": 40, "inplace": 24, "gemm": 400, "loops": 2}[kernel]
    m, k = tw.Space([edge] * 3), tw.Space([400] * 4 if kernel in ("gemm", "inplace") else [30] * 40)
    n = tw.Space([150] * 5) if kernel == "inplace" else m
    left, right = tw.random((m, k), 0.8), tw.random((k, n), 0.8, seed=1)
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


def test_a_scratch_folder_that_is_none_is_named_before_anything_needs_it(tmp_path: Path) -> None:
    tensor = tw.random((tw.Space([3]),) * 2)
    with pytest.raises(tw.StorageError, match=r"scratch='.*none' does not exist\. Expected a folder on a disk"):
        tw.plan("ik,kj->ij", tensor, tensor, scratch=tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(tw.StorageError, match=r"scratch='.*file' is no folder that can be written to\."):
        tw.plan("ik,kj->ij", tensor, tensor, scratch=tmp_path / "file")


def test_a_scratch_folder_that_went_away_is_named(tmp_path: Path) -> None:
    m, k = tw.Space([40] * 12), tw.Space([30] * 4)
    left, right = tw.random((m, k)), tw.random((k, m), seed=1)
    (folder := tmp_path / "scratch").mkdir()
    plan = tw.plan("ik,kj->ij", left, right, memory=left.nbytes * 3, scratch=folder)
    folder.rmdir()
    with pytest.raises(tw.StorageError, match=r"cannot be written to scratch space in .*scratch: No such file"):
        tw.execute(plan, left, right)


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


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij->ji"])
def test_blocks_that_are_made_at_once_are_counted(text: str) -> None:
    """Where the budget has no room for one block of each worker besides, blocks are made one by one."""
    space = tw.Space([40] * 6)
    tensor, size = tw.random((space, space)), 40 * 40 * 8
    lock, inside, most = threading.Lock(), 0, 0

    def make(index: tuple[int, ...]) -> Any:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.002)
        with lock:
            inside -= 1
        return tensor.block(index)

    lazy = [tw.from_function(make, pattern=tensor.pattern)] * (2 if "," in text else 1)
    with tw.engine("threads", workers=3):
        expected = tw.einsum(text, *[tensor] * len(lazy))
        roomy = tw.plan(text, *lazy, memory="1GB")
        with pytest.raises(tw.MemoryBudgetError) as error:
            tw.plan(text, *lazy, memory=0)
        tight = tw.plan(text, *lazy, memory=error.value.least_bytes)
        for plan, readers in ((roomy, 3), (tight, 1)):
            assert isinstance(plan, Plan)
            assert plan.phases is not None
            assert plan.phases.readers == readers
            assert plan.phases.made_bytes == 2 * readers * size  # with what checking them takes
            most = 0
            assert stored_bytes(tw.execute(plan, *lazy).loaded())[:2] == stored_bytes(expected)[:2]
            assert most == readers
            fetched = plan.phases.held_bytes + plan.phases.chunk_bytes + plan.phases.made_bytes
            assert plan.runs[-1].buffer_bytes >= plan.phases.result_bytes + fetched


def test_a_function_has_the_engine_in_use_that_the_run_has() -> None:
    space = tw.Space([4] * 3)
    found = set()

    def make(index: tuple[int, ...]) -> Any:
        found.add(tw.random((space,)).engine.workers)
        return np.ones((4, 4))

    with tw.engine("threads", workers=3):
        tw.einsum("ij,jk->ik", tw.random((space, space)), tw.from_function(make, (space, space)))
    assert found == {3}


@pytest.mark.parametrize("thread_safe", [False, True])
def test_a_function_may_contract_its_own_tensor(thread_safe: bool) -> None:
    space = tw.Space([4] * 3)
    own: list[tw.BlockTensor] = []

    def make(index: tuple[int, ...]) -> Any:
        if index[0] == 0:
            return np.ones((4, 4))
        row = tw.from_blocks({(index[0] - 1,): np.ones(4)}, (space,))
        return np.ones((4, 4)) * tw.einsum("i,ij->j", row, own[0]).block((index[1],))

    own.append(tw.from_function(make, (space, space), thread_safe=thread_safe))
    assert tw.einsum("ij->", own[0]).item() == 3 * 16 * (1 + 4 + 16)


def test_what_a_function_takes_is_within_the_budget() -> None:
    """As Python's own memory tracer sees it, also if the function makes another type than it should."""
    space = tw.Space([300] * 4)
    for dtype in ("float64", "float32"):
        lazy = tw.from_function(lambda index: np.ones((300, 300)), (space, space), dtype=dtype)
        with pytest.raises(tw.MemoryBudgetError) as error:
            tw.plan("ij->", lazy, memory=0)
        tw.einsum("ij->", lazy, memory=error.value.least_bytes)
        tracemalloc.start()
        try:
            tw.einsum("ij->", lazy, memory=error.value.least_bytes)
            assert tracemalloc.get_traced_memory()[1] <= error.value.least_bytes + 100_000  # objects of Python
        finally:
            tracemalloc.stop()


def test_an_intermediate_goes_to_scratch_where_a_later_step_lacks_room() -> None:
    """With more memory an intermediate fits; that must not be the end of a step that fitted beside a spilled one."""
    sizes = ([23, 17, 13, 8], [3, 1, 1, 20, 6], [12], [15, 3, 19])
    i, k, j, m = (tw.Space(each) for each in sizes)
    tensors = [tw.random((i, k)), tw.random((k, j), seed=1), tw.random((j, m), seed=2)]
    operands = [*tensors[:2], on_demand(tensors[2])]
    expected = stored_bytes(tw.einsum("ik,kj,jm->im", *tensors))[:2]
    with tw.engine("threads", workers=2):
        with pytest.raises(tw.MemoryBudgetError) as error:
            tw.plan("ik,kj,jm->im", *operands, memory=0)
        for budget in range(error.value.least_bytes, 3 * error.value.least_bytes, 97):
            program = tw.plan("ik,kj,jm->im", *operands, memory=budget)
            assert program.peak_bytes <= budget
            if budget % 5 == 0:
                assert stored_bytes(tw.execute(program, *operands).loaded())[:2] == expected


def test_a_small_intermediate_goes_to_scratch_in_one_phase() -> None:
    space = tw.Space([1])
    short, scalar = tw.from_dense(np.ones((1, 1), "float32"), (space, space)), tw.from_dense(np.array(2.0), ())
    budgeted(EinsumCase("aa,,aa", (short, scalar, short)), [on_demand(t) for t in (short, scalar, short)], 0.625)


def test_columns_that_fill_more_than_a_group_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of packed columns goes past its size by up to one strip."""
    monkeypatch.undo()
    wide, narrow = tw.Space([100] * 8), tw.Space([20] * 2)
    left, right = tw.random((narrow, wide)), tw.random((wide, wide), seed=1)
    expected = stored_bytes(tw.einsum("kj,jl->kl", left, right))[:2]
    for operand in (left, on_demand(left)):
        with pytest.raises(tw.MemoryBudgetError) as least:
            tw.plan("kj,jl->kl", operand, right, memory=0)
        for budget in np.linspace(least.value.least_bytes, 8e6, 30).astype(int).tolist():
            plan = tw.plan("kj,jl->kl", operand, right, memory=budget)
            assert stored_bytes(tw.execute(plan, operand, right).loaded())[:2] == expected


def test_a_function_may_hand_out_the_same_buffer_every_time() -> None:
    space = tw.Space([30] * 6)
    tensor = tw.random((space, space))
    buffer = np.empty((30, 30))

    def make(index: tuple[int, ...]) -> Any:
        buffer[...] = tensor.block(index)
        return buffer

    dense = tensor.to_dense() @ tensor.to_dense()
    with tw.engine("threads", workers=4):
        lazy = tw.from_function(make, (space, space), thread_safe=False)
        for _ in range(20):
            assert np.allclose(tw.einsum("ij,jk->ik", lazy, lazy).to_dense(), dense)


def test_a_function_that_is_not_thread_safe_may_ask_for_other_blocks() -> None:
    space = tw.Space([2] * 3)
    made: list[tw.BlockTensor] = []

    def make(index: tuple[int, ...]) -> Any:
        return np.ones((2, 2)) if index[0] == 0 else 2 * made[0].block((index[0] - 1, index[1]))

    made.append(tw.from_function(make, (space, space), thread_safe=False))
    assert made[0].block((2, 1)).tolist() == [[4.0, 4.0], [4.0, 4.0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda index: np.full((3, 3), 1e300), r"block \(0, 0\) with elements too large for float32"),
        (
            lambda index: np.ma.masked_array(np.ones((3, 3)), np.eye(3) > 0),
            r"raised TypeError for block \(0, 0\): a masked",
        ),
        (lambda index: np.full((3, 3), None), r"made for block \(0, 0\) cannot be used. dtype object"),
    ],
)
def test_values_that_are_none_are_refused(make: Any, message: str) -> None:
    space = tw.Space([3])
    bad = tw.from_function(make, (space, space), dtype="float32")
    with pytest.raises(tw.GeneratorError, match=message):
        bad.to_dense()


def test_a_tensor_that_is_added_to_takes_no_room() -> None:
    wide, narrow = tw.Space([20] * 8), tw.Space([20] * 2)
    left, right = tw.random((wide, narrow)), tw.random((narrow, wide), seed=1)
    out = tw.zeros(pattern=tw.Pattern.dense((wide, wide)))
    tw.einsum("ik,kj->ij", left, on_demand(right), out=out, memory=out.nbytes - 1)
    assert np.allclose(out.to_dense(), left.to_dense() @ right.to_dense())


def test_a_budget_that_is_too_little_with_out_is_an_error_before_the_first_step() -> None:
    wide, narrow = tw.Space([100] * 8), tw.Space([20] * 2)
    calls: Counter[tuple[int, ...]] = Counter()
    first, second = (on_demand(tw.random(s, seed=1), calls) for s in ((wide, narrow), (narrow, wide)))
    third = tw.random((wide, wide), seed=2)
    out = tw.zeros(pattern=tw.Pattern.dense((wide, wide)))
    with pytest.raises(tw.MemoryBudgetError):
        tw.einsum("ik,kj,jl->il", first, second, third, out=out, memory=300_000)
    assert not calls
    assert out.error_bound == 0.0


def test_the_least_budget_of_a_sum_is_that_of_all_of_it_where_that_is_less() -> None:
    two, one = tw.Space([100, 1]), tw.Space([100])
    lazy = tw.from_function(lambda index: np.ones((int(two.sizes[index[0]]), 100)), (two, one))
    with pytest.raises(tw.MemoryBudgetError) as error:
        tw.plan("ij->", lazy, memory=0)
    made = 2 * 100 * 100  # until it is copied, and what checking it takes
    assert error.value.least_bytes == 8 * (100 * 100 + 100 + 1 + made)
    assert tw.einsum("ij->", lazy, memory=error.value.least_bytes).item() == 10_100


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 2.5])
def test_a_program_keeps_its_budget_in_a_wider_type(share: float) -> None:
    space = tw.Space([50] * 6)
    operands = [tw.random((space, space), density=0.5, seed=seed) for seed in range(3)]
    patterns = [operand.pattern for operand in operands]
    with pytest.raises(tw.MemoryBudgetError) as error:
        tw.plan("ij,jk,kl->il", *patterns, memory=0)
    most = tw.plan("ij,jk,kl->il", *patterns, memory="1TB").peak_bytes
    budget = max(int(share * most), error.value.least_bytes)  # the least does not do for the wider type
    plan = tw.plan("ij,jk,kl->il", *patterns, memory=budget)
    assert isinstance(plan, tw.Program)
    wide = [operand.astype("complex128") for operand in operands]
    with suppress(tw.MemoryBudgetError):
        result = tw.execute(plan, *wide)
        assert np.allclose(result.to_dense(), np.linalg.multi_dot([operand.to_dense() for operand in wide]))
    first, second = (step.plan.runs for step in plan.steps)
    assert len(first) == len(second) == (0 if share == 0 else 1)
    if first:
        spilled = first[0].of(MEMORY)[0].out_bytes
        held = 0 if spilled else plan.steps[0].plan.result.nbytes(np.dtype("complex128"))
        assert first[0].buffer_bytes <= budget
        assert second[0].buffer_bytes + held <= budget


def test_two_threads_that_stream_leave_the_memory_as_it_was() -> None:
    space = tw.Space([40] * 6)
    left, right = tw.random((space, space)), tw.random((space, space), seed=1)
    with tw.engine("threads") as engine:
        before = engine.memory.limit  # type: ignore[attr-defined]
        threads = [
            threading.Thread(target=lambda: tw.einsum("ij,jk->ik", on_demand(left), right, memory="1MB", engine=engine))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert engine.memory.limit == before  # type: ignore[attr-defined]
