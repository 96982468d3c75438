"""What goes wrong on devices: options, libraries, generators, interrupts."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tilewise as tw
from engines.conformance import numpy_einsum, plan_of
from engines.nodes import SCHEDULES, check_devices, device, device_threads, not_asked
from engines.processes import source_environment
from references import assert_close
from tilewise.engines.device import DeviceEngine
from tilewise.engines.device.libraries import load_library
from tilewise.engines.device.memory import Device, Neighbours

Array = npt.NDArray[Any]


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
