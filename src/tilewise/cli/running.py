"""What the commands have in common: how they are parsed, run on an engine, and end."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import tilewise as tw
from tilewise.errors import ConvergenceError, Interrupted, NonFiniteError, TilewiseError
from tilewise.plans.explain import plural_text
from tilewise.tensors import Engine

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]

WRONG = 2
"""Exit code after an error of the input."""

UNCONVERGED = 3
"""Exit code after an iteration that has not converged."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

EXPECTED = (TilewiseError, KeyboardInterrupt, MemoryError)
"""What ends the command with a line, not with a traceback."""

GOES_ON = 75
"""Exit code after a signal that the run can go on from: EX_TEMPFAIL, "try again" to a batch system."""

CODES = (
    (KeyboardInterrupt, INTERRUPTED),
    (Interrupted, GOES_ON),
    ((ConvergenceError, NonFiniteError), UNCONVERGED),
    (TilewiseError, WRONG),
)
"""Exit codes of errors; the first that suits is taken."""

RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
"""Variables in which launchers say which rank a process is."""

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Variables in which launchers say how many processes they have started."""

ASSIGNED = "auxbasis|basis|charge|checkpoint|frozen|integrals|memory|reproducible|schedule|scratch|tile|tol|workers"
"""Keywords that are options too, but also words: in a message they are meant where ``=`` follows."""

NAMED = "cholesky_tol|conv_tol_normt|conv_tol|diis_space|iterative_damping|max_cycle"
"""Keywords that are options too, and nothing else."""

SHARED = "spin"
"""Keywords of PySCF and of files too: options where a message begins with them or names them without a value."""

BARE = r"=(?![\w'\[-])"
"""An ``=`` that no value follows."""

KEYWORD = re.compile(
    rf"(?<![\w./=-])(?:({ASSIGNED})(?==)|({NAMED})(?![\w/-]|\.\w)|^({SHARED})(?==)|({SHARED})(?={BARE}))({BARE})?"
)
"""One of these in a message, with such an ``=``."""


def rank_text() -> str:
    """Which rank a launcher says that this process is."""
    return next((os.environ[name] for name in RANKS if name in os.environ), "0")


class Parser(argparse.ArgumentParser):
    """Answers wrong usage with one line, of the first rank."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end."""
        line = f"tilewise: {message}. Run `{self.prog} --help` for what is expected.\n"
        self.exit(WRONG, line if rank_text() == "0" else "")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The parser of a subcommand leaves what it does not know to its parent, whose help does not list it."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


@contextmanager
def engine_of(args: argparse.Namespace) -> Iterator[Engine]:
    """The engine that was asked for; an error on one of its ranks ends all, with one line where it is of the input."""
    options = {} if args.workers is None else {"workers": args.workers}
    with tw.engine(args.engine, **options) as engine:
        try:
            yield engine
        except EXPECTED as error:
            engine.abandon(SystemExit(exit_code(error)), line_of(error))
            if engine.ranks > 1:  # a launcher that ends already has not ended us, but all is said
                os._exit(exit_code(error))
            raise
        except BaseException as error:
            engine.abandon(error)
            raise


def tell_ranks(args: argparse.Namespace, engine: Engine) -> None:
    """Say so if a launcher and the engine do not belong together."""
    copies = max((int(os.environ[name]) for name in SIZES if os.environ.get(name, "").isdecimal()), default=1)
    if args.engine != "mpi" and copies > 1 and rank_text() == "0":
        say(f"tilewise: {copies} copies of this job run, each by itself. Add --engine mpi to share the work.")
    if args.engine == "mpi" and engine.ranks == 1:
        say("tilewise: --engine mpi has one rank. Start the command with mpiexec -n 4, say, for more.")
    if engine.ranks > 1 and engine.rank == 0:
        say(f"{engine.ranks} ranks, {plural_text(engine.workers, 'worker')} on each")


def with_options(text: str) -> str:
    """A message with keywords of Python as the options that they are here: ``--max-cycle=3`` for ``max_cycle=3``."""
    return KEYWORD.sub(lambda found: f"--{next(filter(None, found.groups())).replace('_', '-')}", text)


def line_of(error: BaseException) -> str:
    """What is wrong, in one line."""
    if isinstance(error, KeyboardInterrupt):
        return f"tilewise: {error}" if error.args else "tilewise: interrupted"
    if isinstance(error, TilewiseError):
        return f"tilewise: {' '.join(with_options(str(error)).split())}"
    remedy = "Give less with --memory where the command has it, or take a smaller problem."
    return f"tilewise: not enough memory ({error}). {remedy}"


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning in one line, without the place in the code that it comes from."""
    say(f"tilewise: {' '.join(with_options(str(message)).split())}")


def exit_code(error: BaseException) -> int:
    """What the command ends with after an error."""
    for kind, code in CODES:
        if isinstance(error, kind):
            return code
    return 1


def say_nothing(line: str) -> None:
    """One rank tells for all."""


def say(line: str) -> None:
    """One line of progress, where it does not mix with the result."""
    print(line, file=sys.stderr, flush=True)
