"""The device engine: the suite of all engines, memory that is kept, counts that are those of the plan."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from engines.conformance import WORK, EngineConformance, numpy_einsum, plan_of
from engines.processes import source_environment
from engines.test_streaming import on_demand
from references import assert_close, dense, stored_bytes, true_norm
from strategies import DTYPES, EinsumCase, matrix_cases
from tilewise.engines.device import DeviceEngine
from tilewise.engines.device.cached import RESULT, Cache
from tilewise.engines.device.libraries import StandIn, load_library
from tilewise.engines.device.matrices import Sink
from tilewise.engines.device.memory import Device, Key, Neighbours, Resident
from tilewise.engines.threads import ThreadsEngine
from tilewise.plans import Plan, inspector
from tilewise.plans.devices import Blocked, bound_bytes, list_products
from tilewise.plans.routing import HOST, Cached
from tilewise.plans.work import Product
from tilewise.tensors import Engine
from tilewise.trace import DEVICES, MEMORY, Level, Trace

Array = npt.NDArray[Any]

LIBRARIES = ("numpy", "array_api_strict", "torch")
SCHEDULES = ("blocked", "cache")

pytestmark = pytest.mark.usefixtures("blas_for_few_cells")


@pytest.fixture(scope="module")
def short_segments() -> Iterator[None]:
    """Segments of k so short that small products can be cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspector, "SEGMENT_DEPTH", 6)
        yield


def engine_with(library: str, **options: Any) -> DeviceEngine:
    """An engine, unless its library is an optional one that is not there."""
    if library == "torch":
        pytest.importorskip("torch")
        pytest.importorskip("array_api_compat")
    return DeviceEngine(library=library, **options)


class TestDevice(EngineConformance):
    @pytest.fixture(
        params=[(library, schedule) for library in LIBRARIES for schedule in SCHEDULES],
        ids=lambda param: f"{param[0]} {param[1]}",
    )
    def engine(self, request: pytest.FixtureRequest) -> Engine:
        library, schedule = request.param
        return engine_with(library, capacity="1GB", devices=2, schedule=schedule)

    def expected_kernel(self, kernel: str) -> str:
        return "device" if kernel in ("packed", "gemm") else kernel


ON_DEVICES = [case for case in WORK if case.values[3] in ("packed", "gemm")]

# Devices, queues, capacity (None: the least that does), schedule.
SETUPS = (
    (1, 1, None, "blocked"),
    (1, 2, None, "cache"),
    (2, 3, "20MB", "blocked"),
    (2, 1, "20MB", "cache"),
    (4, 2, "1GB", "blocked"),
    (4, 3, None, "cache"),
)


@pytest.mark.parametrize(
    ("library", "dtype"),
    [("numpy", "float32"), ("numpy", "complex128"), ("array_api_strict", "float64"), ("torch", "complex64")],
)
@pytest.mark.parametrize(("text", "spaces", "density", "kernel"), ON_DEVICES)
def test_the_same_bits_for_any_devices_queues_capacity_and_schedule(
    text: str, spaces: Any, density: float, kernel: str, dtype: str, library: str
) -> None:
    operands = [tw.random(own, density, seed, dtype) for seed, own in enumerate(spaces)]
    results = []
    for devices, queues, capacity, schedule in SETUPS:
        options = {"devices": devices, "queues": queues, "schedule": schedule}
        engine = with_room(library, capacity or 0, text, operands, options)
        plan = plan_of(text, operands, engine)
        assert plan.kernel == "device"
        results.append(tw.execute(plan, *operands, engine=engine))
    assert all(stored_bytes(result) == stored_bytes(results[0]) for result in results)
    assert_close(results[0], *numpy_einsum(text, operands))


def with_room(
    library: str,
    capacity: int | str,
    text: str,
    operands: Sequence[tw.BlockTensor],
    options: dict[str, Any],
    **plan_options: Any,
) -> DeviceEngine:
    """An engine whose devices have a capacity, or what a product needs at the least if that is more."""
    engine = engine_with(library, capacity=capacity, **options)
    try:
        tw.plan(text, *operands, engine=engine, **plan_options)
    except tw.MemoryBudgetError as error:
        budget, least = error.budget, error.least_bytes
    else:
        return engine
    assert budget == engine.devices.capacity < least
    return engine_with(library, capacity=least, **options)


# ---- memory is kept, and counts are those of the plan ----


@dataclass(frozen=True)
class Setup:
    """Options of an engine, with a capacity that depends on the product."""

    devices: int
    queues: int
    schedule: str
    stationary: int | None
    share: float
    """Capacity over the bytes of both operands and the result."""

    def engine(self, case: EinsumCase, operands: Sequence[tw.BlockTensor], **plan_options: Any) -> DeviceEngine:
        """An engine with this share, or with what the product is said to need if that is not enough."""
        everything = sum(tensor.nbytes for tensor in case.tensors) + case.expected.nbytes
        names = ("devices", "queues", "schedule", "stationary")
        options = {name: getattr(self, name) for name in names} | {"workers": 1}
        return with_room("numpy", int(self.share * everything), case.text, operands, options, **plan_options)


def setups() -> st.SearchStrategy[Setup]:
    return st.builds(
        Setup,
        devices=st.sampled_from((1, 2, 4)),
        queues=st.integers(1, 3),
        schedule=st.sampled_from(("blocked", "cache", "auto")),
        stationary=st.sampled_from((None, 0, 1)),
        share=st.floats(0.0, 2.0),
    )


def products() -> st.SearchStrategy[EinsumCase]:
    """Permuted ones, with batch indices, of symmetric operands, in all element types."""
    return st.sampled_from(DTYPES).flatmap(
        lambda dtype: st.one_of(
            matrix_cases(dtype, tile=9),
            matrix_cases(dtype, tile=9, batches=1),
            matrix_cases(dtype, tile=6, symmetric=True),
        )
    )


def check_devices(plan: Plan, trace: Trace, capacity: int) -> None:
    """Memory is kept, and what was done is what was planned."""
    levels = trace.of(DEVICES)
    assert (trace.flops, trace.calls, trace.tasks) == (plan.flops, plan.products, plan.tasks)
    if plan.kernel != "device":
        assert not levels
        return
    assert [level.number for level in levels] == list(range(trace.workers))
    for level in levels:
        assert level.peak_bytes <= level.projected_bytes <= level.capacity_bytes == capacity
        assert 0 <= level.neighbour_bytes <= sum(level.in_bytes)
    assert sum(level.out_blocks for level in levels) == plan.result.nnz_blocks
    assert sum(level.out_bytes for level in levels) == plan.result_bytes
    came = [tuple(map(sum, zip(*each, strict=True))) for each in zip(*map(counts, levels), strict=True)]
    if isinstance(plan.placement, Blocked):
        assert came == [plan.placement.in_blocks, plan.placement.in_bytes]
        assert sum(came[1]) + plan.result_bytes == plan.placement.moved_bytes
    else:
        assert isinstance(plan.placement, Cached)
        found = plan.placement
        assert found.bound_bytes <= sum(came[1]) + plan.result_bytes <= found.moved_bytes


def counts(level: Level) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return level.in_blocks, level.in_bytes


@pytest.mark.usefixtures("short_segments")
@settings(max_examples=200, deadline=None)
@given(products(), setups(), st.sampled_from((None, None, 0.01, 0.3)))
def test_any_product_keeps_the_capacity_and_its_counts(case: EinsumCase, setup: Setup, share: float | None) -> None:
    tol = None if share is None else share * case.scale
    host = tw.plan(case.text, *case.tensors, tol=tol, engine=ThreadsEngine(1))
    engine = setup.engine(case, case.tensors, tol=tol)
    plan = plan_of(case.text, case.tensors, engine, tol=tol)
    result = tw.execute(plan, *case.tensors, engine=engine)
    assert isinstance(host, Plan)
    assert (plan.products, plan.flops) == (host.products, host.flops)
    expected = tw.execute(host, *case.tensors)
    assert_close(result, dense(expected), case.scale)
    np.testing.assert_array_equal(result.pattern.index, expected.pattern.index)
    assert result.error_bound == expected.error_bound
    (trace,) = plan.runs
    check_devices(plan, trace, engine.devices.capacity)


@pytest.mark.usefixtures("short_segments")
@settings(max_examples=60, deadline=None)
@given(products(), setups(), st.tuples(st.booleans(), st.booleans()), st.floats(0.05, 1.0))
def test_blocks_on_demand_pass_through_this_computer_within_its_budget(
    case: EinsumCase, setup: Setup, lazy: tuple[bool, bool], share: float
) -> None:
    operands = [on_demand(t) if lazily else t for t, lazily in zip(case.tensors, lazy, strict=True)]
    engine = setup.engine(case, operands)
    budget = int(share * tw.plan(case.text, *operands, memory="1TB", engine=engine).peak_bytes)
    try:
        plan = plan_of(case.text, operands, engine, memory=budget)
    except tw.MemoryBudgetError as error:
        budget = error.least_bytes
        plan = plan_of(case.text, operands, engine, memory=budget)
    result = tw.execute(plan, *operands, engine=engine).loaded()
    assert_close(result, case.expected, case.scale)
    (trace,) = plan.runs
    assert plan.phases is not None
    assert trace.buffer_bytes <= plan.phases.peak_bytes <= budget
    assert trace.flops == plan.flops
    assert trace.phases == len(plan.phases.sequence)
    (memory,) = trace.of(MEMORY)
    assert memory.in_bytes == plan.phases.fetched_bytes
    for level in trace.of(DEVICES):
        assert level.peak_bytes <= level.projected_bytes <= level.capacity_bytes == engine.devices.capacity


class Counting(StandIn):
    """NumPy that notes what lies on each device, from when an array is made to when nobody has it any more."""

    def __init__(self) -> None:
        super().__init__("numpy", np)
        self.lock = threading.Lock()
        self.there: Counter[int] = Counter()
        self.most: Counter[int] = Counter()

    def noted(self, array: Array, number: int) -> Array:
        with self.lock:
            self.there[number] += array.nbytes
            self.most[number] = max(self.most[number], self.there[number])
        weakref.finalize(array, self.gone, array.nbytes, number)
        return array

    def gone(self, size: int, number: int) -> None:
        with self.lock:
            self.there[number] -= size

    def upload(self, host: Array, number: int) -> Array:
        return self.noted(super().upload(host, number), number)

    def copy(self, array: Any, number: int) -> Array:
        return self.noted(super().copy(array, number), number)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any], number: int) -> Array:
        return self.noted(super().zeros(shape, dtype, number), number)


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("devices", [1, 2])
def test_what_is_counted_is_what_lies_there(schedule: str, devices: int) -> None:
    """Also of blocks that were let go while others stayed that products had read with them.

    One block more may be there than is counted: a result is counted out before the last who has it is done.
    """
    m, k, n = tw.Space([16] * 2), tw.Space([12]), tw.Space([16] * 100)
    left, right = tw.random((m, k)), tw.random((k, n), seed=1)
    engine = DeviceEngine(57_344, devices=devices, schedule=schedule)
    engine.library = counting = Counting()
    plan = plan_of("ik,kj->ij", [left, right], engine)
    result = tw.execute(plan, left, right, engine=engine)
    assert result.nbytes > 57_344
    for level in plan.runs[0].of(DEVICES):
        assert 0 < counting.most[level.number] <= level.peak_bytes + 16 * 16 * 8
    assert set(counting.there.values()) == {0}


# ---- one large operand, a small one that streams (Herault et al. 2020) ----


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("density", [0.1, 0.25, 0.5, 1.0])
def test_what_is_held_comes_once_and_results_leave_once(
    density: float, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M << N = K: each block of the stationary operand comes once, each result block leaves once."""
    rng = np.random.default_rng(round(100 * density))
    m, k, n = (tw.Space(rng.integers(8, 17, tiles).tolist()) for tiles in (3, 40, 40))
    left, right = tw.random((m, k), density, 1), tw.random((k, n), density, 2)
    came, gone = recorded(monkeypatch)
    engine = DeviceEngine(2 * left.nbytes + 40_000, devices=devices, schedule="blocked")
    plan = plan_of("ik,kj->ij", [left, right], engine)
    cut = plan.placement
    assert isinstance(cut, Blocked)
    result = tw.execute(plan, left, right, engine=engine)
    assert_close(result, *numpy_einsum("ik,kj->ij", [left, right]))
    assert isinstance(plan.work, Product)
    found = list_products(plan.work)
    needed = np.unique((found.left, found.right)[cut.stationary]).tolist()
    planned = Counter(block for hold in cut.holds for chunk in hold.chunks for block in chunk.streamed.tolist())
    assert {block: times for (operand, block), times in came.items() if operand == cut.stationary} == dict.fromkeys(
        needed, 1
    )
    assert {block: times for (operand, block), times in came.items() if operand != cut.stationary} == planned
    assert gone == Counter(range(plan.result.nnz_blocks))
    check_devices(plan, plan.runs[0], engine.devices.capacity)
    assert cut.moved_bytes <= 2 * bound_bytes(plan, engine.devices)


def recorded(monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[Key], Counter[int]]:
    """Count which blocks come to a device, and which result blocks leave one."""
    came: Counter[Key] = Counter()
    gone: Counter[int] = Counter()
    lock = threading.Lock()
    bring, add = Device.bring, Sink.add

    def bringing(self: Device, key: Key, size: int, matrix: Callable[[], Array]) -> Resident:
        with lock:
            came[key] += 1
        return bring(self, key, size, matrix)

    def adding(self: Sink, block: int, matrix: Array) -> None:
        with lock:
            gone[block] += 1
        add(self, block, matrix)

    monkeypatch.setattr(Device, "bring", bringing)
    monkeypatch.setattr(Sink, "add", adding)
    return came, gone


# ---- shared with this computer ----


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("host_rate", [1e-9, 1.0, 1e9], ids=["little", "half", "all"])
def test_result_blocks_are_shared_with_this_computer(host_rate: float, dtype: str) -> None:
    space = tw.Space([20, 30, 25] * 4)
    left, right = (tw.random((space, space), 0.6, seed, dtype) for seed in (0, 1))
    out = tw.random((space, space), 1.0, 2, dtype)
    expected, scale = numpy_einsum("ij,jk->ki", [left, right])
    total = np.asarray(0.5 * expected - 2 * dense(out)).astype(dtype)
    engine = DeviceEngine("1MB", devices=2, schedule="cache", host_rate=host_rate, device_rate=1.0, bandwidth=1e6)
    plan = plan_of("ij,jk->ki", [left, right], engine)
    assert isinstance(plan.placement, Cached)
    share = {1e-9: [False], 1.0: [False, True], 1e9: [True]}[host_rate]
    assert sorted(set((plan.placement.place == HOST).tolist())) == share
    assert_close(tw.execute(plan, left, right, engine=engine), expected, scale)
    tw.execute(plan, left, right, out=out, alpha=0.5, beta=-2, engine=engine)
    assert_close(out, total, scale + true_norm(total))
    for trace in plan.runs:
        assert trace.flops == plan.flops
        assert sum(level.out_blocks for level in trace.of(DEVICES)) == plan.placement.updates
        assert sum(level.out_bytes for level in trace.of(DEVICES)) == plan.placement.out_bytes


@pytest.mark.usefixtures("short_segments")
def test_parts_of_a_product_are_shared_with_this_computer_too() -> None:
    space = tw.Space([20, 30, 25] * 4)
    left, right = (tw.random((space, space), 0.6, seed) for seed in (0, 1))
    lazy = [on_demand(left), on_demand(right)]
    engine = DeviceEngine("1MB", devices=2, schedule="cache", host_rate=1.0, device_rate=1.0, bandwidth=1e6)
    budget = tw.plan("ij,jk->ik", *lazy, memory="1GB", engine=engine).peak_bytes * 7 // 10
    plan = plan_of("ij,jk->ik", lazy, engine, memory=budget)
    assert plan.phases is not None
    assert len(plan.phases.sequence) > 1
    assert_close(tw.execute(plan, *lazy, engine=engine).loaded(), *numpy_einsum("ij,jk->ik", [left, right]))
    (trace,) = plan.runs
    assert trace.buffer_bytes <= budget
    assert trace.flops == plan.flops
    assert sum(level.out_blocks for level in trace.of(DEVICES)) > 0


# ---- neighbours, the cache, prefetching ----


def device(number: int, capacity: int, neighbours: Neighbours, library: StandIn | None = None) -> Device:
    return Device(number, library or StandIn("numpy", np), capacity, 1, None, neighbours)


@pytest.fixture
def pair() -> Iterator[tuple[Device, Device]]:
    """Two devices of one node."""
    neighbours = Neighbours()
    both = device(0, 1000, neighbours), device(1, 1000, neighbours)
    yield both
    for each in both:
        each.close()


def not_asked() -> Array:
    raise AssertionError("a block that a neighbour has was asked for")


def test_a_block_that_a_neighbour_has_is_copied_from_there(pair: tuple[Device, Device]) -> None:
    values = np.arange(6.0)
    first = pair[0].bring((0, 7), 48, lambda: values)
    array = first.array
    second = pair[1].bring((0, 7), 48, not_asked)
    np.testing.assert_array_equal(second.array, values)
    assert not np.shares_memory(second.array, array)
    levels = [each.level(1000) for each in pair]
    assert [level.neighbour_bytes for level in levels] == [0, 48]
    assert [level.in_blocks for level in levels] == [(1, 0), (1, 0)]
    assert [level.in_bytes for level in levels] == [(48, 0), (48, 0)]


def test_a_block_that_has_not_arrived_is_not_waited_for(pair: tuple[Device, Device]) -> None:
    """Two devices that wait for what the other is about to bring would wait for ever."""
    arrives = threading.Event()

    def late() -> Array:
        assert arrives.wait(20)
        return np.zeros(6)

    pair[0].bring((0, 7), 48, late)
    np.testing.assert_array_equal(pair[1].bring((0, 7), 48, lambda: np.ones(6)).array, np.ones(6))
    arrives.set()
    assert pair[1].level(1000).neighbour_bytes == 0


def test_a_block_that_was_let_go_is_brought_again(pair: tuple[Device, Device]) -> None:
    first = pair[0].bring((1, 7), 48, lambda: np.zeros(6))
    np.testing.assert_array_equal(first.array, np.zeros(6))
    pair[0].release((1, 7), first)
    assert pair[0].account.held == 0
    np.testing.assert_array_equal(pair[1].bring((1, 7), 48, lambda: np.ones(6)).array, np.ones(6))
    assert pair[1].level(1000).neighbour_bytes == 0


def test_a_block_stays_until_a_neighbour_has_copied_it(
    pair: tuple[Device, Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, steps = threading.Event(), []
    copy = pair[1].library.copy

    def slowly(array: Any, number: int) -> Any:
        assert go_on.wait(20)
        steps.append("copied")
        return copy(array, number)

    monkeypatch.setattr(pair[1].library, "copy", slowly)
    first = pair[0].bring((0, 7), 48, lambda: np.arange(6.0))
    first.event.result()
    second = pair[1].bring((0, 7), 48, not_asked)
    threading.Timer(0.05, go_on.set).start()
    pair[0].release((0, 7), first)
    steps.append("let go")
    assert steps == ["copied", "let go"]
    np.testing.assert_array_equal(second.array, np.arange(6.0))


def test_more_than_the_capacity_is_refused(pair: tuple[Device, Device]) -> None:
    with pytest.raises(tw.MemoryBudgetError, match=r"Block 3 of operand 1 on device 0 needs 1008 bytes.*capacity="):
        pair[0].bring((1, 3), 1008, lambda: np.zeros(126))


@pytest.fixture
def cache() -> Iterator[Cache]:
    """A cache with room for four blocks of 8 bytes."""
    own = device(0, 32, Neighbours())
    yield Cache(own)
    own.close()


def use(cache: Cache, key: Key) -> None:
    """Need a block and be done with it."""
    resident = cache.get(key, 8, lambda: cache.device.bring(key, 8, lambda: np.full(1, float(key[1]))))
    assert resident.array[0] == key[1]
    cache.unpin(key)


def add_result(cache: Cache, block: int, sent: list[int]) -> None:
    """Make a result block and be done with it."""
    cache.make_room(8)
    made = cache.device.make((1,), np.dtype(np.float64), 8, 0)

    def send() -> Future[Any]:
        return cache.device.send(made, lambda _: sent.append(block), [made.event])

    cache.add_result((RESULT, block), made, send)
    cache.unpin((RESULT, block))


def blocks_there(cache: Cache) -> set[Key]:
    return set(cache._entries)


def test_clean_blocks_are_evicted_before_results_and_the_least_used_first(cache: Cache) -> None:
    sent: list[int] = []
    add_result(cache, 0, sent)
    use(cache, (0, 1))
    add_result(cache, 2, sent)
    use(cache, (1, 3))
    use(cache, (0, 1))  # so that the other one was not used for longer
    use(cache, (0, 4))
    assert blocks_there(cache) == {(RESULT, 0), (RESULT, 2), (0, 1), (0, 4)}
    add_result(cache, 5, sent)
    add_result(cache, 6, sent)
    assert blocks_there(cache) == {(RESULT, block) for block in (0, 2, 5, 6)}
    assert sent == []
    use(cache, (0, 7))
    use(cache, (0, 8))
    assert sent == [0]
    add_result(cache, 9, sent)
    add_result(cache, 10, sent)
    assert sent == [0, 2]
    cache.flush()
    assert sent == [0, 2, 5, 6, 9, 10]
    assert blocks_there(cache) == set()
    assert (cache.device.account.held, cache.device.account.peak) == (0, 32)


@given(st.lists(st.integers(0, 7), max_size=40))
def test_the_blocks_used_last_are_there(uses: list[int]) -> None:
    own = device(0, 32, Neighbours())
    try:
        cache, recent = Cache(own), list[int]()
        for block in uses:
            use(cache, (0, block))
            recent = [*(other for other in recent if other != block), block][-4:]
            assert blocks_there(cache) == {(0, other) for other in recent}
    finally:
        own.close()


def test_a_block_in_use_is_not_evicted(cache: Cache) -> None:
    for block in range(4):
        cache.get((0, block), 8, lambda: cache.device.bring((0, block), 8, lambda: np.zeros(1)))  # noqa: B023
    done = threading.Timer(0.05, cache.unpin, [(0, 2)])
    done.start()
    use(cache, (0, 9))
    assert done.finished.is_set()
    assert blocks_there(cache) == {(0, 0), (0, 1), (0, 3), (0, 9)}


@pytest.mark.parametrize("stationary", [0, 1], ids=["the next chunk", "the next hold"])
def test_transfers_are_slowed_down_and_hidden_behind_products(stationary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and transfers that take as long as each other: all but the first and the last go on together."""
    m, k, n = tw.Space([8]), tw.Space([64]), tw.Space([16] * 40)
    left, right = tw.random((m, k)), tw.random((k, n), seed=1)
    seconds, size = 0.005, 64 * 16 * 8
    rate = size / seconds / 1e9
    engine = DeviceEngine(150_000, queues=1, schedule="blocked", stationary=stationary, bandwidth=rate)
    add_product = engine.library.add_product

    def slowly(target: Any, left: Any, right: Any) -> None:
        time.sleep(seconds)
        add_product(target, left, right)

    monkeypatch.setattr(engine.library, "add_product", slowly)
    plan = plan_of("ik,kj->ij", [left, right], engine)
    assert isinstance(plan.placement, Blocked)
    assert plan.placement.stays == bool(stationary)
    assert plan.placement.stages > 5
    tw.execute(plan, left, right, engine=engine)
    (level,) = plan.runs[0].levels
    assert level.transfer_seconds >= 0.99 * sum(level.in_bytes) / (1e9 * rate)
    assert level.compute_seconds >= 40 * seconds
    assert level.hidden >= 0.8


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"not told how much memory a device has\. Expected capacity="),
        ({"capacity": "x"}, r"capacity='x' is no amount of memory.*'4GB'"),
        ({"capacity": -1}, r"capacity=-1 is no amount of memory"),
        ({"capacity": 2.5}, r"capacity=2\.5 is no amount of memory"),
        ({"capacity": None}, r"not told how much memory a device has\. Expected capacity="),
        ({"capacity": 9, "devices": 0}, r"devices=0 is no number of devices\. Expected an integer >= 1"),
        ({"capacity": 9, "devices": 1.5}, r"devices=1\.5 is no number of devices"),
        ({"capacity": 9, "devices": True}, r"devices=True is no number of devices"),
        ({"capacity": 9, "queues": 0}, r"queues=0 is no number of queues\. Expected an integer >= 1"),
        ({"capacity": 9, "library": "abacus"}, r"library='abacus' drives no device\. Expected one of numpy, .*torch"),
        ({"capacity": 9, "schedule": "later"}, r"schedule='later' is unknown\. Expected one of auto, blocked, cache"),
        ({"capacity": 9, "stationary": 2}, r"stationary=2 is no operand of a product\. Expected 0, 1 or None"),
        ({"capacity": 9, "stationary": True}, r"stationary=True is no operand of a product"),
        ({"capacity": 9, "bandwidth": -1.0}, r"bandwidth=-1\.0 is no rate\. Expected a positive number"),
        ({"capacity": 9, "bandwidth": 0}, r"bandwidth=0 is no rate"),
        ({"capacity": 9, "bandwidth": float("nan")}, r"bandwidth=nan is no rate"),
        ({"capacity": 9, "bandwidth": "fast"}, r"bandwidth='fast' is no rate"),
        ({"capacity": 9, "host_rate": -2}, r"host_rate=-2 is no rate"),
        ({"capacity": 9, "device_rate": float("inf")}, r"device_rate=inf is no rate"),
        ({"capacity": 9, "workers": 0}, r"workers=0 is no number of threads"),
        ({"capacity": 9, "speed": 3}, r"The device engine has no option 'speed'\. Expected capacity=, devices="),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) or "none" if isinstance(value, dict) else "",
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.InputError, match=message), tw.engine("device", **options):
        pass


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "array_api_strict", None)
    with pytest.raises(tw.InputError, match=r"library='array_api_strict' is not installed.*Install it"):
        load_library("array_api_strict")


class Broken(Exception):
    """What a library raises in these tests."""


def outcome(run: Callable[[], object], seconds: float = 20.0) -> BaseException | None:
    """What a call raises, None if it raises nothing; one that does not end fails the test instead of stopping it."""
    raised: list[BaseException | None] = []

    def watched() -> None:
        try:
            run()
        except BaseException as error:
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=watched, daemon=True)
    thread.start()
    thread.join(seconds)
    assert raised, "the run hangs"
    return raised[0]


def breaking(engine: DeviceEngine, name: str, call: int) -> None:
    """Let one call of a library raise, all others go on; on the last device where the call says for which it is."""
    lock, calls, own = threading.Lock(), [0], getattr(engine.library, name)
    last = engine.devices.count - 1

    def maybe(*args: Any) -> Any:
        if name in ("upload", "zeros") and args[-1] != last:
            return own(*args)
        with lock:
            calls[0] += 1
            broken = calls[0] == call
        if broken:
            raise Broken(f"{name} {call}")
        return own(*args)

    setattr(engine.library, name, maybe)


def device_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith(("tilewise-device", "tilewise-drive"))}


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("add_product", 1),
        ("add_product", 40),
        ("upload", 1),
        ("upload", 9),
        ("zeros", 1),
        ("zeros", 5),
        ("download", 3),
    ],
)
def test_an_operation_that_fails_ends_the_run(name: str, call: int, devices: int, schedule: str) -> None:
    """Wherever it fails, the error comes out, nothing hangs or goes on, and the engine can be used again."""
    m, k, n = tw.Space([10] * 4), tw.Space([12] * 10), tw.Space([9] * 6)
    left, right = tw.random((m, k)), tw.random((k, n), seed=1)
    engine = DeviceEngine(20_000, devices=devices, schedule=schedule)
    plan = plan_of("ik,kj->ij", [left, right], engine)
    assert plan.products > 200
    breaking(engine, name, call)
    before = device_threads()
    raised = outcome(lambda: tw.execute(plan, left, right, engine=engine))
    assert isinstance(raised, Broken), raised
    assert str(raised) == f"{name} {call}"
    assert device_threads() <= before
    assert plan.runs == []
    result = tw.execute(plan, left, right, engine=engine)
    assert_close(result, *numpy_einsum("ik,kj->ij", [left, right]))
    check_devices(plan, plan.runs[0], 20_000)


def test_a_copy_that_fails_is_raised_where_it_was_asked_for(
    pair: tuple[Device, Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(array: Any, number: int) -> Any:
        raise Broken("copy")

    pair[0].bring((0, 7), 48, lambda: np.arange(6.0)).event.result()
    monkeypatch.setattr(pair[1].library, "copy", broken)
    copied = pair[1].bring((0, 7), 48, not_asked)
    with pytest.raises(Broken, match="copy"):
        _ = copied.array


def test_a_device_that_is_closed_lets_nobody_wait() -> None:
    """Operations that were handed in and never begin are no reason to keep what they would have read."""
    own, began, go_on = device(0, 1000, Neighbours()), threading.Event(), threading.Event()
    resident = own.bring((0, 7), 48, lambda: np.zeros(6))
    resident.event.result()

    def work() -> None:
        began.set()
        assert go_on.wait(20)

    resident.readers.extend(own.computing[0].submit(work) for _ in range(3))
    assert began.wait(20)
    threading.Timer(0.05, own.close).start()
    threading.Timer(0.2, go_on.set).start()
    outcome(lambda: own.release((0, 7), resident), 5.0)


def test_a_generator_that_fails_ends_the_run() -> None:
    space = tw.Space([10] * 4)
    bad = tw.from_function(lambda index: np.full((10, 10), np.nan), (space, space))
    with (
        pytest.raises(tw.GeneratorError, match=r"holds a value that is not finite"),
        tw.engine("device", capacity="1MB"),
    ):
        tw.einsum("ij,jk->ik", tw.random((space, space)), bad)


INTERRUPTED = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is started with Ctrl-C ignored
import numpy as np
import tilewise as tw
from tilewise.engines.device import DeviceEngine
from tilewise.plans import inspector

inspector.SEGMENT_DEPTH = 40
m, k, n = tw.Space([8] * 10), tw.Space([64] * {depth}), tw.Space([8] * 40)
left, right = tw.random((m, k)), tw.random((k, n), seed=1)
expected = left.to_dense() @ right.to_dense()
engine = DeviceEngine(270_000, devices={devices}, queues=1, schedule="{schedule}", stationary=0)
plan = tw.plan("ik,kj->ij", left, right, engine=engine)
assert not getattr(plan.placement, "stays", False)
add_product = engine.library.add_product

def slowly(target, left, right):
    time.sleep(0.04)
    add_product(target, left, right)

engine.library.add_product = slowly
print("ready", flush=True)
try:
    tw.execute(plan, left, right, engine=engine)
except KeyboardInterrupt:
    print("interrupted", flush=True)
busy = [t.name for t in threading.enumerate() if t.name.startswith(("tilewise-device", "tilewise-drive"))]
assert not busy, busy
engine.library.add_product = add_product
assert np.allclose(tw.execute(plan, left, right, engine=engine).to_dense(), expected)
print("done", flush=True)
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("devices", "depth"), [(1, 2), (2, 20)], ids=["results wait", "chunks wait"])
def test_ctrl_c_stops_within_a_second(devices: int, depth: int, schedule: str) -> None:
    """While results wait for products that were handed in, and while chunks wait for room."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(devices=devices, depth=depth, schedule=schedule)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=source_environment(),
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready == "ready\n", process.communicate()[1]
        time.sleep(0.5)
        assert process.poll() is None
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        answer = process.stdout.readline()
        seconds = time.monotonic() - begin
        rest, errors = process.communicate()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    assert (answer, rest, process.returncode) == ("interrupted\n", "done\n", 0), errors
    assert seconds < 1.0


# ---- beside other engines ----


def test_one_plan_runs_on_any_engine() -> None:
    """Made for one capacity, it is cut anew for another; what was measured is noted with the plan that was given."""
    space = tw.Space([30, 20, 25] * 3)
    left, right = (tw.random((space, space), 0.5, seed) for seed in (0, 1))
    engines: list[Engine] = [
        DeviceEngine("10MB", devices=2, schedule="blocked"),
        DeviceEngine("200kB", devices=1, schedule="cache"),
        ThreadsEngine(2),
    ]
    for maker in engines:
        plan = plan_of("ij,jk->ik", [left, right], maker)
        for engine in engines:
            result = tw.execute(plan, left, right, engine=engine)
            assert_close(result, *numpy_einsum("ij,jk->ik", [left, right]))
            assert result.engine is engine
        assert [len(trace.of(DEVICES)) for trace in plan.runs] == [2, 1, 0]
        assert [trace.flops for trace in plan.runs] == [plan.flops] * 3


def test_other_element_types_and_several_products() -> None:
    space = tw.Space([20, 30, 25])
    single, double = tw.random((space, space), dtype="float32"), tw.random((space, space), seed=1, dtype="complex128")
    with tw.engine("device", capacity="1MB", devices=2) as engine:
        plan = tw.plan("ij,jk->ik", single, single)
        assert_close(tw.execute(plan, single, double), *numpy_einsum("ij,jk->ik", [single, double]))
        made = tw.einsum("ij,jk,kl->il", single, double, single)
    assert made.engine is engine
    assert_close(made, *numpy_einsum("ij,jk,kl->il", [single, double, single]))


def test_screening_that_leaves_nothing_gives_nothing() -> None:
    space = tw.Space([20, 30, 25])
    tensor = tw.random((space, space))
    for schedule in ("auto", *SCHEDULES):
        with tw.engine("device", capacity=0, schedule=schedule):
            assert tw.einsum("ij,jk->ik", tensor, tensor, tol=1e9).pattern.nnz_blocks == 0


def test_two_threads_of_the_user_share_an_engine() -> None:
    space = tw.Space([20, 30, 25] * 3)
    tensor = tw.random((space, space), 0.6)
    engine, before = DeviceEngine("200kB", devices=2), device_threads()
    expected = stored_bytes(tw.einsum("ij,jk->ik", tensor, tensor, engine=engine))
    found: list[bool] = []

    def work() -> None:
        results = (tw.einsum("ij,jk->ik", tensor, tensor, engine=engine) for _ in range(3))
        found.extend(stored_bytes(result) == expected for result in results)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 9
    assert device_threads() <= before
