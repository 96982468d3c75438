"""The ``tilewise`` command: energy, transform, plan, doctor."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Sequence

from tilewise.cli import doctor, energy, plan, transform
from tilewise.cli.running import EXPECTED, Parser, exit_code, line_of, show_warning
from tilewise.reports.host import version_of

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    It is 0, 1 without memory, 2 for an error of the input, 3 if an iteration has not converged, 75 after a signal that
    the run can go on from, 130 after Ctrl-C.
    """
    args = _parser().parse_args(argv)
    args.command = shlex.join(["tilewise", *(sys.argv[1:] if argv is None else argv)])
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            code: int = args.run(args)
        sys.stdout.flush()
    except EXPECTED as error:
        print(line_of(error), file=sys.stderr)
        return exit_code(error)
    except BrokenPipeError:
        # Whoever read our output has closed it; nothing more can be said, not even by the interpreter's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="tilewise", description="Contractions of block-sparse tensors, planned first.")
    parser.add_argument(
        "--version", action="version", version=f"tilewise {version_of('tilewise') or '(not installed)'}"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (energy, transform, plan, doctor):
        command.add(commands)
    return parser
