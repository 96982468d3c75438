"""The device engine: products on devices with memory of their own, everything else on the workers of this computer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from tilewise.engines.blas import limit_blas
from tilewise.engines.device.blocked import BlockedRun
from tilewise.engines.device.cached import CachedRun
from tilewise.engines.device.drivers import Job
from tilewise.engines.device.libraries import load_library
from tilewise.engines.device.matrices import Sink, make_readers
from tilewise.engines.device.memory import Device, Neighbours
from tilewise.engines.progress import Tell, check_progress
from tilewise.engines.streaming import Call
from tilewise.engines.targets import make_target, scale_target
from tilewise.engines.threads import Hosted, ThreadsEngine
from tilewise.errors import InputError, MemoryBudgetError
from tilewise.plans import Plan, Product
from tilewise.plans.budget import parse_memory
from tilewise.plans.devices import Blocked, Devices, block_bytes, list_products, plan_blocked
from tilewise.plans.explain import plural_text
from tilewise.plans.routing import HOST, Cached, Rates, plan_cached
from tilewise.plans.steps import reinspected
from tilewise.spaces.integers import parse_count
from tilewise.tensors import BlockTensor
from tilewise.tensors.protocol import Scalar
from tilewise.trace import Trace

SCHEDULES = ("auto", "blocked", "cache")
"""What ``schedule=`` takes."""


class DeviceEngine(Hosted):
    """Runs products on devices.

    Parameters
    ----------
    capacity : int or str
        Memory of each device.
    devices : int
        How many there are.
    library : str
        What drives them: ``"cupy"`` or ``"torch"`` for CUDA devices; ``"numpy"`` and ``"array_api_strict"`` stand in
        for a device, with memory of this computer that is filled by real copies, limited and metered.
    queues : int
        Products that each device computes at once.
    bandwidth : float, optional
        GB/s that transfers in each direction are slowed down to.
    schedule : str
        ``"blocked"``: holds and chunks, see `tilewise.plans.devices`; ``"cache"``: the memory of a device as a cache;
        ``"auto"``: the first where the devices are large enough for it.
    stationary : int, optional
        Number of the operand of each product that is held; by default the one with which less crosses.
    host_rate, device_rate : float, optional
        GF/s of the workers of this computer and of each device.  With both, a plan without holds and chunks is shared
        between them; by default everything goes to the devices.
    workers : int, optional
        Threads for what devices do not do; all cores this process may use by default.
    progress : callable, optional
        Called every few seconds of a run with a `tilewise.engines.progress.Progress`; ``print`` writes a line each.
    """

    name = "device"

    def __init__(
        self,
        capacity: int | str | None = None,
        *,
        devices: int = 1,
        library: str = "numpy",
        queues: int = 2,
        bandwidth: float | None = None,
        schedule: str = "auto",
        stationary: int | None = None,
        host_rate: float | None = None,
        device_rate: float | None = None,
        workers: int | None = None,
        progress: Tell | None = None,
    ) -> None:
        self.host = ThreadsEngine(workers)
        self.progress = check_progress(progress)
        self.memory = self.host.memory
        self.library = load_library(library)
        if stationary is not None and (type(stationary) is not int or stationary not in (0, 1)):
            raise InputError(
                f"stationary={stationary!r} is no operand of a product. Expected 0, 1 or None. Correct it."
            )
        if capacity is None:
            raise InputError(
                "The device engine was not told how much memory a device has. Expected capacity=. Pass it, such as "
                "tw.engine('device', capacity='8GB')."
            )
        self.devices = Devices(
            count=parse_count("devices", devices, "devices"),
            capacity=parse_memory(capacity, "capacity"),
            queues=parse_count("queues", queues, "queues"),
            stationary=stationary,
        )
        self.bandwidth = _rate("bandwidth", bandwidth)
        if not isinstance(schedule, str) or schedule not in SCHEDULES:
            raise InputError(
                f"schedule={schedule!r} is unknown. Expected one of {', '.join(SCHEDULES)}. Correct the name."
            )
        self.schedule = schedule
        host, own = _rate("host_rate", host_rate), _rate("device_rate", device_rate)
        if (host is None) != (own is None):
            raise InputError(
                f"host_rate={host_rate!r} and device_rate={device_rate!r} do not say how to share. Expected both or "
                "none. Give the rates of this computer and of a device."
            )
        shared = host is not None and own is not None
        self.rates = Rates((host if shared else None) or 0.0, own or 1.0, self.bandwidth or 1.0)

    def prepare(self, plan: Plan) -> Plan:
        """The plan with its products on the devices, cut to fit them."""
        if not isinstance(plan.work, Product) or plan.kernel == "loops":
            return plan
        if plan.kernel != "device":
            plan = reinspected(plan, plan.dtype, on_devices=True)
        if plan.kernel == "device" and not self._suits(plan.placement):
            placement = self._place(plan)
            plan = replace(plan, placement=placement, packed_bytes=self._host_bytes(plan, placement))
        return plan

    def _suits(self, placement: Blocked | Cached | None) -> bool:
        """Whether a product was placed for these devices, in a way that the schedule allows."""
        if placement is None or placement.devices != self.devices:
            return False
        return isinstance(placement, {"auto": object, "blocked": Blocked, "cache": Cached}[self.schedule])

    def _place(self, plan: Plan) -> Blocked | Cached:
        """Holds and chunks where they fit, unless the memory of the devices is to be a cache."""
        if self.schedule != "cache":
            try:
                return plan_blocked(plan, self.devices)
            except MemoryBudgetError:
                if self.schedule == "blocked":
                    raise
        return plan_cached(plan, self.devices, self.rates)

    def _host_bytes(self, plan: Plan, placement: Blocked | Cached) -> int:
        """Memory of this computer besides the result.

        Blocks are permuted before they go and added after they came; what is shared with this computer is packed.
        """
        left, right, result = (int(sizes.max(initial=0)) for sizes in block_bytes(plan))
        staging = self.devices.count * (2 * max(left, right) + 4 * result)
        if isinstance(placement, Cached) and HOST in placement.place:
            own = self.host.prepare(plan)
            staging += own.packed_bytes + own.worker_bytes * self.workers
        return staging

    def run_resident(self, call: Call) -> tuple[BlockTensor, Trace]:
        """Run a plan, or the part of one, whose operands are in memory."""
        plan = self.prepare(call.plan)
        if plan.kernel != "device":
            return self.host.run_resident(replace(call, plan=plan))
        assert isinstance(plan.work, Product)
        begin = time.perf_counter()
        target = make_target(self, self.memory, plan, call.out, call.account)
        scale_target(target, call.beta)
        factor = plan.dtype.type(call.alpha if plan.dtype.kind == "c" else complex(call.alpha).real)
        sink = Sink(plan.result, plan.work.result, target, factor)
        with ExitStack() as stack:
            if call.account is not None:
                stack.enter_context(call.account.holding(plan.packed_bytes, "Blocks on their way to a device and back"))
            stack.enter_context(limit_blas())
            job = Job(plan, self._devices(stack), make_readers(plan, plan.work, call.operands), sink)
            with call.watch.following(lambda: job.tally.flops):
                self._compute(job, plan.work, call.operands, call.alpha)
            levels = tuple(device.level(_projected(plan, device)) for device in job.devices)
        target.finish(sink.squares, call.beta)
        return target.tensor, Trace(
            label=plan.label,
            seconds=time.perf_counter() - begin,
            packing_seconds=0.0,
            flops=job.tally.flops,
            tasks=job.tally.updates,
            calls=job.tally.products,
            workers=self.devices.count,
            buffer_bytes=target.tensor.nbytes + plan.packed_bytes,
            library=f"{self.library.name} on {plural_text(self.devices.count, 'device')}",
            levels=levels,
        )

    def _devices(self, stack: ExitStack) -> list[Device]:
        """The devices, their queues running until the end of the stack."""
        neighbours, made = Neighbours(), []
        for number in range(self.devices.count):
            made.append(
                Device(number, self.library, self.devices.capacity, self.devices.queues, self.bandwidth, neighbours)
            )
            stack.callback(made[-1].close)
        return made

    def _compute(self, job: Job, work: Product, operands: Sequence[BlockTensor], alpha: Scalar) -> None:
        """Run a job by its placement; what is left to this computer is done meanwhile."""
        plan, sink, placement = job.plan, job.sink, job.plan.placement
        if isinstance(placement, Blocked):
            BlockedRun(job, placement).run()
            return
        assert placement is not None
        mine = placement.place == HOST

        def beside() -> None:
            if mine.any():
                own = self.host.prepare(plan)
                squares, counts = self.host.add_blocks(own, operands, sink.target, alpha, mine, None)
                sink.squares[mine] = squares[mine]  # those of the devices are written at the same time
                job.tally.add(*counts.tolist())

        CachedRun(job, list_products(work), placement.place, beside).run()


def _projected(plan: Plan, device: Device) -> int:
    """Most bytes that a device would hold."""
    if not isinstance(plan.placement, Blocked):
        return device.account.budget
    return max((hold.peak_bytes for hold in plan.placement.holds if hold.device == device.number), default=0)


def _rate(name: str, value: Any) -> float | None:
    if value is None:
        return None
    known = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not known or not 0 < value < np.inf:
        raise InputError(f"{name}={value!r} is no rate. Expected a positive number, or None. Correct it.")
    return float(value)
