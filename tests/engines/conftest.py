"""Fixtures of several modules of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines.nodes import device
from tilewise.engines.device.memory import Device, Neighbours
from tilewise.plans import sharing


@pytest.fixture
def share_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks share tensors and products of any size."""
    monkeypatch.setattr(sharing, "LEAST_FLOPS", 0)
    monkeypatch.setattr(sharing, "LEAST_BYTES", 0)


@pytest.fixture
def pair() -> Iterator[tuple[Device, Device]]:
    """Two devices of one node."""
    neighbours = Neighbours()
    both = device(0, 1000, neighbours), device(1, 1000, neighbours)
    yield both
    for each in both:
        each.close()
