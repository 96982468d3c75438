"""``tilewise plan``: what a contraction will cost."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import tilewise as tw
from tilewise.errors import InputError
from tilewise.machine import Machine
from tilewise.reports.tables import show

if TYPE_CHECKING:
    from tilewise.cli.running import Commands

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the subcommand."""
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
