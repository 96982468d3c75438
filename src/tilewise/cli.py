"""The ``tilewise`` command: energy, transform, plan, doctor."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

import tilewise as tw
from tilewise.errors import InputError, StorageError, TilewiseError
from tilewise.machine import Machine
from tilewise.reports.host import describe_host, host_report, version_of
from tilewise.reports.tables import print_report, show
from tilewise.tensors import Engine
from tilewise.tensors.drafts import draft

if TYPE_CHECKING:
    from tilewise.chemistry.energy import EnergyResult

WRONG = 2
"""Exit code after an error of the input."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

EXPECTED = (TilewiseError, KeyboardInterrupt, MemoryError)
"""What ends the command with a line, not with a traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 without memory, 2 for an error of the input, 130 after Ctrl-C."""
    args = _parser().parse_args(argv)
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
    parser = argparse.ArgumentParser(
        prog="tilewise", description="Contractions of block-sparse tensors, planned first."
    )
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


def _add_energy(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("energy", help="energy of a molecule", description="Energy of a molecule.")
    parser.add_argument("molecule", type=Path, help="an .xyz file, coordinates in Angstrom")
    parser.add_argument("--basis", default="cc-pvdz", help="basis set (default: %(default)s)")
    parser.add_argument("--method", default="mp2", help="method (default: %(default)s)")
    parser.add_argument("--frozen", type=int, default=0, metavar="N", help="lowest orbitals that are not correlated")
    parser.add_argument("--charge", type=int, default=0, help="total charge (default: 0)")
    parser.add_argument("--spin", type=int, default=0, help="unpaired electrons (default: 0)")
    parser.add_argument("--workers", type=int, metavar="N", help="threads (default: all cores)")
    parser.add_argument("--engine", choices=("threads", "mpi"), default="threads", help="mpi: under mpiexec")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to a file as well")
    parser.add_argument("--explain", action="store_true", help="print the plan of the transformation as well")
    parser.set_defaults(run=_energy)


def _energy(args: argparse.Namespace) -> int:
    from tilewise.chemistry.energy import run

    _check_folder(args.json, "--json")
    with _ranks(args) as engine:
        result = run(
            args.molecule,
            basis=args.basis,
            method=args.method,
            frozen=args.frozen,
            charge=args.charge,
            spin=args.spin,
            progress=_say if engine.rank == 0 else _say_nothing,
        )
    if engine.rank == 0:
        _print_energy(args, result)
    return 0


@contextmanager
def _ranks(args: argparse.Namespace) -> Iterator[Engine]:
    """The engine that was asked for; an error on one of its ranks ends all, with one line where it is of the input."""
    options = {} if args.workers is None else {"workers": args.workers}
    with tw.engine(args.engine, **options) as engine:
        try:
            yield engine
        except EXPECTED as error:
            engine.abandon(SystemExit(_exit_code(error)), _line(error))
            raise
        except BaseException as error:
            engine.abandon(error)
            raise


def _check_folder(path: Path | None, option: str) -> None:
    """Raise before a long run if its result could not be written."""
    if path is not None and not path.parent.is_dir():
        raise InputError(f"{path.parent} is no folder. A file in a folder that exists is expected. Correct {option}.")


def _print_energy(args: argparse.Namespace, result: EnergyResult) -> None:
    name = result.method.upper()
    if args.explain:
        print(f"{result.explanation}\n")
    print(f"{args.molecule.name}: {name}/{result.basis}, {result.natoms} atoms, {result.nbasis} basis functions")
    print(f"{result.nocc} occupied and {result.nvir} virtual orbitals correlated, {args.frozen} frozen\n")
    for label, value in (("E(HF)", result.e_hf), (f"E_corr({name})", result.e_corr), (f"E_tot({name})", result.e_tot)):
        print(f"{label:<16} = {value:18.10f} Eh")
    print(f"\n{result.seconds:.1f} s")
    if args.json is not None:
        _write_json(args.json, {"molecule": str(args.molecule), "frozen": args.frozen, **asdict(result)})


def _write_json(path: Path, content: dict[str, object]) -> None:
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}). A file in a folder that exists is expected. Correct --json."
        ) from error


def _line(error: BaseException) -> str:
    """What is wrong, in one line."""
    if isinstance(error, KeyboardInterrupt):
        return "tilewise: interrupted"
    if isinstance(error, TilewiseError):
        return f"tilewise: {' '.join(str(error).split())}"
    return f"tilewise: not enough memory ({error}). Use larger tiles or a smaller problem."


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return WRONG if isinstance(error, TilewiseError) else 1


def _say_nothing(line: str) -> None:
    """One rank tells for all."""


def _say(line: str) -> None:
    """One line of progress, where it does not mix with the result."""
    print(line, file=sys.stderr, flush=True)


# tilewise transform


def _add_transform(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    from tilewise.chemistry.orbitals import named_orbitals

    _check_folder(args.out, "--out")
    with _ranks(args) as engine:
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
                _orbital_file(args.checkpoint).unlink(missing_ok=True)
        if engine.rank == 0:
            print(plan.explain())
            if not args.plan:
                _print_transform(args, result, norm)
    return 0


def _mean_field(args: argparse.Namespace, say: Callable[[str], None]) -> Any:
    from tilewise.chemistry.energy import check_electrons
    from tilewise.chemistry.geometry import read_xyz
    from tilewise.chemistry.integrals import hartree_fock, make_molecule

    geometry = read_xyz(args.molecule)
    check_electrons(geometry, args.charge, 0)
    mol = make_molecule(geometry, args.basis, args.charge, symmetry=args.symmetry)
    kept = None if args.checkpoint is None else _orbital_file(args.checkpoint)
    if kept is not None and kept.exists():
        say(f"Hartree-Fock: orbitals from {kept}")
        return _read_orbitals(kept, mol)
    say(f"Hartree-Fock: {geometry.natoms} atoms, {mol.nao} functions, {mol.nelectron} electrons")
    mf = hartree_fock(mol)
    if kept is not None and not args.plan:
        _write_orbitals(kept, mf)
    return mf


def _orbital_file(checkpoint: Path) -> Path:
    """Where the orbitals of a transform are: a second Hartree-Fock gives others, by rounding and by signs."""
    return checkpoint.with_name(f"{checkpoint.name}.orbitals")


def _digest_molecule(mol: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    summary = hashlib.blake2b(f"{mol.cart} {mol.nelectron} {mol.spin} {mol.groupname}".encode())
    for table in (mol._atm, mol._bas, mol._env, mol._ecpbas):
        summary.update(np.ascontiguousarray(table).tobytes())
    return np.frombuffer(summary.digest(), np.uint8)


def _write_orbitals(path: Path, mf: Any) -> None:
    with draft(path) as handle, os.fdopen(os.dup(handle), "wb") as stream:
        np.savez(stream, molecule=_digest_molecule(mf.mol), mo_coeff=mf.mo_coeff, mo_occ=mf.mo_occ)


def _read_orbitals(path: Path, mol: Any) -> Any:
    """What `_write_orbitals` wrote, for the same molecule."""
    remedy = f"Remove it and {path.stem}, or name another with --checkpoint."
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            found, coefficients, occupations = (arrays[name] for name in ("molecule", "mo_coeff", "mo_occ"))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise StorageError(
            f"{path} cannot be read: {error}. Expected orbitals as they were written. {remedy}"
        ) from error
    if not np.array_equal(found, _digest_molecule(mol)):
        raise InputError(f"{path} has the orbitals of another molecule or basis. Expected those of this one. {remedy}")
    return SimpleNamespace(mol=mol, mo_coeff=coefficients, mo_occ=occupations)


def _print_transform(args: argparse.Namespace, result: tw.BlockTensor, norm: float) -> None:
    print(f"\n({args.orbitals[:2]}|{args.orbitals[2:]})  {result!r}")
    print(f"norm {norm:.12g}, error bound {result.error_bound:.2g}")
    if args.out is not None:
        print(f"written to {args.out}")


# tilewise plan


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
