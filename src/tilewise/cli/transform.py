"""``tilewise transform``: two-electron integrals over orbitals."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import tilewise as tw
from tilewise.cli.running import engine_of, say, say_nothing
from tilewise.plans.budget import parse_memory
from tilewise.reports.outputs import check_apart, check_file
from tilewise.tensors.drafts import parse_scratch

if TYPE_CHECKING:
    from tilewise.chemistry.chkfile import SavedMeanField
    from tilewise.cli.running import Commands

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the subcommand."""
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

    with engine_of(args) as engine:
        engine.agree(lambda: _check_transform(args), once=True)
        if args.checkpoint is not None:
            args.checkpoint = checkpoint_for(engine, args.checkpoint)
        tell = say if engine.rank == 0 else say_nothing
        mf = _mean_field(args, tell)
        options = {} if args.tile is None else {"tile": args.tile}
        job = Transform(
            mf.mol,
            named_orbitals(mf, args.orbitals),
            schedule=args.schedule,
            memory=args.memory,
            scratch=args.scratch,
            tol=args.tol,
            progress=tell,
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

    check_apart({"the molecule": args.molecule, "--checkpoint": args.checkpoint, "--out": args.out})
    check_file(args.out, "--out")
    if args.memory is not None:
        parse_memory(args.memory)
    if args.scratch is not None:
        parse_scratch(args.scratch)
    none = np.zeros(0)
    named_orbitals(SavedMeanField(None, np.zeros((0, 0)), none, none, 0.0), args.orbitals)  # looks at the letters


def _mean_field(args: argparse.Namespace, tell: Callable[[str], None]) -> SavedMeanField:
    from tilewise.chemistry.geometry import read_xyz
    from tilewise.chemistry.inputs import check_electrons, molecule_mean_field
    from tilewise.chemistry.integrals import make_molecule
    from tilewise.chemistry.kept_orbitals import orbital_file

    geometry = read_xyz(args.molecule)
    check_electrons(geometry, args.charge, 0)
    mol = make_molecule(geometry, args.basis, args.charge, symmetry=args.symmetry)
    kept = None if args.checkpoint is None else orbital_file(args.checkpoint)
    return molecule_mean_field(mol, tell, kept, keeps=not args.plan)


def _print_transform(args: argparse.Namespace, result: tw.BlockTensor, norm: float) -> None:
    print(f"\n({args.orbitals[:2]}|{args.orbitals[2:]})  {result!r}")
    print(f"norm {norm:.12g}, error bound {result.error_bound:.2g}")
    if args.out is not None:
        print(f"written to {args.out}")
