"""The threads engine: the suite of all engines, bits for any number of workers, threads and queues."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given
from hypothesis import strategies as st

import tilewise as tw
from engines.conformance import WORK, EngineConformance, kernel_for, numpy_einsum, operands_of, plan_of
from engines.processes import source_environment
from references import assert_close, stored_bytes
from strategies import DTYPES
from tilewise.engines.base import current_engine
from tilewise.engines.blas import scipy_blas
from tilewise.engines.threads import ThreadsEngine
from tilewise.engines.workers import Workers, share
from tilewise.plans import Product
from tilewise.tensors import Engine

pytestmark = pytest.mark.usefixtures("blas_for_few_cells")


class TestThreads(EngineConformance):
    @pytest.fixture(params=[1, 3], ids=["one worker", "three workers"])
    def engine(self, request: pytest.FixtureRequest) -> Engine:
        return ThreadsEngine(int(request.param))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("text", "spaces", "density", "kernel"), WORK)
def test_the_same_bits_for_any_number_of_workers(
    text: str, spaces: Any, density: float, kernel: str, dtype: str
) -> None:
    operands = [tw.random(own, density, seed, dtype) for seed, own in enumerate(spaces)]
    results = []
    for workers in (1, 2, 3, 4):
        with tw.engine("threads", workers=workers) as engine:
            plan = plan_of(text, operands, engine)
            assert plan.kernel == kernel_for(kernel, dtype)
            assert plan.workers == workers
            result = tw.einsum(text, *operands, reproducible=True)
            results.append(stored_bytes(result))
    assert all(result == results[0] for result in results)
    assert_close(result, *numpy_einsum(text, operands))


def test_an_interrupt_after_out_was_scaled_leaves_no_norm_below_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    space = tw.Space([30] * 3)
    a, out = tw.random((space, space)), tw.random((space, space), seed=1) * 1e-6

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadsEngine, "_compute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tw.einsum("ij,jk->ik", a, a, out=out, beta=1e6)
    out.check()
    assert np.isinf(out.pattern.norms).all()


def test_a_copied_tensor_belongs_to_the_engine_in_use() -> None:
    space = tw.Space([2, 3])
    symmetric = tw.Pattern.random((space, space), 1.0, symmetry=tw.Symmetry(((0, 1), 1)))
    for tensor in (tw.random((space, space), 0.5), tw.random(pattern=symmetric), tw.einsum("i->", tw.random((space,)))):
        tensor.error_bound = 1e-3
        with tw.engine("threads", workers=1) as engine:
            for twin in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):  # noqa: S301 - our own bytes
                assert stored_bytes(twin) == stored_bytes(tensor)
                assert twin.pattern == tensor.pattern
                assert twin.error_bound == tensor.error_bound
                assert twin.engine is engine
                twin.check()


def test_a_worker_that_comes_back_to_a_group_of_columns_packs_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of different groups share a buffer, at other places where their widths differ."""
    k, n = tw.Space([200] * 10), tw.Space([31, 64, 47, 90, 23, 77, 64, 50, 81, 42] * 4)
    a, b = tw.random((k, k), 0.6, 0), tw.random((k, n), 0.6, 1)
    plan = plan_of("ij,jk->ik", [a, b], current_engine())
    assert isinstance(plan.work, Product)
    assert len(plan.work.cells.group_ptr) > 3
    expected = tw.execute(plan, a, b)

    def one_thief(self: Workers, loop: Any, weights: Any) -> None:
        """Worker 0 takes its only task and then, from the back, all those of a worker that never comes."""
        loop(0, np.array([1 << 32, len(weights) << 32 | 1]), np.zeros(1, np.int64))

    monkeypatch.setattr(Workers, "run", one_thief)
    assert stored_bytes(tw.execute(plan, a, b)) == stored_bytes(expected)


@pytest.mark.parametrize(("text", "spaces", "density", "kernel"), WORK)
def test_the_work_of_these_cases_is_really_shared(text: str, spaces: Any, density: float, kernel: str) -> None:
    """Bits can only differ between workers if there is more than one task to give."""
    patterns = [tw.Pattern.random(own, density, seed) for seed, own in enumerate(spaces)]
    assert tw.plan(text, *patterns).tasks > 1


@pytest.mark.parametrize("text", ["ij,jk,kl->il", "iij,jk->k", "ij,jk,kl,lm->mi"])
def test_programs_give_the_same_bits_too(text: str) -> None:
    space = tw.Space([40, 55, 90])
    operands = [tw.random([space] * len(term), 0.7, n) for n, term in enumerate(text.split("->")[0].split(","))]
    results = []
    for workers in (1, 2, 4):
        with tw.engine("threads", workers=workers):
            results.append(stored_bytes(tw.einsum(text, *operands, reproducible=True, tol=1e-3)))
    assert results[0] == results[1] == results[2]


def test_screened_and_scaled_results_give_the_same_bits_too() -> None:
    space = tw.Space([30] * 12)
    pattern = tw.Pattern.decaying((space, space), length=2.0, cut=1e-8)
    left, right = tw.random(pattern=pattern), tw.random(pattern=pattern, seed=1)
    results = []
    for workers in (1, 2, 3, 4):
        out = tw.random((space, space), seed=2)
        with tw.engine("threads", workers=workers):
            tw.einsum("ij,jk->ik", left, right, out=out, alpha=0.3, beta=-1.7, tol=1e-4, reproducible=True)
        results.append(stored_bytes(out))
    assert all(result == results[0] for result in results)


# ---- choosing an engine ----


def test_the_context_sets_and_resets_the_engine() -> None:
    outside = current_engine()
    with tw.engine("threads", workers=2) as outer:
        assert current_engine() is outer
        assert outer.workers == 2
        with tw.engine("threads", workers=1) as inner:
            assert current_engine() is inner
        assert current_engine() is outer
        with pytest.raises(RuntimeError, match="boom"), tw.engine("threads", workers=3):
            raise RuntimeError("boom")
        assert current_engine() is outer
    assert current_engine() is outside


def test_a_thread_of_the_user_has_the_default_engine() -> None:
    seen: list[Engine] = []
    with tw.engine("threads", workers=3) as engine:
        thread = threading.Thread(target=lambda: seen.append(current_engine()))
        thread.start()
        thread.join()
    assert seen[0] is not engine


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2", True])
def test_numbers_of_workers_that_are_none_are_named(workers: Any) -> None:
    with pytest.raises(tw.InputError, match=r"workers=.*integer >= 1"), tw.engine("threads", workers=workers):
        pass


def test_unknown_engines_and_options_are_named() -> None:
    with pytest.raises(tw.InputError, match=r"'warp'.*threads"), tw.engine("warp"):
        pass
    with pytest.raises(tw.InputError, match=r"speed.*workers"), tw.engine("threads", speed=9):
        pass


# ---- threads ----


def ours() -> Iterator[threading.Thread]:
    return (thread for thread in threading.enumerate() if thread.name.startswith("tilewise"))


def test_threads_end_with_their_engine() -> None:
    space = tw.Space.uniform(400, 20)
    before = set(ours())
    for _ in range(3):
        with tw.engine("threads", workers=2):
            tensor = tw.random((space, space))
            tw.einsum("ij,jk->ik", tensor, tensor)
        del tensor
    gc.collect()
    deadline = time.monotonic() + 5.0
    while set(ours()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(ours()) - before


def test_two_threads_of_the_user_share_an_engine() -> None:
    space = tw.Space.uniform(300, 21)
    tensor = tw.random((space, space), 0.6)
    expected = stored_bytes(tw.einsum("ij,jk->ik", tensor, tensor))
    found: list[bool] = []

    def work() -> None:
        results = (tw.einsum("ij,jk->ik", tensor, tensor, engine=engine) for _ in range(5))
        found.extend(stored_bytes(result) == expected for result in results)

    engine = ThreadsEngine(2)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 15


FORKING = """
import os, sys
import numpy as np
import tilewise as tw
space = tw.Space.uniform(400, 20)
tensor = tw.random((space, space), 0.6)
expected = tw.einsum("ij,jk->ik", tensor, tensor).to_dense()
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(tw.einsum("ij,jk->ik", tensor, tensor).to_dense(), expected) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork processes")
def test_a_forked_process_has_threads_of_its_own() -> None:
    """Threads do not survive a fork (multiprocessing's default on Linux for long); the pool must notice."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING]
    process = subprocess.Popen(command, start_new_session=True, env=source_environment())
    try:
        assert process.wait(timeout=20) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@given(st.lists(st.floats(0.0, 1e12), max_size=40), st.integers(1, 9))
def test_every_task_is_in_one_queue(weights: list[float], count: int) -> None:
    queues = share(np.array(weights), count)
    assert len(queues) == count
    tasks = [task for word in queues.tolist() for task in range(word & 0xFFFFFFFF, word >> 32)]
    assert tasks == list(range(len(weights)))


def test_operands_of_one_engine_work_on_another() -> None:
    space = tw.Space([40, 50])
    left, right = operands_of(ThreadsEngine(1), [(space, space)] * 2, "float64")
    with tw.engine("threads", workers=2) as engine:
        result = tw.einsum("ij,jk->ik", left, right)
    assert result.engine is engine
    assert_close(result, *numpy_einsum("ij,jk->ik", [left, right]))


def test_threads_that_use_blas_at_once_leave_its_limits_as_they_were() -> None:
    def limits() -> list[int]:
        return [library["num_threads"] for library in threadpoolctl.threadpool_info()]

    before, inside = limits(), threading.Barrier(2)

    def use(first: bool) -> None:
        if not first:
            inside.wait()
        with scipy_blas().single_threaded():
            if first:
                inside.wait()
            inside.wait()

    threads = [threading.Thread(target=use, args=(first,)) for first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert limits() == before
