"""One thread for each device that hands in its operations, and what they add up to."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from tilewise.engines.device.matrices import Reader, Sink
from tilewise.engines.device.memory import Device, Key, Resident
from tilewise.plans import Plan, Product
from tilewise.plans.devices import block_bytes


class Tally:
    """Counts what the devices did."""

    def __init__(self, plan: Plan) -> None:
        self.flops = self.products = self.updates = 0
        self._factor = 8 if plan.dtype.kind == "c" else 2
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Note an update that was handed in."""
        with self._lock:
            self.updates += 1

    def add(self, updates: int, products: int, flops: int) -> None:
        """Note what this computer did itself."""
        with self._lock:
            self.updates += updates
            self.products += products
            self.flops += flops

    def count(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Note products of matrices, or of stacks of them."""
        multiplications = sum(math.prod(left.shape) * int(right.shape[-1]) for left, right in pairs)
        with self._lock:
            self.products += len(pairs)
            self.flops += self._factor * multiplications


class Job:
    """One run of one plan on devices.

    Parameters
    ----------
    plan : Plan
        What is computed.
    devices : sequence of Device
        Who computes.
    readers : tuple of Reader
        Where the blocks of the operands come from.
    sink : Sink
        Where the result goes.
    """

    def __init__(self, plan: Plan, devices: Sequence[Device], readers: tuple[Reader, Reader], sink: Sink) -> None:
        self.plan, self.devices, self.readers, self.sink = plan, devices, readers, sink
        self.sizes = block_bytes(plan)
        self.tally = Tally(plan)
        self._swapped = isinstance(plan.work, Product) and plan.work.swapped

    def factors(self, left: Any, right: Any) -> tuple[Any, Any]:
        """What belongs to the operands, as rows and columns of the product."""
        return (right, left) if self._swapped else (left, right)

    def bring(self, device: Device, key: Key) -> Resident:
        """Begin to bring a block to a device."""
        operand, block = key
        return device.bring(key, int(self.sizes[operand][block]), partial(self.readers[operand].matrix, block))

    def send(self, device: Device, block: int, result: Resident, after: Sequence[Future[Any]]) -> Future[Any]:
        """Begin to bring a finished result block home."""
        return device.send(result, partial(self.sink.add, block), after)


def drive_all(devices: Sequence[Device], drive: Callable[[Device], None], beside: Callable[[], None]) -> None:
    """Drive every device in a thread of its own and do something `beside`, until all is done.

    An error or an interrupt stops them all.
    """
    first: list[BaseException] = []

    def watched(device: Device) -> None:
        try:
            drive(device)
        except BaseException as error:
            first.append(error)
            raise

    with ThreadPoolExecutor(len(devices), thread_name_prefix="tilewise-drive") as drivers:
        futures = [drivers.submit(watched, device) for device in devices]
        try:
            beside()
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            # Whoever is still at work finds the queues closed: after an interrupt, and after an error elsewhere.
            if first or not all(future.done() for future in futures):
                for device in devices:
                    device.close()
    if first:
        raise first[0]
