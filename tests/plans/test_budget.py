"""Amounts of memory as people write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tilewise.plans.budget import free_memory, parse_memory


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (0, 0),
        (1000, 1000),
        (np.int64(7), 7),
        ("12", 12),
        ("4GB", 4 * 10**9),
        ("4 GiB", 4 * 2**30),
        ("1.5kB", 1500),
        ("2mb", 2 * 10**6),
        (" 3 TB ", 3 * 10**12),
        ("9" * 400 + "GB", 1 << 62),
        (1 << 100, 1 << 62),
    ],
)
def test_amounts(given: Any, size: int) -> None:
    assert parse_memory(given) == size


@pytest.mark.parametrize("given", ["4 Gb/s", "GB", "", "-1GB", -1, 1.5, True, "4 parsecs", [1], "nanGB"])
def test_what_is_no_amount_is_refused(given: Any) -> None:
    with pytest.raises(tw.InputError, match=r"is no amount of memory\. Expected bytes as an integer"):
        parse_memory(given)


def test_the_environment_gives_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_MEMORY", "10 kB")
    space = tw.Space([30] * 3)
    tensor = tw.random((space, space))
    with pytest.raises(tw.MemoryBudgetError, match="cannot run in 10000 bytes"):
        tw.einsum("ij,jk->ik", tensor, tensor)
    tw.einsum("ij,jk->ik", tensor, tensor, memory="10 MB")
    monkeypatch.setenv("TILEWISE_MEMORY", "much")
    with pytest.raises(tw.InputError, match="TILEWISE_MEMORY='much' is no amount of memory"):
        tw.einsum("ij,jk->ik", tensor, tensor)


def test_the_default_is_most_of_what_is_free() -> None:
    free = free_memory()
    assert 0.5 * free < parse_memory(None) < free * 1.1
