"""Machine: its rules, its file, and what is used where there is none."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.errors import InputError
from tilewise.machine import Machine, cpu_model, host_caches, host_cores, host_memory, machine_folder

BOX = Machine(
    "box",
    cores=2,
    gemm_rates=((8, 2.0), (32, 8.0), (128, 16.0)),
    copy_rate=10.0,
    permute_rate=5.0,
    peak_rate=20.0,
    start_seconds=1e-4,
    memory_bytes=16 * 10**9,
    cache_bytes=(32768, 1 << 20, 1 << 25),
    blas="some BLAS 1.0",
    is_measured=True,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tilewise"


@pytest.mark.parametrize("edge", [1, 8, 20, 32, 100, 128, 5000])
def test_rate_lies_between_those_of_its_neighbours(edge: int) -> None:
    rates = dict(BOX.gemm_rates)
    below = max((e for e in rates if e <= edge), default=8)
    above = min((e for e in rates if e >= edge), default=128)
    assert rates[below] <= BOX.gemm_rate(edge) <= rates[above]


@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=5))
def test_rate_of_an_array_is_that_of_its_entries(edges: list[float]) -> None:
    assert BOX.gemm_rate(edges).tolist() == [float(BOX.gemm_rate(edge)) for edge in edges]
    assert np.all(np.diff(BOX.gemm_rate(sorted(edges))) >= 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gemm_rates": ()}, "at least one GEMM rate"),
        ({"copy_rate": 0.0}, "positive and finite"),
        ({"gemm_rates": ((8, float("inf")),)}, "positive and finite"),
        ({"gemm_rates": ((8, 1.0), (8, 2.0))}, "must ascend"),
        ({"gemm_rates": ((0, 1.0), (8, 2.0))}, "must ascend"),
        ({"cores": 0}, "One core or more"),
        ({"cache_bytes": (-1,)}, "One core or more"),
    ],
)
def test_wrong_figures_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(BOX, **change)


def test_saved_machine_is_loaded_by_path_and_by_name(tmp_path: Path, cache: Path) -> None:
    assert Machine.load(BOX.save(tmp_path / "elsewhere.json")) == BOX
    BOX.save(cache / "cluster.json")
    assert Machine.load("cluster") == BOX
    with pytest.raises(InputError, match=r"no machine 'summat'.*default, cluster"):
        Machine.load("summat")


def test_this_computer_has_a_file_once_it_is_saved(cache: Path) -> None:
    assert not Machine.measured().is_measured
    path = BOX.save()
    assert path == Machine.host_file()
    assert path.parent == cache
    assert Machine.measured() == BOX


def test_without_the_variable_the_file_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert machine_folder() == tmp_path / ".cache" / "tilewise"


def content(**changes: Any) -> str:
    return json.dumps({"version": 1, **json.loads(json.dumps(BOX_ENTRIES)), **changes})


BOX_ENTRIES = {name: getattr(BOX, name) for name in BOX.__dataclass_fields__}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        content(version=7),
        content(extra=1),
        content(cores="two"),
        content(cores=1.5),
        content(copy_rate=True),
        content(copy_rate=-1),
        content(gemm_rates=[[1, 2, 3]]),
        content(gemm_rates=None),
        content(name=3),
        content().replace('"blas"', '"blast"'),
        content()[:-20],
    ],
)
def test_damaged_file_is_an_error_or_a_warning_that_names_the_remedy(text: str) -> None:
    path = Machine.host_file()
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="tilewise doctor"):
        Machine.load(path)
    with pytest.warns(UserWarning, match="tilewise doctor"):
        found = Machine.measured()
    assert not found.is_measured


def test_interrupted_write_leaves_the_old_file_and_nothing_else(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    BOX.save()

    def fail(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        replace(BOX, name="other").save()
    assert Machine.measured() == BOX
    assert [path.name for path in cache.iterdir()] == [Machine.host_file().name]


def test_default_knows_the_computer_but_says_that_it_was_not_measured() -> None:
    machine = Machine.load("default")
    assert machine == Machine.default()
    assert machine.cores == host_cores() >= 1
    assert machine.memory_bytes == host_memory()
    assert machine.cache_bytes == host_caches()
    assert machine.near_bytes > 0
    assert cpu_model()
