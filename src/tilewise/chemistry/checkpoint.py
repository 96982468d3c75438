"""The state of an iteration in files, so that a job that was stopped goes on as if it never had been.

A checkpoint has two generations. ``run.h5``, the *manifest*, says which amplitudes make up the state after the last
iteration, and ``run.h5.previous`` the same for the one before; both are small. The amplitudes that each iteration has
made are tensors of their own, ``run.h5.000012.t2.h5`` for iteration 12, written once and removed when neither manifest
names them. A manifest has a checksum of itself and of what identifies each tensor file, and these have checksums of
their own. Every file appears whole or not at all, a manifest after what it names: whenever a job is killed, one of the
two generations is whole.

Steps are not written: an iteration's step is what it made less what it was made of, which is a known sum of amplitudes
of earlier iterations. That halves what is written, and gives the same bits.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from tilewise.chemistry.diis import Amplitudes, Diis, difference, mix
from tilewise.engines.base import current_engine
from tilewise.engines.transform.checkpoint import parse_checkpoint
from tilewise.errors import InputError, StorageError, TilewiseError
from tilewise.patterns import Pattern, equal_structure
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.drafts import draft, fcntl
from tilewise.tensors.files import HEADER_BYTES, OpenFile, load_tensor

__all__ = ["Checkpoint", "Saved", "State"]

Floats = npt.NDArray[np.float64]

Kind = tuple[Pattern, np.dtype[Any]]
"""Which blocks amplitudes have, and their element type."""

MAGIC = b"tilewise amplit\n"
VERSION = 1
HEADER = struct.Struct("<16sQQ32s")
"""Magic, version, bytes of the file, digest of what follows."""
DIGEST_BYTES = 32
MOST_BYTES = 1 << 28
"""More than any manifest has: a larger file is none."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything but the amplitudes that the next iteration depends on."""

    method: str
    """Name of the method."""
    cycle: int
    """Iterations that are done."""
    energies: tuple[float, ...]
    """Correlation energy of the start and after each iteration, in hartree."""
    norms: tuple[float, ...]
    """Norm of the step of each iteration."""
    mixes: Mapping[int, Mapping[int, float]]
    """By iteration: of the amplitudes of which iterations those it ended with are the sum, and how much of each."""
    numbers: tuple[int, ...] = ()
    """Iterations that DIIS remembers."""
    overlaps: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Scalar products of their steps."""

    @property
    def named(self) -> set[int]:
        """The iterations whose amplitudes are needed: for where to go on from, for DIIS, and for the steps of these."""
        mixes = [self.mixes[self.cycle], *(self.mixes[number - 1] for number in self.numbers)]
        return {*self.numbers, *(number for weights in mixes for number in weights)}


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """A state that was read, and its amplitudes, still in their files."""

    state: State
    """The state."""
    vectors: Mapping[int, Amplitudes]
    """What each iteration has made; 0 is the start."""

    def amplitudes(self, like: Amplitudes) -> Amplitudes:
        """What the next iteration starts from."""
        return self._mixed(self.state.cycle, like)

    def restore(self, diis: Diis, like: Amplitudes) -> None:
        """Give DIIS its memory back, as far as it has space; what is `like` is written over if DIIS is on disk."""
        into = {name: tensor.arena for name, tensor in like.items()} if diis.on_disk else None
        numbers = self.state.numbers[-diis.room :] if diis.room else ()
        for number in numbers:
            made = mix({number: 1.0}, self.vectors, like, into)
            diis.remember(number, made, difference(made, self._mixed(number - 1, like)))
        first = len(self.state.numbers) - len(numbers)
        diis.overlaps = self.state.overlaps[first:, first:]

    def _mixed(self, cycle: int, like: Amplitudes) -> Amplitudes:
        return mix(self.state.mixes[cycle], self.vectors, like)


class Checkpoint:
    """Keeps the state of an iteration in files.

    Parameters
    ----------
    path : str or Path
        The manifest; other files are next to it, and their names begin with its name.
    digest : bytes
        Tells the problem from others: the molecule, the orbitals, the method, all that the iteration depends on.
    engine : Engine, optional
        Whose ranks share the amplitudes; the first one writes. The engine in use by default.

    Notes
    -----
    A job that finds the manifest goes on from it; removing the manifest means to begin anew. Nothing is removed when
    an iteration has converged: the amplitudes serve what comes after it, and a tighter convergence goes on with all of
    its memory. That takes the space of up to twice as many amplitudes as DIIS combines; `remove` frees it.

    As long as it is open, from the first `read` or `write` to `close`, no other job can use it.
    """

    def __init__(self, path: str | os.PathLike[str], digest: bytes, engine: Engine | None = None) -> None:
        if not isinstance(digest, bytes) or not digest:
            raise InputError(
                f"digest={digest!r:.40} identifies no problem. Expected some bytes. Pass those of a hash, such as "
                "hashlib.blake2b(...).digest()."
            )
        self.path, self.digest = parse_checkpoint(path), digest
        self.engine = current_engine() if engine is None else engine
        self._lock: OpenFile | None = None
        self._last: _Manifest | None = None
        self._marks: dict[str, bytes] = {}
        self._seen: list[State | None] = []

    @property
    def previous(self) -> Path:
        """The manifest of the generation before."""
        return self.path.with_name(f"{self.path.name}.previous")

    def tensor_path(self, cycle: int, name: str) -> Path:
        """Where the amplitudes are that an iteration has made."""
        return self.path.with_name(f"{self.path.name}.{cycle:06d}.{name}.h5")

    def look(self, kinds: Mapping[str, Kind], method: str) -> None:
        """Raise, before any work is done, if a run could not go on from what is there; `read` comes later.

        Parameters
        ----------
        kinds : dict of str to Kind
            Patterns and element types of the amplitudes of this problem.
        method : str
            What made them.
        """
        try:
            state = self._agreed_state(tuple(kinds))
            if state is not None:
                self.check_method(state, method)
                self._open(state, kinds)
        except TilewiseError:
            self.close()
            raise
        self._seen = [state]

    def check_method(self, state: State, method: str) -> None:
        """Raise if a state is that of another method."""
        if state.method != method:
            raise InputError(
                f"The checkpoint {self.path} has amplitudes of {state.method}. Expected those of {method}. Remove the "
                "file to begin anew, or name another with checkpoint=."
            )

    def _agreed_state(self, names: tuple[str, ...]) -> State | None:
        state: State | None = self.engine.of_first(self.engine.agree(lambda: self._find(names), once=True))
        return state

    def read(self, like: Amplitudes) -> Saved | None:
        """The last state that is whole, None if there is none.

        Parameters
        ----------
        like : dict of str to BlockTensor
            Amplitudes of this problem: those of the file must have the same names, spaces and blocks.
        """
        try:
            state = self._seen.pop() if self._seen else self._agreed_state(tuple(like))
            kinds = {name: (tensor.pattern, tensor.dtype) for name, tensor in like.items()}
            return None if state is None else Saved(state, self._open(state, kinds))
        except TilewiseError:
            self.close()
            raise

    def _open(self, state: State, kinds: Mapping[str, Kind]) -> dict[int, Amplitudes]:
        """The amplitudes that a state names, in their files."""
        vectors = {
            number: {name: load_tensor(self.tensor_path(number, name), True, self.engine) for name in kinds}
            for number in state.named
        }
        for made in vectors.values():
            for name, tensor in made.items():
                self._check_structure(name, tensor, *kinds[name])
        return vectors

    def write(self, state: State, amplitudes: Amplitudes) -> None:
        """Make a state the newest generation, and the newest one the one before.

        Parameters
        ----------
        state : State
            After an iteration, or before the first.
        amplitudes : dict of str to BlockTensor
            What this iteration has made, before DIIS.
        """
        _check_names(amplitudes)
        self.engine.agree(self._check_place, once=True)
        for name, tensor in amplitudes.items():
            tensor.save(self.tensor_path(state.cycle, name))
        self.engine.agree(lambda: self._write(state, tuple(amplitudes)), once=True)

    def remove(self) -> None:
        """Remove all files of the checkpoint."""
        try:
            self.engine.agree(self._remove, once=True)
        finally:
            self.close()

    def close(self) -> None:
        """Let other jobs use the checkpoint."""
        self._lock, self._seen = None, []  # nobody else has the open file, which is closed with that

    # What follows is done by the first rank.

    def _find(self, names: tuple[str, ...]) -> State | None:
        """The newest state whose files are all whole; a warning says if that is not the last one."""
        if self._lock is None:
            self._lock = _lock(self.path)
        if not self.path.exists():
            self._last = None
            return None
        try:
            return self._whole(self.path, names)
        except StorageError as error:
            newest = error
        found, what = self._fall_back(newest, names)
        warnings.warn(what, RuntimeWarning, stacklevel=2)
        return found

    def _fall_back(self, newest: StorageError, names: tuple[str, ...]) -> tuple[State, str]:
        """An older state that can be used, and what to say of it; the newest one is damaged."""
        try:
            found = self._whole(self.previous, names)
        except StorageError as error:
            previous = error
        else:
            return found, (
                f"The newest generation of the checkpoint {self.path} is damaged: {newest} The one before it is used: "
                f"the run goes on after iteration {found.cycle}."
            )
        if isinstance(newest, _ForeignError):
            raise newest from None
        made = self._last_made(names)
        if made is None:
            raise StorageError(
                f"Neither generation of the checkpoint {self.path} is whole. {newest} {previous} Expected one of them "
                f"as it was written. Remove {self.path.name} to begin anew."
            ) from previous
        return made, (
            f"Neither generation of the checkpoint {self.path} is whole. {newest} What iteration {made.cycle} has made "
            "is: the run goes on from there, without the amplitudes that DIIS remembered."
        )

    def _whole(self, path: Path, names: tuple[str, ...]) -> State:
        """The state in a manifest whose files are all whole."""
        manifest = self._manifest(path, names)
        for number in manifest.state.named:
            self._check_made(number, manifest)
        self._last, self._marks = manifest, dict(manifest.marks)
        return manifest.state

    def _manifest(self, path: Path, names: tuple[str, ...]) -> _Manifest:
        """A manifest, if it is one of this problem."""
        manifest = _Manifest.read(path)
        if manifest.digest != self.digest:
            raise InputError(
                f"The checkpoint {path} belongs to another calculation ({manifest.digest.hex()[:12]}, this one is "
                f"{self.digest.hex()[:12]}): another molecule, basis, kind of integrals, ladder, orbitals or tiles. "
                "Expected the input of the run that was interrupted. Remove the file to begin anew, or name another "
                "with checkpoint=."
            )
        if set(names) != set(manifest.names):
            raise InputError(
                f"The checkpoint {path} has amplitudes {', '.join(manifest.names)}. Expected {', '.join(names)}. "
                "Remove the file to begin anew, or name another with checkpoint=."
            )
        return manifest

    def _check_made(self, number: int, manifest: _Manifest) -> None:
        """Raise if the amplitudes that an iteration has made are not whole."""
        for name in manifest.names:
            self._check_whole(self.tensor_path(number, name), manifest.marks)

    def _last_made(self, names: tuple[str, ...]) -> State | None:
        """A state that begins with the amplitudes of one iteration: the last whose files are whole."""
        for path in (self.path, self.previous):
            with suppress(StorageError):
                manifest = self._manifest(path, names)
                for number in sorted(manifest.state.named, reverse=True):
                    with suppress(StorageError):
                        self._check_made(number, manifest)
                        return self._begun_with(number, manifest)
        return None

    def _begun_with(self, number: int, manifest: _Manifest) -> State:
        before = manifest.state
        state = State(
            before.method, number, before.energies[: number + 1], before.norms[:number], {number: {number: 1.0}}
        )
        marks = {path.name: manifest.marks[path.name] for path in (self.tensor_path(number, n) for n in manifest.names)}
        self._last, self._marks = replace(manifest, state=state, marks=marks), marks
        return state

    def _check_whole(self, path: Path, marks: Mapping[str, bytes]) -> None:
        """Raise if a tensor is not the one that was written, to the last byte."""
        if _mark(path) != marks.get(path.name):
            raise StorageError(f"{path} is not the file that its manifest names.")
        tensor = load_tensor(path, True, self.engine)
        sizes = tensor.pattern.block_sizes
        room = np.empty(int(sizes.max(initial=0)), tensor.dtype)
        for row, size in enumerate(sizes.tolist()):
            tensor.storage.read(row, room[:size])

    def _check_structure(self, name: str, found: BlockTensor, pattern: Pattern, dtype: np.dtype[Any]) -> None:
        """Raise if amplitudes are not those of this problem."""
        same = equal_structure(found.pattern, pattern) and found.dtype == dtype
        if same and all(_same_order(a, b) for a, b in zip(found.spaces, pattern.spaces, strict=True)):
            return
        raise InputError(
            f"The amplitudes {name} of the checkpoint {self.path} are {found!r} over {found.spaces}. Expected those of "
            f"this calculation, {dtype} in {pattern!r} over {pattern.spaces}, in the same order. Give tile= as the run "
            "did that was interrupted, remove the file to begin anew, or name another with checkpoint=."
        )

    def _check_place(self) -> None:
        """Raise if another job has put its own manifest in the place of ours."""
        if self.path.exists() and (self._lock is None or not _is_at(self._lock, self.path)):
            raise _in_use(self.path)

    def _write(self, state: State, names: tuple[str, ...]) -> None:
        for name in names:
            path = self.tensor_path(state.cycle, name)
            self._marks[path.name] = _mark(path)
        needed = {self.tensor_path(number, name).name for number in state.named for name in names}
        manifest = _Manifest(self.digest, names, state, {name: self._marks[name] for name in needed})
        if self._last is None:
            _unlink(self.previous)  # of a run that was abandoned
        else:
            with draft(self.previous) as handle:
                _write_all(handle, self._last.packed())
        with draft(self.path) as handle:
            _write_all(handle, manifest.packed())
            held = OpenFile(os.dup(handle))  # the lock belongs to both, and outlives the draft
        self._lock, before, self._last = held, self._last, manifest
        self._remove_tensors(keep={*manifest.marks, *(before.marks if before else ())})

    def _remove_tensors(self, keep: set[str]) -> None:
        """Remove the amplitudes that no generation names."""
        ours = re.compile(rf"{re.escape(self.path.name)}\.\d{{6,}}\.\w+\.h5")
        for path in self.path.parent.iterdir():
            if ours.fullmatch(path.name) and path.name not in keep:
                _unlink(path)
        self._marks = {name: mark for name, mark in self._marks.items() if name in keep}

    def _remove(self) -> None:
        if self._lock is None:
            self._lock = _lock(self.path)
        self._check_place()
        if self._lock is not None and os.pread(self._lock.handle, len(MAGIC), 0) != MAGIC:
            raise _foreign(self.path)
        _unlink(self.path)  # first: what is left afterwards belongs to nothing
        _unlink(self.previous)
        self._remove_tensors(keep=set())
        self._last = None


class _ForeignError(StorageError):
    """A file that was never a manifest."""


@dataclass(frozen=True, slots=True, eq=False)
class _Manifest:
    """What a manifest says."""

    digest: bytes
    """Of the problem."""
    names: tuple[str, ...]
    """Of the amplitudes."""
    state: State
    """The state."""
    marks: Mapping[str, bytes]
    """By the name of a tensor file: what tells it from others."""

    def packed(self) -> bytes:
        """The bytes of the file: a header that HDF5 passes over, and an HDF5 file."""
        buffer = io.BytesIO()
        with h5py.File(buffer, "w", libver="latest", userblock_size=HEADER_BYTES) as file:
            self._fill(file)
        content = buffer.getvalue()[HEADER_BYTES:]
        header = HEADER.pack(MAGIC, VERSION, HEADER_BYTES + len(content), _digest(content))
        return (header + _digest(header)).ljust(HEADER_BYTES, b"\0") + content

    def _fill(self, file: Any) -> None:
        state = self.state
        file.attrs["method"], file.attrs["cycle"] = state.method, state.cycle
        file["digest"] = np.frombuffer(self.digest, np.uint8)
        file["energies"], file["norms"] = np.array(state.energies), np.array(state.norms)
        file["numbers"], file["overlaps"] = np.array(state.numbers, np.int64), state.overlaps
        triples = [(cycle, n, weight) for cycle, weights in state.mixes.items() for n, weight in weights.items()]
        file["mixes/cycle"] = np.array([cycle for cycle, _, _ in triples], np.int64)
        file["mixes/number"] = np.array([number for _, number, _ in triples], np.int64)
        file["mixes/weight"] = np.array([weight for _, _, weight in triples])
        file["names"] = np.array([name.encode() for name in self.names])
        files = sorted(self.marks)
        file["files"] = np.array([name.encode() for name in files])
        file["marks"] = np.frombuffer(b"".join(self.marks[name] for name in files), np.uint8).reshape(len(files), -1)

    @classmethod
    def read(cls, path: Path) -> _Manifest:
        """Read and check a file; HDF5 sees it only if it is as it was written."""
        with _explained(path):
            if path.stat().st_size > MOST_BYTES:
                raise _foreign(path)
            content = path.read_bytes()
        _check_bytes(path, content)
        try:
            with h5py.File(io.BytesIO(content), "r") as file:
                return cls._of(file)
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise StorageError(f"{path} holds no state ({error}).") from error

    @classmethod
    def _of(cls, file: Any) -> _Manifest:
        mixes: dict[int, dict[int, float]] = {}
        columns = (file[f"mixes/{name}"][...].tolist() for name in ("cycle", "number", "weight"))
        for cycle, number, weight in zip(*columns, strict=True):
            mixes.setdefault(cycle, {})[number] = weight
        state = State(
            method=str(file.attrs["method"]),
            cycle=int(file.attrs["cycle"]),
            energies=tuple(file["energies"][...].tolist()),
            norms=tuple(file["norms"][...].tolist()),
            mixes=mixes,
            numbers=tuple(file["numbers"][...].tolist()),
            overlaps=file["overlaps"][...],
        )
        names = tuple(name.decode() for name in file["names"][...].tolist())
        files = (name.decode() for name in file["files"][...].tolist())
        marks = {name: row.tobytes() for name, row in zip(files, file["marks"][...], strict=True)}
        return cls(file["digest"][...].tobytes(), names, state, marks)


def _check_bytes(path: Path, content: bytes) -> None:
    """Raise unless a file is a manifest as it was written."""
    header, rest = content[: HEADER.size], content[HEADER_BYTES:]
    if not content.startswith(MAGIC):
        raise _foreign(path)
    if _digest(header) != content[HEADER.size : HEADER.size + DIGEST_BYTES]:
        raise StorageError(f"The first bytes of {path} do not match their checksum.")
    _, version, size, digest = HEADER.unpack(header)
    if version != VERSION:
        raise StorageError(f"{path} has version {version} of the format, and this tilewise reads version {VERSION}.")
    if size != len(content) or digest != _digest(rest):
        raise StorageError(f"{path} does not match its checksum.")


def _foreign(path: Path) -> _ForeignError:
    return _ForeignError(
        f"{path} is no checkpoint of amplitudes. Expected one, or a name that is not in use. Check the name."
    )


def check_manifest(path: Path) -> None:
    """Raise if a file is there that is no checkpoint; one that is damaged is left to `Checkpoint.look`."""
    if path.exists():
        with _explained(path), path.open("rb") as file:
            start = file.read(len(MAGIC))
        if start and start != MAGIC:
            raise _foreign(path)


def _mark(path: Path) -> bytes:
    """What tells a tensor file from others: its header, in which there is a digest of all checksums of its blocks."""
    with _explained(path), path.open("rb") as file:
        return _digest(file.read(HEADER_BYTES))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _check_names(amplitudes: Amplitudes) -> None:
    for name in amplitudes:
        if not re.fullmatch(r"\w+", name, re.ASCII):
            raise InputError(
                f"Amplitudes are called {name!r}, which goes into the name of a file. Expected letters, digits and "
                "underscores. Rename them."
            )


def _same_order(left: Space, right: Space) -> bool:
    return bool(np.array_equal(left.order, right.order))


def _lock(path: Path) -> OpenFile | None:
    """Open a manifest so that no other job does; None if there is none."""
    while True:
        try:
            file = OpenFile(os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        try:
            if fcntl is not None:
                fcntl.flock(file.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _in_use(path) from error
        if _is_at(file, path):  # else it was replaced in the meantime
            return file


def _is_at(file: OpenFile, path: Path) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.handle))
    except FileNotFoundError:
        return False


def _in_use(path: Path) -> StorageError:
    return StorageError(
        f"The checkpoint {path} is in use by another job. Expected one job for each. Wait until it has ended, or name "
        "another with checkpoint=."
    )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Errors of the system as errors of ours."""
    try:
        yield
    except TilewiseError:
        raise
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path} cannot be read: {error.strerror or error}.")


def _unlink(path: Path) -> None:
    with suppress(OSError):  # a file that stays does no harm
        path.unlink()


def _write_all(handle: int, content: bytes) -> None:
    done = 0
    while done < len(content):
        done += os.write(handle, content[done:])
