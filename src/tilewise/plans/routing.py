"""Who computes which result block where devices and the workers of this computer share a product (TESSE 2018, V.B)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.errors import MemoryBudgetError
from tilewise.plans.devices import Devices, Products, block_bytes, bound_bytes, least_capacity, list_products
from tilewise.plans.plan import Plan
from tilewise.plans.work import Product

Ints = npt.NDArray[np.int64]

HOST = -1
"""The place of result blocks that the workers of this computer compute."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What routing weighs."""

    host: float
    """GF/s of the workers of this computer together; 0 leaves everything to the devices."""
    device: float
    """GF/s of each device."""
    transfer: float
    """GB/s of transfers to and from a device."""


@dataclass(frozen=True, slots=True)
class Cached:
    """A product on devices whose memory is a cache: who computes which result block."""

    devices: Devices
    """What it was planned for."""
    place: Ints
    """The place of each result block: the number of a device, or `HOST`."""
    flops: int
    """Floating-point operations that the devices do; the rest is left to this computer."""
    products: int
    """Products that the devices do."""
    moved_bytes: int
    """Bytes that cross at the most: if nothing is ever found on a device."""
    out_bytes: int
    """Bytes of the result that leave the devices."""
    bound_bytes: int
    """Bytes that cross at the least, in any order of the same products."""

    @property
    def in_bytes(self) -> None:
        """What comes to the devices depends on what they evict."""

    @property
    def stages(self) -> int:
        """Everything is done in one go."""
        return 1

    @property
    def updates(self) -> int:
        """Result blocks that the devices compute."""
        return int((self.place != HOST).sum())

    @property
    def peak_bytes(self) -> int:
        """Most bytes on a device at a time."""
        return self.devices.capacity


def plan_cached(plan: Plan, devices: Devices, rates: Rates) -> Cached:
    """Share a product between devices and this computer, or say how much memory the devices need."""
    assert isinstance(plan.work, Product)
    least = least_capacity(plan)
    if least > devices.capacity:
        raise MemoryBudgetError(
            f"{plan.label} has two blocks that do not fit on a device with what they give. Their product needs {least} "
            f"bytes, a device has {devices.capacity}. Give that much with capacity=, or use smaller tiles.",
            devices.capacity,
            least,
        )
    place = route(plan, devices.count, rates)
    on_device = place != HOST
    flops = _chain_flops(plan, plan.work)
    found, (left, right, result) = list_products(plan.work), block_bytes(plan)
    own = on_device[found.target]
    out_bytes = int(result[on_device].sum())
    return Cached(
        devices=devices,
        place=place,
        flops=round(float(flops[on_device].sum())),
        products=int(own.sum()),
        moved_bytes=int(left[found.left[own]].sum() + right[found.right[own]].sum()) + out_bytes,
        out_bytes=out_bytes,
        bound_bytes=bound_bytes(plan, devices) if on_device.all() else out_bytes,
    )


def route(plan: Plan, count: int, rates: Rates) -> Ints:
    """The place of each result block: the number of a device, or `HOST`.

    Result blocks are taken in the order of the plan; each goes where it would be finished first, with what was given
    there before, what the place computes, and what it does not hold yet.  All products of a result block go to the
    place that updates it.
    """
    if not isinstance(plan.work, Product):
        raise TypeError("Only a product is shared with devices.")
    found, sizes = list_products(plan.work), block_bytes(plan)
    seen = [np.zeros((count, len(own)), np.bool_) for own in sizes[:2]]
    place = np.full(plan.result.nnz_blocks, HOST, np.int64)
    busy, host_busy = np.zeros(count), 0.0
    flops = _chain_flops(plan, plan.work)
    for block, begin, end in chains(found):
        lefts, rights = np.unique(found.left[begin:end]), np.unique(found.right[begin:end])
        missing = sum(
            (~own[:, blocks] * size[blocks]).sum(axis=1)
            for own, size, blocks in zip(seen, sizes[:2], (lefts, rights), strict=True)
        )
        moved = (missing + sizes[2][block]) / (1e9 * rates.transfer)
        ends = busy + np.maximum(flops[block] / (1e9 * rates.device), moved)
        on_host = host_busy + flops[block] / (1e9 * rates.host) if rates.host > 0 else np.inf
        best = int(np.argmin(ends))
        if on_host < ends[best]:
            host_busy = on_host
            continue
        place[block], busy[best] = best, ends[best]
        seen[0][best, lefts] = True
        seen[1][best, rights] = True
    return place


def chains(found: Products) -> list[tuple[int, int, int]]:
    """Each result block with the range of its products, in the order of the plan."""
    starts = np.flatnonzero(np.diff(found.target, prepend=-1))
    ends = np.append(starts, len(found.target))[1:]
    return list(zip(found.target[starts].tolist(), starts.tolist(), ends.tolist(), strict=True))


def _chain_flops(plan: Plan, work: Product) -> npt.NDArray[np.float64]:
    """Floating-point operations of each result block."""
    return np.bincount(work.cells.block, work.cells.flops, plan.result.nnz_blocks).astype(np.float64)
