"""The parts of a transform that are done, in a file, so that a killed job can go on from there.

Layout: a header (`Heading`), then *units*, one after the other. A unit is what is not computed again: O2 of a pair of
functions, C of a leading pair, or C after some slabs. Each has a head with its kind, its number, its bytes and two
CRC-32, of the elements and of the head itself, and the elements follow as they lie in memory. Units are appended, so a
job that is killed leaves at most one that is cut off, which the next one removes; C after a slab replaces the file by
a new one, by a draft, so that there is always a whole one. All numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError, StorageError
from tilewise.plans.transform import SCHEDULES, Problem, Variant
from tilewise.tensors.drafts import check_regular, draft, fcntl, parse_path, remove_leftovers

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

MAGIC = b"tilewise restart"
VERSION = 2
DIGEST_BYTES = 32
FIXED = struct.Struct(f"<16sQ{DIGEST_BYTES}s5Q")
"""Magic, version, digest of the transform, schedule, keeps, rows_held, spills_result, number of parts."""
PART = struct.Struct("<2Q")
"""A range of tiles."""
HEAD = struct.Struct("<QQQI")
"""Kind, number and bytes of a unit, and the CRC-32 of its elements."""
CHECK = struct.Struct("<I")
"""CRC-32 of a head."""
HEAD_BYTES = HEAD.size + CHECK.size
MOST_PARTS = 1 << 20
"""More parts than any transform has: a number that is read from a file is not believed."""
READ_BYTES = 1 << 20

ROW, PAIR, SLABS = 1, 2, 3
"""Kinds of units: O2 of a pair of functions, C of a leading pair, C after so many slabs."""

SYNC_SECONDS = 1.0
"""Time between two requests that what was written reaches the disk: a computer that fails loses about as much."""


class Units(Protocol):
    """What a run knows of the parts that are done."""

    def has(self, kind: int, number: int) -> bool:
        """Whether a unit is there."""

    def numbers(self, kind: int) -> list[int]:
        """The units of a kind, in ascending order."""

    def read(self, kind: int, number: int, pieces: Sequence[Floats]) -> None:
        """Fill arrays with a unit."""

    def append(self, kind: int, number: int, pieces: Sequence[Floats]) -> None:
        """Add a unit."""

    def replace(self, kind: int, number: int, pieces: Sequence[Floats]) -> None:
        """Put a unit in the place of all that there are."""

    def sync(self) -> None:
        """Wait until all units are on the disk."""

    def remove(self) -> None:
        """Forget everything: the transform is done."""


class Unsaved:
    """Nothing is done yet, and nothing is kept."""

    def has(self, kind: int, number: int) -> bool:
        """Never."""
        return False

    def numbers(self, kind: int) -> list[int]:
        """None."""
        return []

    def read(self, kind: int, number: int, pieces: Sequence[Floats]) -> None:
        """There is nothing to read."""

    def append(self, kind: int, number: int, pieces: Sequence[Floats]) -> None:
        """It is not kept."""

    def replace(self, kind: int, number: int, pieces: Sequence[Floats]) -> None:
        """It is not kept."""

    def sync(self) -> None:
        """There is nothing to wait for."""

    def remove(self) -> None:
        """There is nothing to forget."""


@dataclass(frozen=True, slots=True)
class Heading:
    """What the units of a file belong to."""

    digest: bytes
    """Of all that the result depends on, see `digest_transform`."""
    variant: Variant
    """How the transform is run: units of one variant are of no use to another."""

    def packed(self) -> bytes:
        """The heading as it stands in a file, with a digest of itself."""
        variant = self.variant
        flags = int(variant.keeps), variant.rows_held, int(variant.spills_result)
        schedule = SCHEDULES.index(variant.schedule)
        fields = FIXED.pack(MAGIC, VERSION, self.digest, schedule, *flags, len(variant.parts))
        fields += b"".join(PART.pack(*part) for part in variant.parts)
        return fields + _digest(fields)

    @classmethod
    def read(cls, handle: int, path: Path) -> Heading:
        """Read and check the first bytes of an open file."""
        fields = _read_bytes(handle, 0, FIXED.size)
        if not fields.startswith(MAGIC):
            raise StorageError(
                f"{path} is no checkpoint of a transform. Expected one, or a name that is not in use. Check the name."
            )
        if len(fields) < FIXED.size:
            raise _damaged(path)
        _, version, digest, schedule, keeps, rows, result, count = FIXED.unpack(fields)
        if version != VERSION:
            raise StorageError(
                f"{path} has version {version} of the format of checkpoints. This tilewise reads version {VERSION}. "
                "Use the tilewise that wrote it, or name another file."
            )
        rest = _read_bytes(handle, FIXED.size, PART.size * min(count, MOST_PARTS) + DIGEST_BYTES)
        parts, found = rest[:-DIGEST_BYTES], rest[-DIGEST_BYTES:]
        if count > MOST_PARTS or len(parts) != PART.size * count or _digest(fields + parts) != found:
            raise _damaged(path)
        ranges = tuple((begin, end) for begin, end in PART.iter_unpack(parts))
        return cls(digest, Variant(SCHEDULES[schedule], bool(keeps), ranges, rows, bool(result)))


@dataclass(frozen=True, slots=True)
class Unit:
    """Where a unit is."""

    begin: int
    """Byte of the file at which its elements begin."""
    length: int
    """Their bytes."""
    crc: int
    """Their CRC-32."""


class Checkpoint:
    """An open file of units, which no other job can open; made by `open_checkpoint`.

    Parameters
    ----------
    path : Path
        The file, links followed.
    heading : Heading
        What it belongs to.
    handle : int
        The open file, locked.
    """

    def __init__(self, path: Path, heading: Heading, handle: int) -> None:
        self.path, self.heading, self.handle = path, heading, handle
        self.units: dict[tuple[int, int], Unit] = {}
        self.end = len(heading.packed())
        self._synced = time.monotonic()

    def has(self, kind: int, number: int) -> bool:
        """Whether a unit is there."""
        return (kind, number) in self.units

    def numbers(self, kind: int) -> list[int]:
        """The units of a kind, in ascending order."""
        return sorted(number for found, number in self.units if found == kind)

    def scan(self) -> None:
        """Find the units; the file is cut off where one is damaged or not whole."""
        with _explained(self.path, "read"):
            size = os.fstat(self.handle).st_size
            while (found := self._unit_at(self.end, size)) is not None:
                key, unit = found
                self.units[key] = unit
                self.end = unit.begin + unit.length
            if self.end < size:
                os.ftruncate(self.handle, self.end)

    def _unit_at(self, at: int, size: int) -> tuple[tuple[int, int], Unit] | None:
        head = _read_bytes(self.handle, at, HEAD_BYTES)
        if len(head) < HEAD_BYTES or CHECK.pack(zlib.crc32(head[: HEAD.size])) != head[HEAD.size :]:
            return None
        kind, number, length, crc = HEAD.unpack(head[: HEAD.size])
        unit = Unit(at + HEAD_BYTES, length, crc)
        if kind not in (ROW, PAIR, SLABS) or unit.begin + length > size or self._crc_of(unit) != crc:
            return None
        return (kind, number), unit

    def _crc_of(self, unit: Unit) -> int:
        crc = 0
        for done in range(0, unit.length, READ_BYTES):
            crc = zlib.crc32(_read_bytes(self.handle, unit.begin + done, min(READ_BYTES, unit.length - done)), crc)
        return crc

    def read(self, kind: int, number: int, pieces: Sequence[Floats]) -> None:
        """Fill arrays with a unit, which must have as many bytes."""
        unit, crc, done = self.units[kind, number], 0, 0
        with _explained(self.path, "read"):
            for view in _views(pieces):
                done += _read_into(self.handle, view, unit.begin + done)
                crc = zlib.crc32(view, crc)
        if done != unit.length or crc != unit.crc or done != sum(piece.nbytes for piece in pieces):
            raise StorageError(
                f"The checkpoint {self.path} has {unit.length} bytes for unit {number} that are not those that were "
                f"written. Expected {sum(piece.nbytes for piece in pieces)} bytes as they were. Remove the file."
            )

    def append(self, kind: int, number: int, pieces: Sequence[Floats]) -> None:
        """Write a unit behind the others; if that fails, they are as they were."""
        with _explained(self.path, "written"):
            try:
                unit = _write_unit(self.handle, self.end, kind, number, pieces)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(self.handle, self.end)
                raise
            self.units[kind, number], self.end = unit, unit.begin + unit.length
            if time.monotonic() - self._synced > SYNC_SECONDS:
                self.sync()

    def replace(self, kind: int, number: int, pieces: Sequence[Floats]) -> None:
        """Write a file that has this unit only, and put it in the place of the old one, or leave that as it was."""
        units: dict[tuple[int, int], Unit] = {}

        def write(handle: int, at: int) -> None:
            units[kind, number] = _write_unit(handle, at, kind, number, pieces)

        handle = _write_file(self.path, self.heading, write)
        os.close(self.handle)
        unit = units[kind, number]
        self.handle, self.units, self.end = handle, units, unit.begin + unit.length

    def sync(self) -> None:
        """Wait until all units are on the disk."""
        with _explained(self.path, "written"):
            os.fsync(self.handle)
        self._synced = time.monotonic()

    def remove(self) -> None:
        """Remove the file."""
        with suppress(OSError):  # the result is there: a file that stays is no reason to lose it
            if _is_at(self.handle, self.path):
                os.unlink(self.path)
        self.units.clear()

    def close(self) -> None:
        """Let others open the file."""
        os.close(self.handle)


def parse_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The file of a checkpoint as a user gives it; checked before a long run needs it."""
    try:
        found = parse_path(path).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise StorageError(f"checkpoint={str(path)!r} cannot be used: {error}. Expected a file. Name one.") from error
    check_regular(found)
    if not found.parent.is_dir() or not os.access(found.parent, os.W_OK | os.X_OK):
        why = "cannot be written to" if found.parent.is_dir() else "does not exist"
        raise StorageError(
            f"checkpoint={str(path)!r} is in a folder that {why}. Expected one on a disk with room. Make it, or name "
            "another."
        )
    return found


def read_variant(path: Path, digest: bytes) -> Variant | None:
    """How the transform in a file is run, None if there is no file; an error if it is another transform."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, "read", error) from error
    try:
        with _explained(path, "read"):
            heading = Heading.read(handle, path)
    finally:
        os.close(handle)
    _check_digest(path, heading, digest)
    return heading.variant


@contextmanager
def open_checkpoint(path: Path, heading: Heading) -> Iterator[Checkpoint]:
    """The units of a transform in a file, which is made if it is not there, and closed at the end of the block."""
    remove_leftovers(path.parent)
    handle = _open_locked(path)
    if handle is None:
        handle = _write_file(path, heading)
    opened = Checkpoint(path, heading, handle)
    try:
        with _explained(path, "read"):
            found = Heading.read(handle, path)
        _check_digest(path, found, heading.digest)
        if found.variant != heading.variant:
            raise InputError(
                f"The checkpoint {path} was begun with {_name(found.variant)}, and this transform was planned with "
                f"{_name(heading.variant)}. Expected the same. Make the Transform anew, or remove the file."
            )
        opened.scan()
        yield opened
    finally:
        opened.close()


def digest_transform(problem: Problem, matrices: Sequence[Floats], source: Sequence[Array | bytes]) -> bytes:
    """Digest of all that the result of a transform depends on.

    Parameters
    ----------
    problem : Problem
        The pairs of functions and orbitals.
    matrices : sequence of four arrays
        Coefficients of each mode.
    source : sequence of array or bytes
        What tells the source of the integrals from others.
    """
    summary = hashlib.blake2b(digest_size=DIGEST_BYTES)
    spaces = [problem.functions.spaces[0], *(space for side in problem.sides for space in side.spaces)]
    flags = np.array([problem.sign, *(side.symmetric for side in problem.sides), problem.needed is not None], np.int64)
    needed = [] if problem.needed is None else [problem.needed]
    arrays = [flags, *(space.sizes for space in spaces), problem.result.index, *needed, *matrices, *source]
    for value in arrays:
        array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.ascontiguousarray(value)
        summary.update(f"{array.dtype.str}{array.shape}".encode())
        summary.update(_bytes_of(array))
    return summary.digest()


def _name(variant: Variant) -> str:
    return f"{variant.schedule} ({str(variant) or 'all at once'})"


def _check_digest(path: Path, heading: Heading, digest: bytes) -> None:
    if heading.digest != digest:
        raise InputError(
            f"The checkpoint {path} belongs to another transform ({heading.digest.hex()[:12]}, this one is "
            f"{digest.hex()[:12]}): other integrals, orbitals or tiles. Expected the same call that was interrupted. "
            "Remove the file, or name another with checkpoint=."
        )


def _open_locked(path: Path) -> int | None:
    """Open and lock a file, None if it does not exist."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(path, "opened", error) from error
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise StorageError(
                f"The checkpoint {path} is in use by another job ({error.strerror}). Expected one job for each file. "
                "Wait until it has ended, or name another with checkpoint=."
            ) from error
        if _is_at(handle, path):
            return handle
        os.close(handle)  # the other job replaced or removed it in the meantime


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file still has its name."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)


def _write_file(path: Path, heading: Heading, write: Any = None) -> int:
    """Write a file with a heading and what `write` adds, whole or not at all; return it open and locked."""
    kept = -1
    try:
        with draft(path) as handle:
            packed = heading.packed()
            _write(handle, memoryview(packed), 0)
            if write is not None:
                write(handle, len(packed))
            kept = os.dup(handle)  # the lock belongs to both, and outlives the draft
    except BaseException:
        if kept >= 0:
            os.close(kept)
        raise
    return kept


def _write_unit(handle: int, at: int, kind: int, number: int, pieces: Sequence[Floats]) -> Unit:
    views, crc = _views(pieces), 0
    for view in views:
        crc = zlib.crc32(view, crc)
    unit = Unit(at + HEAD_BYTES, sum(len(view) for view in views), crc)
    head = HEAD.pack(kind, number, unit.length, crc)
    _write(handle, memoryview(head + CHECK.pack(zlib.crc32(head))), at)
    begin = unit.begin
    for view in views:
        _write(handle, view, begin)
        begin += len(view)
    return unit


def _views(pieces: Sequence[Floats]) -> list[memoryview]:
    """The memory of arrays, which are contiguous: nothing is copied."""
    return [_bytes_of(piece) for piece in pieces]


def _bytes_of(values: Array) -> memoryview:
    assert values.flags.c_contiguous
    flat: Any = values.reshape(-1)
    return memoryview(flat).cast("B") if flat.size else memoryview(b"")


def _write(handle: int, view: memoryview, at: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(handle, view[done:], at + done)


def _read_into(handle: int, view: memoryview, at: int) -> int:
    """Fill memory from a place of a file; return the bytes there were."""
    done = 0
    while done < len(view) and (count := os.preadv(handle, [view[done:]], at + done)):
        done += count
    return done


def _read_bytes(handle: int, at: int, count: int) -> bytes:
    buffer = bytearray(count)
    return bytes(buffer[: _read_into(handle, memoryview(buffer), at)])


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


@contextmanager
def _explained(path: Path, verb: str) -> Iterator[None]:
    """Errors of the system as errors of ours."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise _unusable(path, verb, error) from error


def _unusable(path: Path, verb: str, error: OSError) -> StorageError:
    return StorageError(
        f"The checkpoint {path} cannot be {verb}: {error.strerror or error}. What was there is unchanged. Expected a "
        "disk with room and the right to write. Free space, or name a file on another disk with checkpoint=."
    )


def _damaged(path: Path) -> StorageError:
    return StorageError(
        f"The checkpoint {path} is damaged: its first bytes do not match their checksum. Expected them as they were "
        "written. Remove it to begin anew, or name another file."
    )
