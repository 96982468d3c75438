"""Signals that end a run at a safe place, on one process and on ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engines.processes import ranks, source_environment
from tilewise.chemistry.interrupts import SIGNALS, catching_signals, stopping_at_signals
from tilewise.errors import Interrupted


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_is_noted_and_raised_at_the_next_check(name: str) -> None:
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with catching_signals() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), number)
        assert interrupts.received == name
        with pytest.raises(Interrupted, match=rf"The signal {name} came\. .* Start it again to go on") as caught:
            interrupts.check()
        assert caught.value.signal == name
    assert signal.getsignal(number) is before


def test_handlers_come_back_after_an_error_and_nest() -> None:
    def own(number: int, frame: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGTERM, own)
    try:
        with pytest.raises(ZeroDivisionError), catching_signals():
            raise ZeroDivisionError
        assert signal.getsignal(signal.SIGTERM) is own
        with catching_signals() as outer:
            with catching_signals() as inner:
                os.kill(os.getpid(), signal.SIGTERM)
                with pytest.raises(Interrupted):
                    inner.check()
            outer.check()
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(Interrupted):
                outer.check()
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_after_the_last_check_goes_to_whoever_had_it_before() -> None:
    with catching_signals() as outer:
        with catching_signals():
            os.kill(os.getpid(), signal.SIGUSR1)
        with pytest.raises(Interrupted, match="SIGUSR1"):
            outer.check()


def test_after_an_error_nothing_is_handed_on() -> None:
    def fail() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), catching_signals():
        fail()


def test_other_threads_catch_nothing() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with catching_signals() as interrupts:
            found.append((signal.getsignal(signal.SIGTERM), interrupts.received))
            interrupts.check()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(before, None)]


def test_a_platform_without_the_second_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGUSR1")
    with catching_signals() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM"):
            interrupts.check()


def test_a_run_with_a_checkpoint_stops_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    message = r"SIGTERM came before the run had ended\. .* it goes on from the cycles that .*run\.h5 has"
    with pytest.raises(Interrupted, match=message) as caught, stopping_at_signals(tmp_path / "run.h5"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.signal == "SIGTERM"
    with stopping_at_signals(None):
        assert signal.getsignal(signal.SIGTERM) is before
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    "catching", [catching_signals, partial(stopping_at_signals, Path("run.h5"))], ids=["noting", "stopping"]
)
def test_a_handler_that_python_did_not_install(
    catching: Callable[[], AbstractContextManager[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`signal.signal` answers None then, which it does not take back."""
    given, install = [], signal.signal

    def hide(number: int, handler: Any) -> None:
        given.append(handler)
        install(number, handler)

    monkeypatch.setattr(signal, "signal", hide)
    with catching():
        pass
    assert given[2:] == [signal.SIG_DFL] * 2


OUTSIDE = """
import os, signal
from tilewise.chemistry.interrupts import catching_signals

with catching_signals():
    {inside}
{outside}
print("still here")
"""
SENT = "os.kill(os.getpid(), signal.SIGUSR1)"


@pytest.mark.parametrize("parts", [{"inside": "pass", "outside": SENT}, {"inside": SENT, "outside": "pass"}], ids=str)
def test_outside_a_signal_ends_the_process_as_ever(parts: dict[str, str]) -> None:
    script = OUTSIDE.format(**parts)
    done = subprocess.run([sys.executable, "-c", script], env=source_environment(), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGUSR1, b"")


ON_RANKS = """
import os, signal, sys
import tilewise as tw
from tilewise.chemistry.interrupts import catching_signals
from tilewise.errors import Interrupted

with tw.engine("mpi", workers=1) as engine, catching_signals(engine) as interrupts:
    for step in range(10):
        if engine.rank == 1 and step == 4:
            os.kill(os.getpid(), signal.SIGUSR1)
        try:
            interrupts.check()
        except Interrupted as error:
            sys.stdout.write(f"rank {engine.rank} step {step} {error.signal}\\n")  # at once: lines of ranks mix
            break
"""


def test_a_signal_to_one_rank_stops_all_at_the_same_place() -> None:
    pytest.importorskip("mpi4py")
    done = ranks(3, "-c", ON_RANKS)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} step 4 SIGUSR1" for rank in range(3)], done.stderr
