"""`Fcidump`: a Hamiltonian over orbitals from a file that other programs wrote, and the closed shell in it."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError, MemoryBudgetError, StorageError
from tilewise.plans.budget import parse_memory
from tilewise.plans.explain import bytes_text
from tilewise.spaces.integers import parse_integers
from tilewise.tensors.drafts import check_regular, parse_path

__all__ = ["Fcidump", "FcidumpReference", "read_fcidump", "reference"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_FORMAT = "An FCIDUMP file has a header from &FCI to &END or /, then lines 'value i j k l'."

_CHUNK = 1 << 22
"""Bytes that are read at once."""

_HEADER_LINES = 10_000
"""A header that has not ended by then never does."""

_SAME = 1e-8
"""Values of integrals that are equal by symmetry differ by less, and those that vanish by symmetry are smaller."""

_WORD = 8

_BLANKS = b"\t\n\v\f\r ,"
_TABLE = bytes.maketrans(b"dD,", b"ee ")
"""Fortran's exponents as everybody else writes them, commas as blanks."""

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eEdD]?[+-]?\d+)?")
_FIELD = re.compile(r"([A-Za-z]\w*)\s*=([^=]*?)(?=[A-Za-z]\w*\s*=|$)", re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class Fcidump:
    """A Hamiltonian over orthonormal real orbitals, energies in hartree."""

    norb: int
    """How many orbitals there are."""
    nelec: int
    """How many electrons."""
    ms2: int
    """Twice the spin projection."""
    isym: int
    """Irrep of the state that the file was made for, 0 the totally symmetric one."""
    orbsym: Ints | None
    """Irrep of each orbital, such that products are XORs; None without symmetry."""
    h1: Floats
    """One-electron integrals (norb, norb)."""
    eri: Floats
    """Two-electron integrals (ij|kl), pairs of pairs in PySCF's order (aosym='s8')."""
    ecore: float
    """Energy of nuclei and of electrons that are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class FcidumpReference:
    """A closed-shell determinant of the orbitals of a file, with the attributes of a mean field of PySCF.

    There is no molecule: ``tilewise.chemistry.transform(reference.eri, coefficients)`` gives integrals.
    """

    mo_coeff: Floats
    """The identity: the orbitals of the file are the functions."""
    mo_energy: Floats
    """Diagonal of the Fock matrix, in hartree."""
    mo_occ: Floats
    """Electrons in each orbital, 2 or 0."""
    e_tot: float
    """Energy of the determinant, in hartree."""
    fock: Floats
    """Fock matrix (norb, norb); not diagonal unless the orbitals are canonical."""
    eri: Floats
    """Two-electron integrals, pairs of pairs in PySCF's order (aosym='s8')."""
    orbsym: Ints | None
    """Irrep of each orbital, such that products are XORs; None without symmetry."""
    converged: bool = True
    """A determinant is what it is."""
    max_cycle: int = 0
    """No iterations are done."""
    verbose: int = 0
    """Nothing is printed."""

    def get_fock(self) -> Floats:
        """The Fock matrix over the functions, which are the orbitals."""
        return self.fock


def read_fcidump(path: str | os.PathLike[str]) -> Fcidump:
    r"""Read the Hamiltonian of an FCIDUMP file (Knowles and Handy 1989); nothing in it is executed.

    ``ORBSYM`` counts irreps from 1 in the order of Molpro, where the product of n and m is ``1 + ((n - 1) ^ (m - 1))``:
    1 is subtracted, and products are XORs.  PySCF writes its own numbers, from 0 and XORs too: they are taken as they
    are if a 0 is among them, or if the integrals show that they are meant.  Integrals that no numbering explains
    are an error.  ``ISYM`` counts from 1; 0 means the same as 1.

    Parameters
    ----------
    path : str or Path
        The file.  One of its lines, the last as a rule, is the core energy, ``value 0 0 0 0``: a file without it was
        cut off.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from tilewise.chemistry.fcidump import read_fcidump, reference
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "FCIDUMP"
    ...     _ = file.write_text("&FCI NORB=1, NELEC=2, MS2=0, /\n0.75 1 1 1 1\n-1.25 1 1 0 0\n0.5 0 0 0 0\n")
    ...     reference(read_fcidump(file)).e_tot
    -1.25
    """
    file = parse_path(path)
    check_regular(file)
    try:
        with file.open("rb") as opened:
            header = _read_header(opened, file)
            body = _Body(header, file)
            line = header.lines + 1
            for chunk in _chunks(opened):
                body.add(chunk, line)
                line += chunk.count(b"\n")
    except FileNotFoundError as error:
        raise InputError(
            f"There is no file {file}. Expected the path of an FCIDUMP file. Check the path and the folder it starts "
            "from."
        ) from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{file} cannot be read: {error}. {_FORMAT} Name such a file.") from error
    return body.finish()


def _chunks(opened: IO[bytes]) -> Iterator[bytes]:
    """Whole lines, many at a time."""
    while chunk := opened.read(_CHUNK):
        yield chunk + opened.readline()


@dataclass(frozen=True, slots=True, eq=False)
class _Header:
    """What stands before the integrals."""

    norb: int
    """How many orbitals there are."""
    nelec: int
    """How many electrons."""
    ms2: int
    """Twice the spin projection."""
    isym: int
    """Irrep of the state, from 0."""
    orbsym: Ints | None
    """Irreps of the orbitals as they are written; None if they are all the same."""
    lines: int
    """How many lines it has."""


def _read_header(opened: IO[bytes], file: Path) -> _Header:
    text = ""
    for number in range(1, _HEADER_LINES + 1):
        line = opened.readline(_CHUNK).decode("ascii", "replace")
        if not line:
            break
        if not text.strip() and line.strip() and not re.match(r"\s*[&$]FCI\b", line, re.IGNORECASE):
            raise InputError(f"{file} starts with {line.strip()[:40]!r}. {_FORMAT} Name such a file.")
        end = re.search(r"[&$]END\b|/", line, re.IGNORECASE)
        if end is None:
            text += line
            continue
        if rest := line[end.end() :].strip():
            raise InputError(
                f"Line {number} of {file} goes on with {rest[:40]!r} after the end of the header. {_FORMAT} Begin a "
                "new line there."
            )
        return _parse_header(text + line[: end.start()], number, file)
    raise StorageError(f"The header of {file} does not end. {_FORMAT} The file was cut off: write it again.")


def _parse_header(text: str, lines: int, file: Path) -> _Header:
    fields = {name.upper(): value.strip(" \t\r\n,") for name, value in _FIELD.findall(text)}
    for flag in ("IUHF", "UHF", "TREL"):
        if fields.get(flag, "0").strip(".").upper() not in ("0", "F", "FALSE"):
            raise InputError(
                f"{file} has {flag}={fields[flag]}: orbitals that depend on the spin. Expected the same orbitals for "
                "both spins. Write the file from a restricted calculation."
            )
    norb, nelec, ms2, isym = (_header_number(fields, name, file) for name in ("NORB", "NELEC", "MS2", "ISYM"))
    if norb < 1 or nelec < 0 or isym < 0:
        raise InputError(
            f"The header of {file} has NORB={norb}, NELEC={nelec}, ISYM={isym}. Expected at least one orbital and no "
            "negative number. Correct it."
        )
    return _Header(norb, nelec, ms2, max(isym - 1, 0), _header_irreps(fields, norb, file), lines)


def _header_number(fields: dict[str, str], name: str, file: Path) -> int:
    """One number of the header; spin and irrep may be missing."""
    value = fields.get(name, "" if name in ("NORB", "NELEC") else "0")
    if not re.fullmatch(r"[+-]?\d{1,9}", value):
        raise InputError(
            f"The header of {file} has {f'{name}={value[:40]!r}' if value else f'no {name}'}. Expected a whole number. "
            f"Add it, as in '&FCI NORB=13, NELEC=10, MS2=0'."
        )
    return int(value)


def _header_irreps(fields: dict[str, str], norb: int, file: Path) -> Ints | None:
    found: list[int] = []
    for word in fields.get("ORBSYM", "").replace(",", " ").split():
        parts = re.fullmatch(r"(?:(\d{1,6})\*)?(\d{1,2})", word)  # Fortran writes 3*1 for 1,1,1
        if parts is None or int(parts[2]) > 8:
            raise InputError(
                f"ORBSYM of {file} has the entry {word[:40]!r}. Expected irreps from 1 to 8. Correct it, or write 1 "
                "for each orbital."
            )
        found += [int(parts[2])] * min(int(parts[1] or 1), norb + 1)
    if found and len(found) != norb:
        raise InputError(
            f"ORBSYM of {file} has {len(found)} entries. Expected NORB={norb} of them. Correct it, or leave ORBSYM out."
        )
    return np.array(found) if len(set(found)) > 1 else None


class _Body:
    """Collects the integrals of a file."""

    def __init__(self, header: _Header, file: Path) -> None:
        self.header, self.file = header, file
        pairs = header.norb * (header.norb + 1) // 2
        packed = pairs * (pairs + 1) // 2
        needed, budget = _WORD * (packed + packed // 4) + 32 * _CHUNK, parse_memory(None)
        if needed > budget:
            raise MemoryBudgetError(
                f"{file} has NORB={header.norb}, whose integrals need {needed} bytes ({bytes_text(needed)}). There are "
                f"{budget} bytes ({bytes_text(budget)}). Use a computer with more memory, or fewer orbitals.",
                budget,
                needed,
            )
        self.eri, self.h1, self.core = np.full(packed, np.nan), np.full(pairs, np.nan), np.full(1, np.nan)
        self.labels = _numberings(header.orbsym)
        self.forbidden = [0.0] * len(self.labels)

    def add(self, chunk: bytes, line: int) -> None:
        """Take the integrals of some lines, the first of which has that number."""
        lines = line + self._rows(chunk, line)
        if not len(lines):
            return
        numbers = _numbers(chunk.translate(_TABLE), len(lines))
        if numbers is None:
            self._complain(chunk, line)
        values, given = numbers[:, 0], numbers[:, 1:]
        wrong = ~((given >= 0) & (given <= self.header.norb) & (given == np.floor(given))).all(axis=1)
        used = given > 0
        # Integrals of two electrons, of one, orbital energies, the core energy.
        kinds = [
            (used == np.array(kind)).all(axis=1) for kind in ((1, 1, 1, 1), (1, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0))
        ]
        wrong |= ~np.any(kinds, axis=0)
        indices = f"indices from 0 to {self.header.norb}"
        for rows, expected in ((wrong, indices), (~np.isfinite(values), "a finite number")):
            if rows.any():
                at = int(lines[np.argmax(rows)])
                self._reject(at, _line(chunk, at - line), expected)
        index = given.astype(np.int64)
        i, j, k, l = index.T - 1  # noqa: E741
        self._put(self.eri, _packed(_packed(i, j), _packed(k, l)), kinds[0], values, lines)
        self._put(self.h1, _packed(i, j), kinds[1], values, lines)
        self._put(self.core, np.zeros_like(i), kinds[3], values, lines)
        self._check_labels(values, index, kinds[0] | kinds[1])

    def _rows(self, chunk: bytes, line: int) -> Ints:
        """The lines that are not empty; each has five numbers."""
        letters = np.frombuffer(chunk, np.uint8)
        blank = np.isin(letters, np.frombuffer(_BLANKS, np.uint8))
        begins = np.flatnonzero(~blank & np.append(True, blank[:-1]))
        ends = np.append(np.flatnonzero(letters == ord("\n")), len(letters))
        counts = np.diff(np.searchsorted(begins, ends), prepend=0)
        wrong = np.flatnonzero((counts != 0) & (counts != 5))
        if len(wrong):
            at = int(wrong[0])
            self._reject(line + at, _line(chunk, at), "a number and four indices")
        return np.flatnonzero(counts)

    def _complain(self, chunk: bytes, line: int) -> NoReturn:
        """Find the line that is no integral."""
        for number, each in enumerate(chunk.split(b"\n"), line):
            if any(_NUMBER.fullmatch(word) is None for word in each.replace(b",", b" ").split()):
                self._reject(number, each, "a real number and four indices")
        raise StorageError(f"Lines from {line} of {self.file} cannot be read. {_FORMAT} Write the file again.")

    def _reject(self, line: int, text: bytes, expected: str) -> NoReturn:
        shown = text.strip().decode("ascii", "replace")
        if shown.startswith("("):
            raise InputError(
                f"Line {line} of {self.file} has a complex number: {shown[:60]!r}. Expected real orbitals. Write the "
                "file with real ones."
            )
        raise InputError(
            f"Line {line} of {self.file} is {shown[:60]!r}. Expected {expected}. {_FORMAT} Correct the line, or write "
            "the file again."
        )

    def _put(self, array: Floats, places: Ints, kind: npt.NDArray[np.bool_], values: Floats, lines: Ints) -> None:
        """Store values; those that are given more than once have to agree."""
        rows = np.flatnonzero(kind)
        places, given = places[rows], values[rows]
        before = array[places]
        array[places] = given
        for other in (before, array[places]):
            differ = np.abs(other - given) > _SAME
            if differ.any():
                at = int(np.argmax(differ))
                raise InputError(
                    f"Line {lines[rows[at]]} of {self.file} gives {given[at]} for an integral that has the value "
                    f"{other[at]} elsewhere. Expected (ij|kl) = (ji|kl) = (kl|ij) of real orbitals. Write the file "
                    "again, with real ones."
                )

    def _check_labels(self, values: Floats, index: Ints, kind: npt.NDArray[np.bool_]) -> None:
        """Note the largest integral that each numbering of irreps forbids."""
        for number, labels in enumerate(self.labels):
            product = np.bitwise_xor.reduce(np.append(0, labels)[index], axis=1)
            forbidden = np.abs(values[kind & (product != 0)]).max(initial=0.0)
            self.forbidden[number] = max(self.forbidden[number], float(forbidden))

    def finish(self) -> Fcidump:
        """All that was read; what is not in the file is zero."""
        header = self.header
        if np.isnan(self.core[0]):
            raise StorageError(
                f"{self.file} has no core energy, 'value 0 0 0 0', which is its last line. {_FORMAT} The file was cut "
                "off: write it again, or add the line if the energy is 0."
            )
        for array in (self.eri, self.h1):
            array[np.isnan(array)] = 0.0
        h1 = np.empty((header.norb, header.norb))
        p, q = np.tril_indices(header.norb)
        h1[p, q] = h1[q, p] = self.h1
        labels = self._irreps()
        for array in (h1, self.eri, *([] if labels is None else [labels])):
            array.flags.writeable = False
        return Fcidump(header.norb, header.nelec, header.ms2, header.isym, labels, h1, self.eri, float(self.core[0]))

    def _irreps(self) -> Ints | None:
        for labels, forbidden in zip(self.labels, self.forbidden, strict=True):
            if forbidden <= _SAME:
                return labels
        if not self.labels:
            return None
        raise InputError(
            f"ORBSYM of {self.file} forbids integrals of up to {min(self.forbidden):.3g} that the file has. Expected "
            "irreps whose products are XORs, counted from 1 as Molpro does or from 0 as PySCF does. Correct ORBSYM, or "
            "write 1 for each orbital."
        )


def _numberings(orbsym: Ints | None) -> list[Ints]:
    """Irreps from 0 as the numbers of a file may be meant, most likely first."""
    if orbsym is None:
        return []
    from_one = [orbsym - 1] if orbsym.min() > 0 else []
    return from_one + ([orbsym] if orbsym.max() < 8 else [])


def _numbers(text: bytes, lines: int) -> Floats | None:
    """Five numbers of each line; None if something is no number."""
    for letters in (text, re.sub(rb"(?<=[0-9.])(?=[+-])", b"e", text)):  # Fortran leaves the E of E-100 out
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = np.fromstring(letters, sep=" ")
        except (DeprecationWarning, ValueError):
            continue
        if len(found) == 5 * lines:
            return found.reshape(lines, 5)
    return None


def _line(chunk: bytes, number: int) -> bytes:
    return chunk.split(b"\n")[number]


def _packed(first: Ints, second: Ints) -> Ints:
    """PySCF's number of a pair: row by row of a lower triangle."""
    high, low = np.maximum(first, second), np.minimum(first, second)
    number: Ints = high * (high + 1) // 2 + low
    return number


def reference(dump: Fcidump, occupied: Sequence[int] | None = None) -> FcidumpReference:
    """The closed-shell determinant in which a number of orbitals are doubly occupied.

    With it, the Fock matrix is ``f(pq) = h(pq) + sum_i [2 (pq|ii) - (pi|qi)]`` and the energy
    ``E = E_core + sum_i [h(ii) + f(ii)]``.

    Parameters
    ----------
    dump : Fcidump
        The Hamiltonian.
    occupied : sequence of int, optional
        Orbitals that are occupied, from 0; the first ones by default.
    """
    pairs = _count_pairs(dump)
    filled = np.arange(pairs) if occupied is None else _parse_occupied(occupied, dump.norb, pairs)
    fock = _fock(dump, filled)
    energies = np.diagonal(fock).copy()
    occupations = np.zeros(dump.norb)
    occupations[filled] = 2.0
    if occupied is None and pairs < dump.norb and energies[:pairs].max() > energies[pairs:].min():
        raise InputError(
            f"The first {pairs} orbitals have energies up to {energies[:pairs].max():.6f}, the others from "
            f"{energies[pairs:].min():.6f} hartree on. Expected the occupied ones first: are they sorted by irrep? "
            "Sort them by energy when the file is written, or name them with occupied=."
        )
    e_tot = dump.ecore + float(np.diagonal(dump.h1)[filled].sum() + energies[filled].sum())
    return FcidumpReference(np.eye(dump.norb), energies, occupations, e_tot, fock, dump.eri, dump.orbsym)


def _count_pairs(dump: Fcidump) -> int:
    """Doubly occupied orbitals, or why there is no closed shell."""
    remedy = "Use a file of a closed shell."
    if dump.nelec % 2 or dump.nelec < 2:
        raise InputError(f"The file has NELEC={dump.nelec}. Expected an even number of electrons, at least 2. {remedy}")
    if dump.ms2:
        raise InputError(f"The file has MS2={dump.ms2}: an open shell. Expected MS2=0. {remedy}")
    if dump.isym:
        raise InputError(
            f"The file has ISYM={dump.isym + 1}. Expected the totally symmetric irrep, ISYM=1, which a closed shell "
            f"belongs to. {remedy}"
        )
    if dump.nelec > 2 * dump.norb:
        raise InputError(
            f"The file has NELEC={dump.nelec} and NORB={dump.norb}. Expected at most two electrons in an orbital. "
            "Correct the header."
        )
    return dump.nelec // 2


def _parse_occupied(occupied: Sequence[int], norb: int, pairs: int) -> Ints:
    remedy = "List each occupied orbital once, counted from 0."
    listed = parse_integers(occupied, "The orbitals of occupied=", remedy)
    if listed.shape != (pairs,) or len(np.unique(listed)) != pairs or not np.isin(listed, np.arange(norb)).all():
        raise InputError(
            f"occupied={occupied!r:.80} does not list {pairs} orbitals. Expected different numbers from 0 to "
            f"{norb - 1}. {remedy}"
        )
    return np.sort(listed)


def _fock(dump: Fcidump, occupied: Ints) -> Floats:
    p, q = np.tril_indices(dump.norb)
    pq = np.arange(len(p))
    lower = dump.h1[p, q]
    for i in occupied:
        direct, exchange = _packed(pq, _packed(i, i)), _packed(_packed(p, i), _packed(q, i))
        lower += 2 * dump.eri[direct] - dump.eri[exchange]
    fock = np.empty((dump.norb, dump.norb))
    fock[p, q] = fock[q, p] = lower
    return fock
