"""Explanations in a terminal, and plain text where there is none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import tilewise as tw
from tilewise.machine import Machine
from tilewise.reports import show
from tilewise.reports.host import EXTRAS, describe_host, host_report
from tilewise.reports.tables import print_report

SPACE = tw.Space([5, 6, 7], name="i")
PATTERN = tw.Pattern.dense((SPACE, SPACE))


def printed(item: tw.Plan | tw.Program, *, terminal: bool) -> str:
    stream = io.StringIO()
    show(item, Console(file=stream, force_terminal=terminal, width=100))
    return stream.getvalue()


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk,kl->il"])
def test_terminal_gets_tables_with_every_figure(text: str) -> None:
    item = tw.plan(text, *[PATTERN] * (text.count(",") + 1))
    drawn = printed(item, terminal=True)
    assert "\x1b[" in drawn
    for line in item.explain().splitlines():
        assert line.split("  ")[0].strip("-").strip() in drawn


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk,kl->il"])
def test_pipe_gets_the_plain_text(text: str) -> None:
    item = tw.plan(text, *[PATTERN] * (text.count(",") + 1))
    assert printed(item, terminal=False) == item.explain() + "\n"


def test_markup_in_names_is_not_obeyed() -> None:
    item = tw.plan("ij,jk->ik", PATTERN, PATTERN).on(
        Machine("[bold]box[/bold]", 1, ((4, 1.0),), 1.0, 1.0, is_measured=True)
    )
    assert "[bold]box[/bold]" in printed(item, terminal=True)


@pytest.mark.parametrize("terminal", [True, False])
def test_host_report_names_what_brings_a_missing_package(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setattr("tilewise.reports.host.version_of", lambda package: None)
    facts = describe_host(Machine.default())
    stream = io.StringIO()
    print_report(host_report(facts, None), Console(file=stream, force_terminal=terminal, width=200))
    for package, extra, _ in EXTRAS:
        assert package in stream.getvalue()
        assert f"pip install 'tilewise[{extra}]'" in stream.getvalue()
    assert "cautious guess" in stream.getvalue()
