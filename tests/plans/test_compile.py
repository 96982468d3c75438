"""Loops are compiled also where nothing can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilewise.plans import compile as module


def test_a_folder_that_takes_no_files_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def njit(**options: Any) -> Callable[[Any], Any]:
        asked.append(options.get("cache", False))
        if asked[-1]:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(module, "njit", njit)
    assert module.compiled(len) is len
    assert asked == [True, False]
