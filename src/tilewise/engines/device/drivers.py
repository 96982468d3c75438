"""One thread for each device that hands in its operations, and what they add up to."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from tilewise.engines.device.memory import Device
from tilewise.plans import Plan


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
