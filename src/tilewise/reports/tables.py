"""Explanations in a terminal: the tables of `plans.explain`, drawn by rich."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from tilewise.machine import Machine
from tilewise.plans import Plan, Program
from tilewise.plans.explain import Report, Table, plan_report, program_report, to_text


def show(item: Plan | Program, console: Console | None = None) -> None:
    """Print what a plan or program does and costs: coloured tables in a terminal, plain text elsewhere.

    Parameters
    ----------
    item : Plan or Program
        What `tilewise.plan` returned.
    console : rich.console.Console, optional
        Where to print; the standard output by default.
    """
    print_report(report_of(item), console)


def print_report(report: Report, console: Console | None = None) -> None:
    """Print tables: drawn by rich in a terminal, plain text elsewhere."""
    target = Console() if console is None else console
    if target.is_terminal:
        target.print(render(report))
    else:
        target.file.write(to_text(report) + "\n")


def report_of(item: Plan | Program) -> Report:
    """The tables of a plan or program."""
    if isinstance(item, Program):
        return program_report(item if item.steps[0].plan.machine is not None else item.on(Machine.measured()))
    return plan_report(item, Machine.measured() if item.machine is None else item.machine)


def render(report: Report) -> RenderableType:
    """A report as something rich can print."""
    notes = [Text(note, style="dim") for note in report.notes]
    return Group(Text(report.title, style="bold"), *map(_table, report.tables), *notes)


def _table(table: Table) -> RichTable:
    made = RichTable(title=table.caption, title_justify="left", title_style="italic", show_header=any(table.header))
    for number, title in enumerate(table.header):
        made.add_column(Text(title), justify="right" if number and table.figures else "left")
    for row in table.rows:
        made.add_row(*map(Text, row), style="dim" if row[0].startswith("  ") else None)
    return made
