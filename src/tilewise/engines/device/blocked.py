"""Running a product on devices by holds and chunks, see `tilewise.plans.devices`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewise.engines.device.drivers import Job, drive_all
from tilewise.engines.device.memory import Device, Resident
from tilewise.engines.device.queues import Queue
from tilewise.plans.devices import Blocked, Chunk, Hold

Copies = dict[int, Resident]
"""Blocks of one operand on a device."""


class BlockedRun:
    """One run by holds and chunks."""

    def __init__(self, job: Job, cut: Blocked) -> None:
        self.job, self.cut = job, cut

    def run(self) -> None:
        """Drive all devices at once; the first error ends the run."""
        drive_all(self.job.devices, self._drive, beside=lambda: None)

    def _drive(self, device: Device) -> None:
        state = _State(device)
        own = [hold for hold in self.cut.holds if hold.device == device.number]
        if self.cut.stays:
            self._stay(state, own)
            return
        for hold in own:
            begun = self._begin(state, hold)
            self._let_pass(state, hold, begun)
            self._end(device, begun)

    def _stay(self, state: _State, holds: Sequence[Hold]) -> None:
        """A few holds at a time, beside what came of the other operand."""
        there: Copies = {}
        under_way: list[_Begun] = []
        for hold in holds:
            if len(under_way) == self.cut.at_once:
                self._end(state.device, under_way.pop(0))
            under_way.append(self._begin(state, hold))
            for chunk in hold.chunks:
                self._multiply(state, chunk, under_way[-1], there)
            self._complete(state.device, hold, under_way[-1])
        for begun in under_way:
            self._end(state.device, begun)
        self._release(state.device, 1 - self.cut.stationary, there)

    def _begin(self, state: _State, hold: Hold) -> _Begun:
        """Make the results; what is held comes with the first product that needs it."""
        for block in hold.made.tolist():
            size = int(self.job.sizes[2][block])
            state.begin(block, size, self.job.sink.edges(block), self.job.plan.dtype)
        last = self._last_updates(hold)
        sent = [self._send(state, block) for block in hold.done.tolist() if block not in last]
        return _Begun({}, last, sent)

    def _let_pass(self, state: _State, hold: Hold, begun: _Begun) -> None:
        """Bring chunk after chunk, the next one while the present one is multiplied."""
        passing: list[Copies] = []
        for chunk in hold.chunks:
            if len(passing) == 2:
                self._release(state.device, 1 - self.cut.stationary, passing.pop(0))
            passing.append({})
            self._multiply(state, chunk, begun, passing[-1])
        self._complete(state.device, hold, begun)
        for copies in passing:
            self._release(state.device, 1 - self.cut.stationary, copies)

    def _multiply(self, state: _State, chunk: Chunk, begun: _Begun, streamed: Copies) -> None:
        """Hand in the updates of a chunk, and send results home after their last one.

        Blocks come in the order in which the products need them, so that the first ones wait for few.
        """
        pair = (begun.held, streamed) if self.cut.stationary == 0 else (streamed, begun.held)
        for update in range(chunk.begin, chunk.end):
            block = int(self.cut.target[update])
            self._update(state, block, update, pair)
            if begun.last.get(block) == update:
                begun.sent.append(self._send(state, block))
        for number in chunk.streamed.tolist():
            self._at_hand(state.device, 1 - self.cut.stationary, number, streamed)

    def _complete(self, device: Device, hold: Hold, begun: _Begun) -> None:
        """Bring what the plan holds and no product needed."""
        for block in hold.held.tolist():
            self._at_hand(device, self.cut.stationary, block, begun.held)

    def _end(self, device: Device, begun: _Begun) -> None:
        """Let go of what was held, once its results are home."""
        self._release(device, self.cut.stationary, begun.held)
        for event in begun.sent:
            event.result()

    def _last_updates(self, hold: Hold) -> dict[int, int]:
        """For each result block that leaves after this hold, the last update that it gets here."""
        if not hold.chunks:
            return {}
        begin, end = hold.chunks[0].begin, hold.chunks[-1].end
        leaving = np.isin(self.cut.target[begin:end], hold.done)
        updates = np.arange(begin, end)[leaving]
        return dict(zip(self.cut.target[updates].tolist(), updates.tolist(), strict=True))

    def _at_hand(self, device: Device, operand: int, block: int, copies: Copies) -> Resident:
        """A block that is on the device, or is now brought."""
        if block not in copies:
            copies[block] = self.job.bring(device, (operand, block))
        return copies[block]

    def _release(self, device: Device, operand: int, copies: Copies) -> None:
        for block, resident in copies.items():
            device.release((operand, block), resident)

    def _update(self, state: _State, block: int, update: int, pair: tuple[Copies, Copies]) -> None:
        """Hand in the products that a chunk adds to a result block."""
        begin, end = self.cut.ptr[update : update + 2].tolist()
        target, device = state.results[block], state.device
        lefts, rights = [], []
        for left, right in zip(self.cut.left[begin:end].tolist(), self.cut.right[begin:end].tolist(), strict=True):
            lefts.append(self._at_hand(device, 0, left, pair[0]))
            rights.append(self._at_hand(device, 1, right, pair[1]))
        factors = self.job.factors(lefts, rights)

        def work() -> None:
            array, add = target.array, device.library.add_product
            arrays = [(rows.array, cols.array) for rows, cols in zip(*factors, strict=True)]
            with device.account.holding(target.size, f"A product on device {device.number}"):
                for rows, cols in arrays:
                    add(array, rows, cols)
            self.job.tally.count(arrays)

        # After the update before it: if that failed, the result block is not to be sent home.
        needed = [state.latest[block], *(resident.event for resident in (*lefts, *rights))]
        event = state.queue(block).submit(work, needed)
        self.job.tally.begin()
        state.latest[block] = event
        for resident in (*lefts, *rights):
            resident.readers.append(event)

    def _send(self, state: _State, block: int) -> Future[Any]:
        result = state.results.pop(block)
        return self.job.send(state.device, block, result, [state.latest.pop(block)])


@dataclass(slots=True)
class _Begun:
    """A hold that is on a device."""

    held: Copies
    """Its blocks of the stationary operand."""
    last: dict[int, int]
    """The last update of each result block that leaves with it."""
    sent: list[Future[Any]]
    """Results on their way home."""


class _State:
    """What one device has begun."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.results: Copies = {}
        self.latest: dict[int, Future[Any]] = {}
        self._queue_of: dict[int, int] = {}
        self._loads = [0] * len(device.computing)

    def begin(self, block: int, size: int, edges: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Make a result block, in the queue that has the least to do."""
        queue = self._loads.index(min(self._loads))
        self._loads[queue] += size
        self._queue_of[block] = queue
        self.results[block] = self.device.make(edges, dtype, size, queue)
        self.latest[block] = self.results[block].event

    def queue(self, block: int) -> Queue:
        """The queue that adds to a result block, so that its products stay in order."""
        return self.device.computing[self._queue_of[block]]
