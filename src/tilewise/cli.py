"""The ``tilewise`` command: energy, transform, plan, doctor."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

import tilewise as tw
from tilewise.errors import ConvergenceError, InputError, Interrupted, NonFiniteError, TilewiseError
from tilewise.machine import Machine
from tilewise.plans.budget import parse_memory
from tilewise.reports.energy_page import EnergyPage, versions, write_energy_page
from tilewise.reports.host import describe_host, host_report, version_of
from tilewise.reports.live import Progress
from tilewise.reports.outputs import check_file, check_report, write_json
from tilewise.reports.tables import print_report, show
from tilewise.tensors import Engine
from tilewise.tensors.drafts import parse_scratch

if TYPE_CHECKING:
    from tilewise.chemistry.chkfile import SavedMeanField
    from tilewise.chemistry.energy import Calculation, EnergyResult

    _Commands = argparse._SubParsersAction["_Parser"]
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


class _Parser(argparse.ArgumentParser):
    """Answers wrong usage with one line, of the first rank."""

    def error(self, message: str) -> NoReturn:
        rank = next((os.environ[name] for name in RANKS if name in os.environ), "0")
        line = f"tilewise: {message}. Run `{self.prog} --help` for what is expected.\n"
        self.exit(WRONG, line if rank == "0" else "")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The parser of a subcommand leaves what it does not know to its parent, whose help does not list it."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    It is 0, 1 without memory, 2 for an error of the input, 3 if an iteration has not converged, 75 after a signal that
    the run can go on from, 130 after Ctrl-C.
    """
    args = _parser().parse_args(argv)
    args.command = shlex.join(["tilewise", *(sys.argv[1:] if argv is None else argv)])
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except EXPECTED as error:
        print(_line(error), file=sys.stderr)
        return _exit_code(error)
    except BrokenPipeError:
        # Whoever read our output has closed it; nothing more can be said, not even by the interpreter's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tilewise", description="Contractions of block-sparse tensors, planned first.")
    parser.add_argument(
        "--version", action="version", version=f"tilewise {version_of('tilewise') or '(not installed)'}"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_energy(commands)
    _add_transform(commands)
    _add_plan(commands)
    _add_doctor(commands)
    return parser


# tilewise energy

KEYWORDS = (
    *("integrals", "auxbasis", "memory", "scratch", "tile"),
    *("checkpoint", "reproducible", "max_cycle", "conv_tol", "conv_tol_normt", "diis_space", "force"),
)
"""Flags that methods take as keywords of the same name; None if they were not given."""

EXITS = """
exit codes:
  0    done
  1    not enough memory
  2    the input is wrong; one line says what to do
  3    the amplitudes have not converged; one line says why and what to try
  75   with --checkpoint, stopped by SIGTERM or SIGUSR1; the same command goes on from there
  130  stopped by Ctrl-C

examples:
  tilewise energy mol.xyz --basis cc-pvdz --method ccsd --frozen core --memory 8GB --report out
  tilewise energy mf.chk --method "ccsd(t)" --checkpoint run.h5
  mpiexec -n 4 tilewise energy mol.xyz --method ccsd --engine mpi
"""


def _add_energy(commands: _Commands) -> None:
    parser = commands.add_parser(
        "energy",
        help="energy of a molecule",
        description="Correlation energy of a closed-shell molecule, with progress on the standard error.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "input",
        type=Path,
        metavar="INPUT",
        help="an .xyz file with coordinates in Angstrom, a checkpoint of PySCF, or an FCIDUMP file",
    )
    _add_molecule_options(parser.add_argument_group("what is computed"))
    _add_run_options(parser.add_argument_group("how it is run"))
    _add_cycle_options(parser.add_argument_group("methods that iterate"))
    results = parser.add_argument_group("results")
    results.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file as well")
    results.add_argument("--report", type=Path, metavar="DIR", help="write a page with pictures, DIR/index.html")
    results.add_argument("--explain", action="store_true", help="print the plan as well, with measured times")
    results.add_argument("--plan", action="store_true", help="say what would be done, and stop")
    parser.set_defaults(run=_energy)


def _add_molecule_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--basis", help="basis set for an .xyz file (default: cc-pvdz)")
    group.add_argument("--method", default="mp2", help="mp2, drccd, ccd, ccsd or ccsd(t) (default: %(default)s)")
    group.add_argument(
        "--frozen",
        metavar="N|LIST|core",
        help="orbitals that are not correlated: the N lowest, a list such as 0,1,25, or the usual core",
    )
    group.add_argument("--charge", type=int, help="total charge for an .xyz file (default: 0)")
    group.add_argument("--spin", type=int, default=0, help="unpaired electrons: 0, shells have to be closed")
    group.add_argument(
        "--symmetry", action=argparse.BooleanOptionalAction, default=True, help="use the point group (default: yes)"
    )
    group.add_argument("--integrals", metavar="KIND", help="exact, df (density fitting) or cholesky (default: exact)")
    group.add_argument("--auxbasis", metavar="NAME", help="auxiliary basis set for --integrals df")


def _add_run_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--memory", metavar="SIZE", help="most that may be held, such as 8GB (default: 80 %% of free)")
    group.add_argument("--scratch", type=Path, metavar="DIR", help="folder for what does not fit")
    group.add_argument("--tile", type=int, metavar="N", help="about how many orbitals a tile holds")
    group.add_argument("--engine", choices=("threads", "mpi"), default="threads", help="mpi: under mpiexec")
    group.add_argument("--workers", type=int, metavar="N", help="threads (default: all cores)")


def _add_cycle_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="keep each cycle, so that the same command goes on from there"
    )
    group.add_argument(
        "--reproducible", action="store_true", default=None, help="the same bits for any number of workers and ranks"
    )
    group.add_argument("--max-cycle", type=int, metavar="N", help="most cycles (default: 50)")
    group.add_argument("--conv-tol", type=float, metavar="E", help="change of the energy, hartree (default: 1e-7)")
    group.add_argument("--conv-tol-normt", type=float, metavar="T", help="norm of the step (default: 1e-5)")
    group.add_argument("--diis-space", type=int, metavar="N", help="amplitudes that DIIS combines (default: 6)")
    group.add_argument(
        "--force", action="store_true", default=None, help="(T) of amplitudes that have not converged, too"
    )


def _energy(args: argparse.Namespace) -> int:
    from tilewise.chemistry.interrupts import stopping_at_signals

    with _ranks(args) as engine, stopping_at_signals(args.checkpoint):
        if not args.plan:
            engine.agree(lambda: _check_outputs(args), once=True)
        with Progress() if engine.rank == 0 else nullcontext() as progress:
            job = _prepare(args, progress)
            if args.plan:
                explanation = job.explanation
            else:
                result = job.run()
                # The plans in it are those of this engine, and making one is work of all ranks together.
                page = None if args.report is None else _page(args, job, result)
    if engine.rank != 0:
        return 0 if args.plan or result.converged else UNCONVERGED
    if args.plan:
        print(explanation)
        return 0
    _print_energy(args, result)
    _write_results(args, result, page)
    if result.converged:
        return 0
    print(f"tilewise: {result.reason}", file=sys.stderr)
    return UNCONVERGED


def _prepare(args: argparse.Namespace, progress: Progress | None) -> Calculation:
    from tilewise.chemistry.energy import prepare

    job = prepare(
        args.input,
        method=args.method,
        basis=args.basis,
        frozen=_parse_frozen(args.frozen),
        charge=args.charge,
        spin=args.spin,
        symmetry=args.symmetry,
        progress=_say_nothing if progress is None else progress.tell,
        **{name: getattr(args, name) for name in KEYWORDS},
    )
    if progress is not None and hasattr(job.method, "callback"):
        job.method.callback, progress.limits = progress.note, job.limits
    return job


def _parse_frozen(text: str | None) -> int | list[int] | str | None:
    """A number of orbitals, a list of them, or a word."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.lstrip("-").isdecimal() for word in words):
        return text.strip().lower()
    return [int(word) for word in words] if "," in text else int(words[0])


@contextmanager
def _ranks(args: argparse.Namespace) -> Iterator[Engine]:
    """The engine that was asked for; an error on one of its ranks ends all, with one line where it is of the input."""
    options = {} if args.workers is None else {"workers": args.workers}
    with tw.engine(args.engine, **options) as engine:
        try:
            yield engine
        except EXPECTED as error:
            engine.abandon(SystemExit(_exit_code(error)), _line(error))
            if engine.ranks > 1:  # a launcher that ends already has not ended us, but all is said
                os._exit(_exit_code(error))
            raise
        except BaseException as error:
            engine.abandon(error)
            raise


def _print_energy(args: argparse.Namespace, result: EnergyResult) -> None:
    if args.explain:
        print(f"{result.explanation}\n")
    print(f"{args.input.name}: {result.headline}")
    print(f"{result.nocc} occupied and {result.nvir} virtual orbitals correlated, {result.nfrozen} frozen\n")
    for label, value in result.energies():
        name, _, mark = label.partition(" ")
        print(f"{name:<16} = {value:18.10f} Eh {mark}".rstrip())
    if result.verdict:
        print(f"\n{result.verdict}")
    print(f"{'' if result.verdict else chr(10)}{result.seconds:.1f} s")


def _check_outputs(args: argparse.Namespace) -> None:
    check_file(args.json, "--json")
    check_report(args.report, "--report")


def _write_results(args: argparse.Namespace, result: EnergyResult, page: EnergyPage | None) -> None:
    """The files that were asked for."""
    if args.json is not None:
        facts = {"input": str(args.input), "command": args.command, "versions": versions()}
        write_json(args.json, facts | result.to_dict(), "--json")
    if page is not None:
        print(f"report in {write_energy_page(args.report, page)}")


def _page(args: argparse.Namespace, job: Calculation, result: EnergyResult) -> EnergyPage:
    return EnergyPage(
        title=f"{result.title} of {args.input.name}",
        command=args.command,
        verdict=result.verdict or "done",
        good=result.converged,
        advice="" if result.converged else result.reason,
        energies=result.energies(),
        facts=result.facts(),
        cycles=[(cycle.number, cycle.change, cycle.norm) for cycle in result.history],
        limits=job.limits,
        steps=job.steps,
        budget=result.plan.get("budget_bytes", 0),
        held=job.held,
        reserved=result.plan.get("reserved_bytes", 0),
        patterns=job.patterns(),
        explanation=job.explanation_html,
        versions=versions(),
    )


def _line(error: BaseException) -> str:
    """What is wrong, in one line."""
    if isinstance(error, KeyboardInterrupt):
        return "tilewise: interrupted"
    if isinstance(error, TilewiseError):
        return f"tilewise: {' '.join(str(error).split())}"
    return f"tilewise: not enough memory ({error}). Use larger tiles or a smaller problem."


def _exit_code(error: BaseException) -> int:
    for kind, code in CODES:
        if isinstance(error, kind):
            return code
    return 1


def _say_nothing(line: str) -> None:
    """One rank tells for all."""


def _say(line: str) -> None:
    """One line of progress, where it does not mix with the result."""
    print(line, file=sys.stderr, flush=True)


# tilewise transform


def _add_transform(commands: _Commands) -> None:
    parser = commands.add_parser(
        "transform",
        help="integrals over the orbitals of a molecule",
        description="Two-electron integrals over Hartree-Fock orbitals of a molecule, by the schedule that fits.",
        epilog="example: tilewise transform mol.xyz --basis cc-pvdz --orbitals ovov --memory 2GB --out ovov.h5",
    )
    parser.add_argument("molecule", type=Path, help="an .xyz file, coordinates in Angstrom")
    parser.add_argument("--basis", default="cc-pvdz", help="basis set (default: %(default)s)")
    parser.add_argument(
        "--orbitals",
        default="pppp",
        metavar="LETTERS",
        help="four letters in chemists' order: o occupied, v virtual, p all (default: %(default)s)",
    )
    parser.add_argument("--charge", type=int, default=0, help="total charge (default: 0)")
    parser.add_argument("--symmetry", action="store_true", help="use the point group of the molecule")
    parser.add_argument("--schedule", default="auto", help="auto, or one that the plan lists (default: %(default)s)")
    parser.add_argument("--memory", metavar="SIZE", help="most that the transform may add, such as 4GB")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="folder for what does not fit")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="keep what is done, so that the same command goes on from there if it is killed; removed at the end",
    )
    parser.add_argument("--tol", type=float, help="largest Frobenius error of the result")
    parser.add_argument("--tile", type=int, metavar="N", help="functions or orbitals of a tile")
    parser.add_argument("--workers", type=int, metavar="N", help="threads (default: all cores)")
    parser.add_argument("--engine", choices=("threads", "mpi"), default="threads", help="mpi: under mpiexec")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the integrals to a file")
    parser.add_argument("--plan", action="store_true", help="say what would be done, and stop")
    parser.set_defaults(run=_transform)


def _transform(args: argparse.Namespace) -> int:
    from tilewise.chemistry.four_index import Transform, checkpoint_for
    from tilewise.chemistry.kept_orbitals import orbital_file
    from tilewise.chemistry.orbitals import named_orbitals

    with _ranks(args) as engine:
        engine.agree(lambda: _check_transform(args), once=True)
        if args.checkpoint is not None:
            args.checkpoint = checkpoint_for(engine, args.checkpoint)
        say = _say if engine.rank == 0 else _say_nothing
        mf = _mean_field(args, say)
        options = {} if args.tile is None else {"tile": args.tile}
        job = Transform(
            mf.mol,
            named_orbitals(mf, args.orbitals),
            schedule=args.schedule,
            memory=args.memory,
            scratch=args.scratch,
            tol=args.tol,
            progress=say,
            checkpoint=args.checkpoint,
            **options,
        )
        plan = job.plan()
        if not args.plan:
            result = job.kernel()
            norm = result.norm()  # of all ranks together
            if args.out is not None:
                result.save(args.out)
            if args.checkpoint is not None:
                orbital_file(args.checkpoint).unlink(missing_ok=True)
        if engine.rank == 0:
            print(plan.explain())
            if not args.plan:
                _print_transform(args, result, norm)
    return 0


def _check_transform(args: argparse.Namespace) -> None:
    """Say what is wrong before the mean field is computed."""
    from tilewise.chemistry.chkfile import SavedMeanField
    from tilewise.chemistry.orbitals import named_orbitals

    check_file(args.out, "--out")
    if args.memory is not None:
        parse_memory(args.memory)
    if args.scratch is not None:
        parse_scratch(args.scratch)
    none = np.zeros(0)
    named_orbitals(SavedMeanField(None, np.zeros((0, 0)), none, none, 0.0), args.orbitals)  # looks at the letters


def _mean_field(args: argparse.Namespace, say: Callable[[str], None]) -> SavedMeanField:
    from tilewise.chemistry.geometry import read_xyz
    from tilewise.chemistry.inputs import check_electrons, molecule_mean_field
    from tilewise.chemistry.integrals import make_molecule
    from tilewise.chemistry.kept_orbitals import orbital_file

    geometry = read_xyz(args.molecule)
    check_electrons(geometry, args.charge, 0)
    mol = make_molecule(geometry, args.basis, args.charge, symmetry=args.symmetry)
    kept = None if args.checkpoint is None else orbital_file(args.checkpoint)
    return molecule_mean_field(mol, say, kept, keeps=not args.plan)


def _print_transform(args: argparse.Namespace, result: tw.BlockTensor, norm: float) -> None:
    print(f"\n({args.orbitals[:2]}|{args.orbitals[2:]})  {result!r}")
    print(f"norm {norm:.12g}, error bound {result.error_bound:.2g}")
    if args.out is not None:
        print(f"written to {args.out}")


# tilewise plan


def _add_plan(commands: _Commands) -> None:
    parser = commands.add_parser(
        "plan",
        help="what a contraction of random patterns would cost",
        description="What a contraction would cost, without a tensor: operands have random blocks.",
        epilog='example: tilewise plan "ijcd,cdab->ijab" --space ij=4,6,5 --space abcd=uniform:120:24 --density 0.1',
    )
    parser.add_argument("expression", help="an einsum string")
    parser.add_argument(
        "--space",
        action="append",
        default=[],
        metavar="LETTERS=TILES",
        help="tiles of one or more indices: sizes 4,6,5 or uniform:SIZE:TILE; once for each space",
    )
    parser.add_argument(
        "--density", default="1", metavar="D[,D...]", help="of all operands, or one for each (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random blocks (default: 0)")
    parser.add_argument("--workers", type=int, metavar="N", help="threads (default: all cores)")
    parser.add_argument("--machine", metavar="NAME", help="name or .json file of a machine (default: this computer)")
    parser.set_defaults(run=_plan)


def _plan(args: argparse.Namespace) -> int:
    spaces = _parse_spaces(args.space)
    operands = args.expression.replace(" ", "").partition("->")[0].split(",")
    densities = _parse_densities(args.density, len(operands))
    patterns = []
    for number, (letters, density) in enumerate(zip(operands, densities, strict=True)):
        missing = [letter for letter in letters if letter not in spaces]
        if "." in missing:
            raise InputError(
                f"{args.expression!r} contains '...'. The tensors of a plan are made from the letters. Write a letter "
                "for each mode."
            )
        if missing:
            raise InputError(
                f"Index {missing[0]!r} of {args.expression!r} has no space. Each index needs one. "
                f"Add --space {missing[0]}=4,6,5 or --space {missing[0]}=uniform:120:24."
            )
        patterns.append(tw.Pattern.random([spaces[letter] for letter in letters], density, args.seed + number))
    with nullcontext() if args.workers is None else tw.engine("threads", workers=args.workers):
        made = tw.plan(args.expression, *patterns)
    show(made if args.machine is None else made.on(Machine.load(args.machine)))
    return 0


def _parse_spaces(texts: Sequence[str]) -> dict[str, tw.Space]:
    spaces: dict[str, tw.Space] = {}
    for text in texts:
        letters, equals, tiles = text.partition("=")
        if not equals or not letters.strip():
            raise InputError(
                f"--space {text!r} names no index. LETTERS=TILES is expected, such as ij=4,6,5. Correct it."
            )
        for letter in letters.replace(",", "").strip():
            if letter in spaces:
                raise InputError(
                    f"Index {letter!r} has two spaces. One is expected. Remove one --space, or its letter from one."
                )
            spaces[letter] = _parse_tiles(text, tiles, letter)
    return spaces


def _parse_tiles(text: str, tiles: str, name: str) -> tw.Space:
    kind, *numbers = tiles.split(":") if ":" in tiles else ("", *tiles.split(","))
    try:
        values = [int(number) for number in numbers]
    except ValueError:
        values = []
    if kind == "uniform" and len(values) == 2:
        return tw.Space.uniform(values[0], tile=values[1], name=name)
    if kind == "" and values:
        return tw.Space(values, name=name)
    raise InputError(
        f"--space {text!r} has the tiles {tiles!r}. Sizes such as 4,6,5 or uniform:SIZE:TILE are expected. Correct it."
    )


def _parse_densities(text: str, operands: int) -> list[float]:
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        values = []
    if len(values) == 1:
        return values * operands
    if len(values) != operands:
        raise InputError(
            f"--density {text!r} does not suit {operands} operands. One number, or one for each operand with commas "
            "between, is expected. Pass, for example, --density 0.1."
        )
    return values


# tilewise doctor


def _add_doctor(commands: _Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        help="what this computer has; measures its rates",
        description="What this computer has. Measures its rates, which plans use to predict times, and stores them.",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--no-measure", action="store_true", help="measure nothing, show what is stored")
    parser.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from tilewise.engines.calibrate import calibrate

    if args.no_measure:
        machine, stored = Machine.measured(), None
    else:
        machine = calibrate(_say)
        stored = machine.save()
    facts = describe_host(machine)
    if args.json:
        print(json.dumps(facts | {"stored": str(stored) if stored else None}, indent=1))
        return 0
    print_report(host_report(facts, stored))
    return 0


if __name__ == "__main__":
    sys.exit(main())
