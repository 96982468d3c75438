"""The memory of devices: neighbours, the cache, transfers beside products."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewise as tw
from engines.conformance import plan_of
from engines.nodes import device, not_asked
from tilewise.engines.device import DeviceEngine
from tilewise.engines.device.cached import RESULT, Cache
from tilewise.engines.device.memory import Device, Key, Neighbours
from tilewise.plans.devices import Blocked

Array = npt.NDArray[Any]


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
