"""One device: its memory, what lies in it, the queues that fill, empty and use it, and what they moved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.device.libraries import Library
from tilewise.engines.device.queues import Queue
from tilewise.engines.spans import covered, shared
from tilewise.trace import DEVICES, Level

Array = npt.NDArray[Any]
Key = tuple[int, int]
"""Number of an operand, and a block of it."""


@dataclass(slots=True)
class Resident:
    """A block in the memory of a device."""

    size: int
    """Its bytes."""
    event: Future[None] = field(default_factory=Future)
    """Its arrival."""
    readers: list[Future[Any]] = field(default_factory=list)
    """Operations that read it."""
    _array: Any = None
    """The array; nobody else keeps it, so that its memory is free as soon as it is forgotten."""

    @property
    def array(self) -> Any:
        """The array, once it has arrived."""
        self.event.result()
        return self._array

    def arrive(self, queue: Queue, make: Callable[[], Any]) -> None:
        """Have a queue make the array.

        It is not the result of the queue's event: the thread of a queue may keep that long after others have used it.
        """

        def work() -> None:
            self._array = make()

        self.event = queue.submit(work)

    def forget(self) -> None:
        """Let go of the array; whoever still knows the block finds none."""
        self.event = Future()
        self.event.cancel()
        self._array = None


class Neighbours:
    """What lies on the devices of one node, so that a block is copied from a neighbour where it can be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[Key, dict[int, Resident]] = {}

    def add(self, key: Key, number: int, resident: Resident) -> None:
        """Note that a block lies on a device."""
        with self._lock:
            self._places.setdefault(key, {})[number] = resident

    def remove(self, key: Key, number: int) -> None:
        """Nobody may begin to read it from here on."""
        with self._lock:
            self._places.get(key, {}).pop(number, None)

    def borrow(self, key: Key, copy: Callable[[Resident], Future[None]]) -> bool:
        """Begin to copy a block that has arrived somewhere, if there is one.

        Only arrived ones: two devices that wait for what the other is about to bring would wait for ever.
        """
        with self._lock:
            for resident in self._places.get(key, {}).values():
                event = resident.event
                if event.done() and not event.cancelled() and event.exception() is None:
                    resident.readers.append(copy(resident))
                    return True
        return False


class Pace:
    """Slows the transfers of one direction down to a bandwidth in GB/s, if there is one."""

    def __init__(self, bandwidth: float | None) -> None:
        self._bandwidth = bandwidth
        self._free = 0.0
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let nobody wait any longer."""
        self._stopped.set()

    @contextmanager
    def taking(self, size: int, asked: float) -> Iterator[None]:
        """Take as long as the bandwidth says for so many bytes that could have gone since they were asked for.

        Where one transfer took too long, those that waited behind it make up for that.
        """
        yield
        if self._bandwidth is not None:
            self._free = max(asked, self._free) + size / (1e9 * self._bandwidth)
            early = self._free - time.perf_counter()
            if early > 0:  # sleeping for no time at all gives the processor away, too
                self._stopped.wait(early)


class Device:
    """A device with memory of its own.

    Parameters
    ----------
    number : int
        Its number on this node.
    library : Library
        What drives it.
    capacity : int
        Bytes of its memory.
    queues : int
        How many products it computes at once.
    bandwidth : float, optional
        GB/s that transfers in each direction are slowed down to.
    neighbours : Neighbours
        The devices of the node.
    """

    def __init__(
        self,
        number: int,
        library: Library,
        capacity: int,
        queues: int,
        bandwidth: float | None,
        neighbours: Neighbours,
    ) -> None:
        self.number, self.library, self.neighbours = number, library, neighbours
        self._pace_in, self._pace_out = Pace(bandwidth), Pace(bandwidth)
        self.account = Account(capacity, "capacity=")
        self.incoming, self.outgoing, *self.computing = (
            Queue(f"tilewise-device{number}-{name}", library.queue(number))
            for name in ("in", "out", *(f"compute{i}" for i in range(queues)))
        )
        self.came = {0: [0, 0], 1: [0, 0]}
        self.neighbour_bytes = self.out_bytes = self.out_blocks = 0

    def bring(self, key: Key, size: int, matrix: Callable[[], Array]) -> Resident:
        """Begin to bring a block, from a neighbour if one has it, else as `matrix` gives it."""
        self.account.take(size, f"Block {key[1]} of operand {key[0]} on device {self.number}")
        asked = time.perf_counter()
        resident = Resident(size)

        def copy(held: Resident) -> Future[None]:
            resident.arrive(self.incoming, lambda: self._copy(held, size, asked))
            return resident.event

        if self.neighbours.borrow(key, copy):
            self.neighbour_bytes += size
        else:
            resident.arrive(self.incoming, lambda: self._upload(matrix, size, asked))
        self.came[key[0]][0] += 1
        self.came[key[0]][1] += size
        self.neighbours.add(key, self.number, resident)
        return resident

    def _upload(self, matrix: Callable[[], Array], size: int, asked: float) -> Any:
        with self._pace_in.taking(size, asked):
            return self.library.upload(matrix(), self.number)

    def _copy(self, held: Resident, size: int, asked: float) -> Any:
        with self._pace_in.taking(size, asked):
            return self.library.copy(held.array, self.number)

    def make(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int, queue: int) -> Resident:
        """Zeros for a result block, made by the queue that will add to it."""
        self.account.take(size, f"A result block on device {self.number}")
        resident = Resident(size)
        resident.arrive(self.computing[queue], lambda: self.library.zeros(shape, dtype, self.number))
        return resident

    def send(self, result: Resident, take: Callable[[Array], None], after: Iterable[Future[Any]]) -> Future[Any]:
        """Bring a finished result block back, hand it to `take`, and let it go."""

        def work() -> None:
            with self._pace_out.taking(result.size, time.perf_counter()):
                host = self.library.download(result.array)
            result.forget()
            self.account.give(result.size)
            take(host)
            self.out_bytes += result.size
            self.out_blocks += 1

        return self.outgoing.submit(work, after)

    def release(self, key: Key, resident: Resident) -> None:
        """Let a block go once everybody who reads it is done; waits for them."""
        self.neighbours.remove(key, self.number)
        for event in resident.readers:
            with suppress(BaseException):  # who reads it says what went wrong, or was cancelled
                event.result()
        resident.forget()
        self.account.give(resident.size)

    def close(self) -> None:
        """Stop all queues, all at once: an operation of one may wait for those of another."""
        queues = (self.incoming, self.outgoing, *self.computing)
        self._pace_in.stop()
        self._pace_out.stop()
        for queue in queues:
            queue.cancel()
        for queue in queues:
            queue.close()

    def level(self, projected_bytes: int) -> Level:
        """What was measured."""
        transfers = [*self.incoming.spans, *self.outgoing.spans]
        products = [span for queue in self.computing for span in queue.spans]
        return Level(
            name=DEVICES,
            number=self.number,
            capacity_bytes=self.account.budget,
            projected_bytes=projected_bytes,
            peak_bytes=self.account.peak,
            in_blocks=(self.came[0][0], self.came[1][0]),
            in_bytes=(self.came[0][1], self.came[1][1]),
            neighbour_bytes=self.neighbour_bytes,
            out_blocks=self.out_blocks,
            out_bytes=self.out_bytes,
            transfer_seconds=covered(transfers),
            compute_seconds=covered(products),
            overlap_seconds=shared(transfers, products),
        )
