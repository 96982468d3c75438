"""A long run tells how far it has come."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tilewise.engines import progress
from tilewise.engines.progress import Progress


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports come so often that a run of a moment gives several."""
    monkeypatch.setattr(progress, "INTERVAL", 0.001)


def slow_operand(space: tw.Space) -> tw.BlockTensor:
    """Blocks that take a moment each."""

    def make(index: tuple[int, ...]) -> Any:
        threading.Event().wait(0.005)
        return np.ones([space.sizes[tile] for tile in index])

    return tw.from_function(make, (space, space))


OPTIONS = [("threads", {}), ("device", {"capacity": "1MB"})]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_run_in_phases_reports_up_to_its_end(name: str, options: dict[str, Any]) -> None:
    space = tw.Space([40] * 6)
    told: list[Progress] = []
    with tw.engine(name, progress=told.append, **options):
        plan = tw.plan("ij,jk->ik", tw.random((space, space)), slow_operand(space), memory="800KB")
        tw.execute(plan, tw.random((space, space)), slow_operand(space))
    assert isinstance(plan, tw.Plan)
    assert plan.runs[-1].phases > 1
    done = [report.done for report in told]
    assert done == sorted(done)
    assert any(0 < each < plan.flops for each in done)
    assert done[-1] == told[-1].total == plan.flops


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_run_at_once_reports_its_end(name: str, options: dict[str, Any]) -> None:
    space = tw.Space([40] * 6)
    told: list[Progress] = []
    with tw.engine(name, progress=told.append, **options):
        tw.einsum("ij,jk->ik", slow_operand(space), tw.random((space, space)))
    assert told[-1].done == told[-1].total == 2 * 240**3


def test_a_short_run_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 60.0)
    space = tw.Space([40] * 6)
    told: list[Progress] = []
    with tw.engine("threads", progress=told.append):
        tw.einsum("ij,jk->ik", tw.random((space, space)), tw.random((space, space)))
    assert told == []


def test_an_error_ends_the_reports() -> None:
    space = tw.Space([4])
    told: list[Progress] = []

    def fail(index: tuple[int, ...]) -> Any:
        raise ValueError("no integrals")

    with tw.engine("threads", progress=told.append), pytest.raises(tw.GeneratorError, match="no integrals"):
        tw.einsum("ij,jk->ik", tw.random((space, space)), tw.from_function(fail, (space, space)))
    assert all(report.done < report.total for report in told)
    assert not any(thread.name == "tilewise-progress" for thread in threading.enumerate())


def test_a_function_that_raises_does_not_lose_the_result() -> None:
    space = tw.Space([20] * 4)
    calls = []

    def fail(report: Progress) -> None:
        calls.append(report)
        raise OSError("the log is full")

    operand = tw.random((space, space))
    with tw.engine("threads", progress=fail), pytest.warns(RuntimeWarning, match="the log is full"):
        result = tw.einsum("ij,jk->ik", operand, slow_operand(space))
    assert np.allclose(result.to_dense(), operand.to_dense() @ np.ones((80, 80)))
    assert len(calls) == 1


def test_a_slow_function_does_not_hold_up_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    never = threading.Event()
    space = tw.Space([20] * 4)
    with tw.engine("threads", progress=lambda report: never.wait()):
        tw.einsum("ij,jk->ik", tw.random((space, space)), slow_operand(space))
    never.set()


def test_a_function_that_asks_to_exit_does_not_lose_the_result() -> None:
    space = tw.Space([20] * 4)

    def leave(report: Progress) -> None:
        raise SystemExit

    with tw.engine("threads", progress=leave), pytest.warns(RuntimeWarning, match="SystemExit"):
        tw.einsum("ij,jk->ik", tw.random((space, space)), slow_operand(space))


def test_what_cannot_be_called_is_refused() -> None:
    for name, options in OPTIONS:
        with (
            pytest.raises(tw.InputError, match="progress=True cannot be called"),
            tw.engine(name, progress=True, **options),
        ):
            pass


def test_a_report_is_a_line_with_the_time_left() -> None:
    assert str(Progress("ij,jk->ik", 25, 100, 10.0)) == "ij,jk->ik: 25 %, 10 s, about 30 s left"
    assert str(Progress("ij,jk->ik", 0, 100, 10.0)) == "ij,jk->ik: 0 %, 10 s"
    assert str(Progress("ij,jk->ik", 100, 100, 40.0)) == "ij,jk->ik: 100 %, 40 s"
