"""``tilewise energy``: the correlation energy of a molecule."""

from __future__ import annotations

import argparse
import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.cli.running import UNCONVERGED, engine_of, say, say_nothing, tell_ranks, with_options
from tilewise.errors import InputError
from tilewise.reports.energy_page import EnergyPage, versions, write_energy_page
from tilewise.reports.live import Progress
from tilewise.reports.outputs import check_apart, check_file, check_report, write_json

if TYPE_CHECKING:
    from tilewise.chemistry.energy import Calculation, EnergyResult
    from tilewise.cli.running import Commands

__all__ = ["add"]

KEYWORDS = (
    *("integrals", "auxbasis", "cholesky_tol", "memory", "scratch", "tile"),
    *("checkpoint", "reproducible", "max_cycle", "conv_tol", "conv_tol_normt", "diis_space", "iterative_damping"),
    "force",
)
"""Flags that methods take as keywords of the same name; None if they were not given."""

INTEGER = re.compile(r"-?\d{1,18}")
"""What is read as a number; a longer one is no orbital, and Python would refuse to read it."""

EXITS = """
exit codes:
  0    done
  1    not enough memory
  2    the input is wrong or a file cannot be used; one line says what to do
  3    the amplitudes have not converged, or are no numbers any more; one line says why and what to try
  75   with --checkpoint, stopped by SIGTERM or SIGUSR1; the same command goes on from there
  130  stopped by Ctrl-C

examples:
  tilewise energy mol.xyz --basis cc-pvdz --method ccsd --frozen core --memory 8GB --report out
  tilewise energy mf.chk --method "ccsd(t)" --checkpoint run.h5
  mpiexec -n 4 tilewise energy mol.xyz --method ccsd --engine mpi
"""


def add(commands: Commands) -> None:
    """Add the subcommand."""
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
    group.add_argument(
        "--cholesky-tol",
        type=float,
        metavar="E",
        help="largest error for --integrals cholesky, hartree (default: 1e-8)",
    )


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
        "--iterative-damping", type=float, metavar="PART", help="part of each step that is taken (default: 1)"
    )
    group.add_argument(
        "--force", action="store_true", default=None, help="(T) of amplitudes that have not converged, too"
    )


def _energy(args: argparse.Namespace) -> int:
    from tilewise.chemistry.interrupts import stopping_at_signals

    job: Calculation | None = None
    with engine_of(args) as engine, stopping_at_signals(args.checkpoint, lambda: job is not None and job.is_done):
        engine.agree(lambda: _check_files(args), once=True)
        tell_ranks(args, engine)
        with Progress() if engine.rank == 0 else nullcontext() as progress:
            job = _prepare(args, progress)
            result = None if args.plan else job.run()
        if result is None:
            page, explanation = None, job.explanation
        else:
            if engine.rank == 0:
                _print_energy(args, result)  # first, so that nothing that happens to the report can lose it
            # The plans in it are those of this engine, and making one is work of all ranks together.
            page = None if args.report is None else _page(args, job, result)
            if engine.rank == 0:
                _write_results(args, result, page)
    if engine.rank == 0 and result is None:
        print(explanation)
    if result is None or result.converged:
        return 0
    if engine.rank == 0:
        say(f"tilewise: {with_options(result.reason)}")
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
        progress=say_nothing if progress is None else progress.tell,
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
    if not words or not all(map(INTEGER.fullmatch, words)):
        return text.strip().lower()
    return [int(word) for word in words] if "," in text else int(words[0])


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
    print(f"{'' if result.verdict else chr(10)}{result.seconds:.1f} s", flush=True)


def _check_files(args: argparse.Namespace) -> None:
    """Raise before a long run if its results could not be written, or would be written over something else."""
    for option in ("json", "report"):
        if args.plan and getattr(args, option) is not None:
            raise InputError(
                f"--{option} was given with --plan, which computes nothing to write there. One of them is expected. "
                f"Leave --{option} out, and redirect the output."
            )
    files = {"INPUT": args.input, "--checkpoint": args.checkpoint, "--json": args.json, "--report": args.report}
    check_apart(files)
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
        advice="" if result.converged else with_options(result.reason),
        energies=result.energies(),
        facts=result.facts(),
        cycles=[(cycle.number, cycle.change, cycle.norm) for cycle in result.history],
        limits=job.limits,
        stages=job.stages(result),
        steps=job.steps,
        budget=result.plan.get("budget_bytes", 0),
        held=job.held,
        reserved=result.plan.get("reserved_bytes", 0),
        patterns=job.patterns(),
        explanation=job.explanation_html,
        versions=versions(),
    )
