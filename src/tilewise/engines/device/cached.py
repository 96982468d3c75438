"""Running a product on devices whose memory is a cache (TESSE 2018, V.B): for plans without holds and chunks.

A device takes its result blocks in order.  What a product needs is brought if it is not there; to make room, blocks
that can be brought again go before result blocks that have to be sent home, and among each the one that was not used
for the longest time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.device.drivers import Job, drive_all
from tilewise.engines.device.memory import Device, Key, Resident
from tilewise.plans.devices import Products
from tilewise.plans.routing import chains

Ints = npt.NDArray[np.int64]
HANDED_IN = 2
"""Products that wait or run in each compute queue at the most."""

RESULT = 2
"""The operand number of result blocks."""


@dataclass(slots=True)
class Entry:
    """A block in the cache."""

    resident: Resident
    """Where it lies."""
    send: Callable[[], Future[Any]] | None = None
    """How a result block goes home; None for a block that can be brought again."""
    pins: int = 0
    """Operations that need it."""


class Cache:
    """The memory of a device as a cache; one thread asks for blocks, others may only let go of them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        # Every product that is handed in takes memory; more than keep the queues busy would evict what is needed next.
        self.handed_in = threading.Semaphore(HANDED_IN * len(device.computing))
        self._freed = threading.Condition()

    def get(self, key: Key, size: int, bring: Callable[[], Resident]) -> Resident:
        """A block, pinned; brought by `bring` if it is not there."""
        with self._freed:
            if key in self._entries:
                self._entries.move_to_end(key)
                self._entries[key].pins += 1
                return self._entries[key].resident
        self.make_room(size)
        entry = Entry(bring(), pins=1)
        with self._freed:
            self._entries[key] = entry
        return entry.resident

    def add_result(self, key: Key, resident: Resident, send: Callable[[], Future[Any]]) -> None:
        """Note a result block that was made, pinned."""
        with self._freed:
            self._entries[key] = Entry(resident, send, pins=1)

    def unpin(self, *keys: Key) -> None:
        """An operation that needed blocks is done."""
        with self._freed:
            for key in keys:
                if key in self._entries:  # after the last operation all of them may have gone already
                    self._entries[key].pins -= 1
            self._freed.notify_all()

    def give(self, size: int) -> None:
        """An operation no longer needs the memory it took for itself."""
        self.device.account.give(size)
        with self._freed:
            self._freed.notify_all()

    def make_room(self, size: int) -> None:
        """Evict until so many bytes are free; waits for blocks that are in use."""
        account = self.device.account
        while account.held + size > account.budget:
            with self._freed:
                victim = self._victim()
                if victim is None:
                    if account.held + size > account.budget:
                        self._freed.wait(timeout=1.0)
                    continue
                entry = self._entries.pop(victim)
            self._evict(victim, entry)

    def _victim(self) -> Key | None:
        """The clean block that was not used for the longest time, else such a modified one."""
        free = [key for key, entry in self._entries.items() if entry.pins == 0]
        return next((key for key in free if self._entries[key].send is None), free[0] if free else None)

    def _evict(self, key: Key, entry: Entry) -> None:
        if entry.send is None:
            self.device.release(key, entry.resident)
        else:
            entry.send().result()

    def flush(self) -> None:
        """Send all results home and let everything go."""
        sent = [entry.send() for entry in self._entries.values() if entry.send is not None]
        for key, entry in self._entries.items():
            if entry.send is None:
                self.device.release(key, entry.resident)
        self._entries.clear()
        for event in sent:
            event.result()


class CachedRun:
    """One run through caches.

    Parameters
    ----------
    job : Job
        What is computed, by whom.
    products : Products
        The products of the plan.
    place : array of int
        The device of each result block; those of no device are left out.
    beside : callable
        Does what is left to this computer.
    """

    def __init__(self, job: Job, products: Products, place: Ints, beside: Callable[[], None]) -> None:
        self.job, self.products, self.place, self.beside = job, products, place, beside

    def run(self) -> None:
        """Drive all devices at once, and do the share of this computer; the first error ends the run."""
        drive_all(self.job.devices, self._drive, self.beside)

    def _drive(self, device: Device) -> None:
        cache = Cache(device)
        events: list[Future[Any]] = []
        own = [chain for chain in chains(self.products) if self.place[chain[0]] == device.number]
        for number, (block, begin, end) in enumerate(own):
            events += self._chain(cache, block, range(begin, end), number % len(device.computing))
            while events and events[0].done():
                events.pop(0).result()
        for event in events:
            event.result()
        cache.flush()

    def _chain(self, cache: Cache, block: int, products: range, queue: int) -> list[Future[Any]]:
        """Hand in all products of one result block."""
        device, size, key = cache.device, int(self.job.sizes[2][block]), (RESULT, block)
        cache.make_room(size)
        result = device.make(self.job.sink.edges(block), self.job.plan.dtype, size, queue)
        events: list[Future[Any]] = [result.event]
        cache.add_result(key, result, lambda: self.job.send(device, block, result, events[-1:]))
        self.job.tally.begin()
        for product in products:
            events.append(self._product(cache, result, product, queue, events[-1]))
        events[-1].add_done_callback(lambda _: cache.unpin(key))
        return events

    def _product(self, cache: Cache, result: Resident, product: int, queue: int, before: Future[Any]) -> Future[Any]:
        device, library, handed_in = cache.device, cache.device.library, cache.handed_in
        handed_in.acquire()
        keys = ((0, int(self.products.left[product])), (1, int(self.products.right[product])))
        left, right = (self._get(cache, key) for key in keys)
        cache.make_room(result.size)
        device.account.take(result.size, f"A product on device {device.number}")

        def work() -> None:
            rows, cols = self.job.factors(left.array, right.array)
            library.add_product(result.array, rows, cols)
            self.job.tally.count([(rows, cols)])

        def done(_: Future[Any]) -> None:
            handed_in.release()
            cache.give(result.size)
            cache.unpin(*keys)

        # After the product before it: if that failed, the result block is not to be sent home.
        event = device.computing[queue].submit(work, (before, left.event, right.event))
        left.readers.append(event)
        right.readers.append(event)
        event.add_done_callback(done)
        return event

    def _get(self, cache: Cache, key: Key) -> Resident:
        size = int(self.job.sizes[key[0]][key[1]])
        return cache.get(key, size, lambda: self.job.bring(cache.device, key))
