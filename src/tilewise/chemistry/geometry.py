"""`Geometry`: the atoms of a molecule, read strictly from an .xyz file."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError

__all__ = ["Geometry", "read_xyz"]

_SYMBOLS = """
    H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr
    Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe
    Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn
    Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og
"""
ELEMENTS = tuple(_SYMBOLS.split())
"""Symbols by atomic number, hydrogen first."""

_LEAST_DISTANCE = 0.1
_COUNT = re.compile(r"[0-9]{1,18}")  # Python refuses to read a number of thousands of digits
_FORMAT = "An .xyz file has the number of atoms on line 1, a comment on line 2, then 'El x y z' per atom."


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """The atoms of a molecule."""

    symbols: tuple[str, ...]
    """Element of each atom."""
    coordinates: npt.NDArray[np.float64]
    """Position of each atom (natoms, 3), in Angstrom, read-only."""
    comment: str
    """Second line of the file."""

    @property
    def natoms(self) -> int:
        """Number of atoms."""
        return len(self.symbols)

    @property
    def nuclear_charge(self) -> int:
        """Sum of the atomic numbers."""
        return sum(ELEMENTS.index(symbol) + 1 for symbol in self.symbols)


def read_xyz(path: Path | str) -> Geometry:
    r"""Read a molecule; everything that is not a plain .xyz file of one molecule is an error.

    Parameters
    ----------
    path : Path or str
        The file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from tilewise.chemistry.geometry import read_xyz
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "hydrogen.xyz"
    ...     _ = file.write_text("2\nbond of 0.74 Angstrom\nH 0 0 0\nH 0 0 0.74\n")
    ...     read_xyz(file).symbols
    ('H', 'H')
    """
    file = Path(path)
    lines = _lines(file)
    count = _count(lines, file)
    body = lines[2 : 2 + count]
    rest = [number for number, line in enumerate(lines[2 + count :], 3 + count) if line.strip()]
    if len(body) < count or rest:
        more = f"line {rest[0]} holds more; one molecule is read from a file" if rest else ""
        found = more or f"only {len(body)} lines of atoms follow"
        raise InputError(
            f"{file} announces {count} atoms on line 1, but {found}. {_FORMAT} Correct the number or the lines."
        )
    atoms = [_atom(line, f"Line {number} of {file}") for number, line in enumerate(body, 3)]
    coordinates = np.array([place for _, place in atoms], dtype=np.float64).reshape(count, 3)
    coordinates.flags.writeable = False
    _check_distances(coordinates, file)
    return Geometry(tuple(symbol for symbol, _ in atoms), coordinates, lines[1].strip())


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise InputError(
            f"There is no file {file}. Expected the path of an .xyz file. Check the path and the folder it starts from."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read as text: {error}. {_FORMAT} Name such a file.") from error


def _count(lines: list[str], file: Path) -> int:
    first = lines[0].strip() if lines else ""
    if not (_COUNT.fullmatch(first) and int(first) > 0):
        shown = f"starts with {first[:40]!r}" if first else "has an empty first line"
        raise InputError(f"{file} {shown}. {_FORMAT} Put the number of atoms, at least 1, on line 1.")
    if len(lines) < 2:
        raise InputError(f"{file} ends after its first line. {_FORMAT} Add the comment and the atoms.")
    return int(first)


def _atom(line: str, where: str) -> tuple[str, tuple[float, ...]]:
    """Element and position of one line; `where` goes into the error."""
    fields = line.split()
    if len(fields) != 4:
        raise InputError(f"{where} is {line.strip()[:60]!r}. Expected four fields, 'El x y z'. Correct the line.")
    symbol = fields[0].capitalize()
    if symbol not in ELEMENTS:
        raise InputError(
            f"{where} names the element {fields[0]!r}, which is unknown. Expected a symbol such as H, C or "
            "Fe. Correct the symbol."
        )
    return symbol, tuple(_coordinate(text, where) for text in fields[1:])


def _coordinate(text: str, where: str) -> float:
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"{where} has the coordinate {text!r}. Expected a finite number in Angstrom, such as -0.757. Correct it."
        )
    return value


def _check_distances(coordinates: npt.NDArray[np.float64], file: Path) -> None:
    for number, place in enumerate(coordinates[1:], 1):
        distance = np.linalg.norm(coordinates[:number] - place, axis=1)
        other = int(np.argmin(distance))
        if distance[other] < _LEAST_DISTANCE:
            raise InputError(
                f"Atoms {other + 1} and {number + 1} of {file} are {distance[other]:.3g} Angstrom apart. "
                f"Expected at least {_LEAST_DISTANCE}. Remove the repeated atom, or check that the "
                "coordinates are in Angstrom."
            )
