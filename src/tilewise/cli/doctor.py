"""``tilewise doctor``: what this computer has and does."""

from __future__ import annotations

import argparse
import importlib.util
import json
from typing import TYPE_CHECKING

from tilewise.cli.running import say
from tilewise.machine import Machine
from tilewise.reports.host import describe_host, host_report
from tilewise.reports.tables import print_report

if TYPE_CHECKING:
    from tilewise.cli.running import Commands

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="what this computer has; measures its rates",
        description="What this computer has. Compiles the loops, measures its rates, which plans use to predict times, "
        "and stores them.",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--no-measure", action="store_true", help="measure nothing, show what is stored")
    parser.set_defaults(run=_doctor)


def _compile_chemistry() -> None:
    """Compile what coupled cluster needs, where it can be used."""
    if importlib.util.find_spec("pyscf") is not None:
        from tilewise.chemistry.first_use import compile_loops

        say("compiling the loops of coupled cluster, if this is their first use")
        compile_loops()


def _doctor(args: argparse.Namespace) -> int:
    from tilewise.engines.calibrate import calibrate

    if args.no_measure:
        machine, stored = Machine.measured(), None
    else:
        machine = calibrate(say)
        stored = machine.save()
        _compile_chemistry()
    facts = describe_host(machine)
    if args.json:
        print(json.dumps(facts | {"stored": str(stored) if stored else None}, indent=1))
        return 0
    print_report(host_report(facts, stored))
    return 0
