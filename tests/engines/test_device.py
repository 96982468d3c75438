"""The device engine: the suite of all engines, memory that is kept, counts that are those of the plan."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from engines.conformance import WORK, EngineConformance, numpy_einsum, plan_of
from engines.nodes import SCHEDULES, check_devices, device_threads
from engines.test_streaming import on_demand
from references import assert_close, dense, stored_bytes, true_norm
from strategies import DTYPES, EinsumCase, matrix_cases
from tilewise.engines.device import DeviceEngine
from tilewise.engines.device.libraries import StandIn
from tilewise.engines.device.matrices import Sink
from tilewise.engines.device.memory import Device, Key, Resident
from tilewise.engines.threads import ThreadsEngine
from tilewise.plans import Plan
from tilewise.plans.devices import Blocked, bound_bytes, list_products
from tilewise.plans.routing import HOST, Cached
from tilewise.plans.work import Product
from tilewise.tensors import Engine
from tilewise.trace import DEVICES, MEMORY

Array = npt.NDArray[Any]

LIBRARIES = ("numpy", "array_api_strict", "torch")

pytestmark = pytest.mark.usefixtures("blas_for_few_cells")


def engine_with(library: str, **options: Any) -> DeviceEngine:
    """An engine, unless its library is an optional one that is not there."""
    if library == "torch":
        pytest.importorskip("torch")
        pytest.importorskip("array_api_compat")
    return DeviceEngine(library=library, **options)


PRODUCTS = ("packed", "inplace", "gemm")
"""What devices do instead."""


class TestDevice(EngineConformance):
    @pytest.fixture(
        params=[(library, schedule) for library in LIBRARIES for schedule in SCHEDULES],
        ids=lambda param: f"{param[0]} {param[1]}",
    )
    def engine(self, request: pytest.FixtureRequest) -> Engine:
        library, schedule = request.param
        return engine_with(library, capacity="1GB", devices=2, schedule=schedule)

    def expected_kernel(self, kernel: str) -> str:
        return "device" if kernel in PRODUCTS else kernel


ON_DEVICES = [case for case in WORK if case.values[3] in PRODUCTS]

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
    """Also of blocks that were let go while others stayed that products had read with them."""
    m, k, n = tw.Space([16] * 2), tw.Space([12]), tw.Space([16] * 100)
    left, right = tw.random((m, k)), tw.random((k, n), seed=1)
    engine = DeviceEngine(57_344, devices=devices, schedule=schedule)
    engine.library = counting = Counting()
    plan = plan_of("ik,kj->ij", [left, right], engine)
    result = tw.execute(plan, left, right, engine=engine)
    assert result.nbytes > 57_344
    for level in plan.runs[0].of(DEVICES):
        assert 0 < counting.most[level.number] <= level.peak_bytes
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


def test_a_plan_for_another_schedule_is_placed_again() -> None:
    space = tw.Space([20] * 4)
    left, right = tw.random((space, space)), tw.random((space, space), seed=1)
    with tw.engine("device", capacity="1MB", schedule="blocked"):
        plan = tw.plan("ij,jk->ik", left, right)
    with tw.engine("device", capacity="1MB", schedule="cache") as engine:
        assert isinstance(engine.prepare(plan).placement, Cached)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stationary": 1.0}, "stationary=1.0 is no operand"),
        ({"stationary": np.array([0, 1])}, "is no operand of a product"),
        ({"schedule": np.array(["cache"])}, "is unknown. Expected one of auto"),
        ({"bandwidth": np.complex128(1)}, "is no rate"),
        ({"host_rate": 10.0}, "do not say how to share. Expected both or none"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.InputError, match=message):
        DeviceEngine("1MB", **options)
