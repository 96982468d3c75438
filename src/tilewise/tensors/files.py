"""Tensors in files: HDF5 that any HDF5 program opens, with checksums over every byte that matters.

Layout: 512 bytes of our own, which HDF5 passes over (its user block), then the HDF5 file. All blocks lie one after
the other in one contiguous data set, so that they are read and written at their place, by several threads at
once. Each block has a CRC-32, and everything outside the elements one digest, which is checked before the HDF5
library sees the file: it has crashed on damaged ones. Scratch files have nothing but elements; the sums of their blocks
are in memory.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import h5py
import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError, StorageError, TilewiseError
from tilewise.patterns import Pattern, Symmetry
from tilewise.spaces import Space
from tilewise.spaces.tiling import LABELS
from tilewise.tensors.drafts import check_regular, draft, parse_path
from tilewise.tensors.protocol import Engine
from tilewise.tensors.storage import DTYPES, block_offsets
from tilewise.tensors.tensor import BlockTensor

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

MAGIC = b"tilewise tensor\n"
VERSION = 1
HEADER = struct.Struct("<16sQQQQ32s")
"""Magic, version, bytes of the file, begin and bytes of the elements, digest of the rest."""

HEADER_BYTES = 512
DIGEST_BYTES = 32
READ_BYTES = 1 << 20
WORD_BYTES = 8

Checksum = Callable[[memoryview, int], int]
"""Takes bytes and the checksum of those before them."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first bytes of a file."""

    file_bytes: int
    """Length of the whole file."""
    data_begin: int
    """Where the elements begin."""
    data_bytes: int
    """Length of the elements."""
    digest: bytes
    """Digest of what lies neither here nor among the elements."""

    def packed(self) -> bytes:
        """The header as it stands in the file, with a digest of itself."""
        fields = HEADER.pack(MAGIC, VERSION, self.file_bytes, self.data_begin, self.data_bytes, self.digest)
        return (fields + _digest(fields)).ljust(HEADER_BYTES, b"\0")

    @classmethod
    def read(cls, handle: int, path: Path) -> Header:
        """Read and check the header of an open file."""
        first = _read_bytes(handle, 0, HEADER_BYTES)
        fields, digest = first[: HEADER.size], first[HEADER.size : HEADER.size + DIGEST_BYTES]
        if not first.startswith(MAGIC):
            raise StorageError(f"{path} is no file of tilewise. Expected one that save() wrote. Check the name.")
        if _digest(fields) != digest:
            raise _damaged(path, "its first bytes do not match their checksum")
        _, version, *places, rest = HEADER.unpack(fields)
        if version != VERSION:
            raise StorageError(
                f"{path} has version {version} of the file format. This tilewise reads version {VERSION}. Use the "
                "tilewise that wrote it."
            )
        file_bytes, data_begin, data_bytes = places
        return cls(file_bytes, data_begin, data_bytes, rest)


@dataclass(slots=True, weakref_slot=True)
class OpenFile:
    """A file descriptor that is closed with its last user."""

    handle: int
    """The descriptor."""

    def __deepcopy__(self, memo: dict[int, Any]) -> OpenFile:
        return self

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "A tensor whose elements are in a file cannot be pickled: the open file belongs to this process. Expected "
            "one in memory. Pickle tensor.copy(), or save() it and load() it in the other process."
        )

    def __del__(self) -> None:
        os.close(self.handle)


@dataclass(frozen=True, slots=True)
class FileStorage:
    """Blocks in a file, read when they are needed."""

    path: Path
    """Where the file was when it was opened; it may be renamed or removed since."""
    file: OpenFile
    """The open file."""
    pattern: Pattern
    """Its blocks."""
    dtype: np.dtype[Any]
    """Element type."""
    begin: Ints
    """Byte at which each block begins."""
    checksums: npt.NDArray[np.uint64]
    """Checksum of each block."""
    checksum: Checksum = zlib.crc32
    """What they were made with."""

    @property
    def parallel(self) -> bool:
        """Any number of threads may read."""
        return True

    def read(self, row: int, out: Array) -> None:
        """Read a block and compare it with its checksum."""
        try:
            found = self._read(row, out)
        except OSError as error:
            raise StorageError(
                f"Block {self._index(row)} of {self.path} cannot be read: {error.strerror or error}. Expected a disk "
                "that works. Check it, or use another copy of the file."
            ) from error
        if found != self.checksums[row]:
            raise _damaged(self.path, f"block {self._index(row)} does not match its checksum")

    def _read(self, row: int, out: Array) -> int | None:
        """Read a block and return its checksum, None if the file ends before.

        Another element type needs room besides: it is read part by part.
        """
        direct = out.dtype == self.dtype and out.flags.c_contiguous
        step = max(len(out), 1) if direct else READ_BYTES // self.dtype.itemsize
        found = 0
        for begin in range(0, len(out), step):
            part = out[begin : begin + step]
            values = part if direct else np.empty(len(part), self.dtype)
            view = _bytes_of(values)
            if _read_into(self.file.handle, view, int(self.begin[row]) + begin * self.dtype.itemsize) < len(view):
                return None
            found = self.checksum(view, found)
            if not direct:
                with np.errstate(over="ignore", invalid="ignore"):  # a damaged file may hold anything
                    part[...] = values
        return found

    def _index(self, row: int) -> tuple[int, ...]:
        return tuple(self.pattern.index[row].tolist())


def sum_words(view: memoryview, before: int = 0) -> int:
    """The sum of all words of eight bytes, added to that of what comes before.

    A file that is read again and again while products are computed needs a checksum that is faster than a disk.  This
    one notices a word that changed and a block in the place of another, but not words in another order.
    """
    whole = len(view) // WORD_BYTES * WORD_BYTES
    words = np.frombuffer(view[:whole], np.uint64)
    return (before + int(np.add.reduce(words)) + int.from_bytes(view[whole:], "little")) % (1 << 64)


class ScratchFile:
    """Blocks of one tensor written to a file that has no name, so that it is gone with the tensor or the process.

    Parameters
    ----------
    pattern : Pattern
        The blocks.
    dtype : dtype
        Element type.
    folder : str or Path, optional
        Where the disk is; the system's temporary folder by default.
    """

    def __init__(self, pattern: Pattern, dtype: np.dtype[Any], folder: str | os.PathLike[str] | None = None) -> None:
        self.pattern, self.dtype = pattern, dtype
        self.folder = Path(tempfile.gettempdir() if folder is None else parse_path(folder))
        self.begin = block_offsets(pattern) * dtype.itemsize
        self.checksums = np.zeros(pattern.nnz_blocks, np.uint64)
        self.norms = np.zeros(pattern.nnz_blocks)
        with self._errors(), tempfile.TemporaryFile(dir=self.folder, prefix="tilewise-") as stream:
            self.file = OpenFile(os.dup(stream.fileno()))

    def write(self, row: int, values: Array, norm: float) -> None:
        """Write a block and note a bound on its norm."""
        view = _bytes_of(values)
        self.checksums[row], self.norms[row] = sum_words(view), norm
        with self._errors():
            _write(self.file.handle, view, int(self.begin[row]))

    def tensor(self, engine: Engine) -> BlockTensor:
        """The tensor that was written."""
        pattern = self.pattern
        known = Pattern.trusted(pattern.spaces, pattern.index, self.norms, pattern.symmetry)
        where = self.folder / "(a scratch file)"
        storage = FileStorage(where, self.file, known, self.dtype, self.begin, self.checksums, sum_words)
        return BlockTensor(known, storage, engine)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            size = self.pattern.nbytes(self.dtype)
            raise StorageError(
                f"A result of {size} bytes cannot be written to scratch space in {self.folder}: "
                f"{error.strerror or error}. Expected a folder on a disk with that much room. Name one with scratch=."
            ) from error


def save_tensor(tensor: BlockTensor, path: str | os.PathLike[str]) -> None:
    """Write a tensor to a file, which appears whole or not at all; see `BlockTensor.save`."""
    tensor.engine.agree(lambda: _save(tensor, path), once=True)


def _save(tensor: BlockTensor, path: str | os.PathLike[str]) -> None:
    with draft(parse_path(path)) as handle:
        begin = _write_structure(handle, tensor)
        offsets = begin + block_offsets(tensor.pattern) * tensor.dtype.itemsize
        crc = np.zeros(tensor.pattern.nnz_blocks, np.uint32)
        for row, (_, block) in enumerate(tensor.blocks()):
            view = _bytes_of(block)
            crc[row] = zlib.crc32(view)
            _write(handle, view, int(offsets[row]))
        _finish(handle, tensor.nbytes, begin, crc)


def _write_structure(handle: int, tensor: BlockTensor) -> int:
    """Write everything but the elements and their checksums; return where the elements begin."""
    pattern = tensor.pattern
    with _hdf5(handle, "w") as file:
        file.attrs["format"], file.attrs["version"] = MAGIC.decode().strip(), VERSION
        file.attrs["error_bound"] = tensor.error_bound
        file["index"], file["norms"] = pattern.index, pattern.norms
        groups = [] if pattern.symmetry is None else pattern.symmetry.groups
        file["symmetry"] = np.array(
            [(mode, number, sign) for number, (modes, sign) in enumerate(groups) for mode in modes], np.int64
        ).reshape(-1, 3)
        for mode, space in enumerate(pattern.spaces):
            _write_space(file.create_group(f"spaces/{mode}"), space)
        _reserve(file, "crc", pattern.nnz_blocks, np.dtype(np.uint32))
        return _reserve(file, "data", pattern.nnz_elements, tensor.dtype)


def _write_space(group: Any, space: Space) -> None:
    group["sizes"] = space.sizes
    if space.name is not None:
        group.attrs["name"] = space.name
    for kind in LABELS:
        if (values := space.label(kind)) is not None:
            group[kind] = values
    if space.is_reordered:
        group["order"] = space.order


def _reserve(file: Any, name: str, count: int, dtype: np.dtype[Any]) -> int:
    """Make a contiguous data set whose elements are written later; return the byte of the file it begins at."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_layout(h5py.h5d.CONTIGUOUS)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    kind = h5py.h5t.py_create(dtype, logical=True)
    made = h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((count,)), settings)
    return int(made.get_offset() or 0) if count else 0


def _finish(handle: int, data_bytes: int, begin: int, crc: npt.NDArray[np.uint32]) -> None:
    """Write the blocks' checksums and the header."""
    if len(crc):
        with _hdf5(handle, "r+") as file:
            file["crc"][...] = crc
    size = os.fstat(handle).st_size
    header = Header(size, begin, data_bytes, _digest_of_rest(handle, size, begin, data_bytes))
    _write(handle, memoryview(header.packed()), 0)


def load_tensor(path: str | os.PathLike[str], on_disk: bool, engine: Engine) -> BlockTensor:
    """Open a file that `save_tensor` wrote; see `tilewise.load`."""
    where = parse_path(path)
    try:
        check_regular(where)
        file = OpenFile(os.open(where, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))
        tensor = _open_tensor(file, where, engine)
        return tensor if on_disk else tensor.copy()
    except TilewiseError:
        raise
    except OSError as error:
        raise StorageError(
            f"{where} cannot be read: {error.strerror or error}. Expected a file that save() wrote. Check the path."
        ) from error


def _open_tensor(file: OpenFile, path: Path, engine: Engine) -> BlockTensor:
    handle = file.handle
    size = os.fstat(handle).st_size
    header = Header.read(handle, path)
    if size != header.file_bytes:
        raise _damaged(path, f"it has {size} bytes instead of {header.file_bytes}")
    if _digest_of_rest(handle, size, header.data_begin, header.data_bytes) != header.digest:
        raise _damaged(path, "its structure does not match its checksum")
    try:
        with _hdf5(handle, "r") as hdf5:
            pattern = _read_pattern(hdf5)
            dtype, crc = hdf5["data"].dtype, hdf5["crc"][...]
            error_bound = float(hdf5.attrs["error_bound"])
    except (InputError, KeyError, ValueError, TypeError) as error:
        raise _damaged(path, f"it holds no tensor ({error})") from error
    if dtype.name not in DTYPES or pattern.nbytes(dtype) != header.data_bytes or len(crc) != pattern.nnz_blocks:
        raise _damaged(path, "its elements are not those of its blocks")
    begin = header.data_begin + block_offsets(pattern) * dtype.itemsize
    storage = FileStorage(path, file, pattern, dtype, begin, crc.astype(np.uint64))
    return BlockTensor(pattern, storage, engine, error_bound)


def _read_pattern(file: Any) -> Pattern:
    index = file["index"][...]
    spaces = [_read_space(file[f"spaces/{mode}"]) for mode in range(index.shape[1])]
    groups: dict[int, tuple[list[int], int]] = {}
    for mode, number, sign in file["symmetry"][...].tolist():
        groups.setdefault(number, ([], sign))[0].append(mode)
    return Pattern(spaces, index, file["norms"][...], Symmetry(*groups.values()) if groups else None)


def _read_space(group: Any) -> Space:
    labels = {kind: group[kind][...] if kind in group else None for kind in LABELS}
    order = group["order"][...] if "order" in group else None
    return Space.reordered(Space(group["sizes"][...], group.attrs.get("name"), **labels), order)


@contextmanager
def _hdf5(handle: int, mode: Literal["w", "r+", "r"]) -> Iterator[Any]:
    """The HDF5 file behind an open file: the one that was checked or locked, whatever its name is by now."""
    own = {"userblock_size": HEADER_BYTES} if mode == "w" else {}
    python_mode = {"w": "wb+", "r+": "rb+", "r": "rb"}[mode]
    with os.fdopen(os.dup(handle), python_mode) as stream, h5py.File(stream, mode, libver="latest", **own) as file:
        yield file


def _bytes_of(values: Array) -> memoryview:
    """The memory of contiguous elements."""
    flat: Any = np.ascontiguousarray(values).reshape(-1)
    return memoryview(flat).cast("B") if flat.size else memoryview(b"")


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path} is damaged: {why}. Expected it as save() wrote it. Use another copy, or write it anew."
    )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _digest_of_rest(handle: int, size: int, begin: int, length: int) -> bytes:
    """Digest of a file without its header and its elements."""
    summary = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for first, last in ((HEADER_BYTES, begin), (begin + length, size)) if length else ((HEADER_BYTES, size),):
        for part in range(first, last, READ_BYTES):
            summary.update(_read_bytes(handle, part, min(READ_BYTES, last - part)))
    return summary.digest()


def _read_bytes(handle: int, at: int, count: int) -> bytes:
    buffer = bytearray(count)
    return bytes(buffer[: _read_into(handle, memoryview(buffer), at)])


def _read_into(handle: int, view: memoryview, at: int) -> int:
    """Fill a buffer from a place of a file; return the bytes there were."""
    done = 0
    while done < len(view):
        count = os.preadv(handle, [view[done:]], at + done)
        if not count:
            break
        done += count
    return done


def _write(handle: int, view: memoryview, at: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(handle, view[done:], at + done)
