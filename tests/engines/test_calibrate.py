"""Calibration: quick and coarse here, to see that every rate is measured and told."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilewise as tw
from tilewise.engines import calibrate as module
from tilewise.engines.blas import libraries, preferred_blas, scipy_blas
from tilewise.engines.calibrate import calibrate
from tilewise.machine import Machine
from tilewise.plans import inspector


def test_rates_are_measured_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EDGES", (4, 16))
    monkeypatch.setattr(module, "LARGE_EDGE", 400)
    monkeypatch.setattr(inspector, "GEMM_CELLS", 1)
    monkeypatch.setattr(module, "LARGEST_EXTENT", 128)
    monkeypatch.setattr(module, "PERMUTED_EXTENT", 16)
    monkeypatch.setattr(module, "COPIED_WORDS", 1 << 16)
    monkeypatch.setattr(module, "SECONDS_EACH", 0.0)
    lines: list[str] = []
    machine = calibrate(lines.append, workers=1)
    assert machine.is_measured
    assert machine.cores == 1
    assert [edge for edge, _ in machine.gemm_rates] == [4, 16, 400]
    assert machine.peak_rate > 0
    found = preferred_blas(machine)
    assert found in libraries()
    assert found.name == machine.blas
    for word in ("copy", "permutation", "blocks of 4:", *(library.name for library in libraries())):
        assert any(word in line for line in lines)


def test_libraries_are_compared_on_a_product_that_plans_leave_to_them() -> None:
    many, one = (tw.Space([module.LARGE_EDGE] * tiles) for tiles in (module.LARGE_BLOCKS, 1))
    plan = tw.plan("ik,kj->ij", tw.Pattern.dense((many, one)), tw.Pattern.dense((one, one)))
    assert isinstance(plan, tw.Plan)
    assert plan.kernel == "gemm"


def test_what_is_compared_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_EACH", 0.0)
    calls: list[str] = []
    assert len(module.best_seconds(lambda: calls.append("a"), lambda: calls.append("b"))) == 2
    assert "".join(calls) == "ab" * 4


def test_library_is_found_again_after_an_update() -> None:
    (name, *_) = (library.name for library in libraries())
    older = replace(Machine.default(), is_measured=True, blas=f"{name.split(' ')[0]} 0.0.1")
    assert preferred_blas(older).name == name
    assert preferred_blas(Machine.default()) is scipy_blas()
