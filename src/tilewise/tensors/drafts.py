"""Files that appear whole or not at all, whatever happens while they are written.

A *draft* is written under a name of its own in the folder of the file it will become, then synced and renamed.
Its maker holds a lock on it, which the system lets go when the process dies: a draft that can be locked was
left by a killed job, and the next one that writes to the folder removes it.
"""

from __future__ import annotations

import errno
import importlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tilewise.errors import InputError, StorageError

fcntl: Any = None  # not on Windows, where drafts of killed jobs stay until someone removes them
with suppress(ImportError):
    fcntl = importlib.import_module("fcntl")

SUFFIX = ".tilewise-draft"
"""How the names of drafts end."""


def parse_path(path: str | os.PathLike[str]) -> Path:
    """A path as a user gives it."""
    try:
        found = Path(path).expanduser()
        if "\0" in str(found):
            raise ValueError("it has a null character")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path!r:.60} is no path: {error}. Expected a string or a pathlib.Path. Pass one.") from None
    return found


def parse_scratch(folder: str | os.PathLike[str]) -> str:
    """A folder for results that do not fit in memory, as a user gives it; checked before a long run needs it."""
    found = parse_path(folder).absolute()
    if not str(folder) or not found.is_dir() or not os.access(found, os.W_OK | os.X_OK):
        why = "is no folder that can be written to" if found.exists() else "does not exist"
        raise StorageError(
            f"scratch={str(folder)!r} {why}. Expected a folder on a disk with room for what memory does not hold. Make "
            "it, or name another."
        )
    return str(found)


def check_regular(path: Path) -> None:
    """Raise if a path leads to something else than a file: reading a pipe would wait, writing would replace it."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no file"
        raise StorageError(f"{path} is {what}. Expected the name of a file. Correct it.")


@contextmanager
def draft(path: Path) -> Iterator[int]:
    """A file descriptor for what `path` will hold once the block ends without an error.

    Errors of the system become a `StorageError`; then, as after any other exception, the draft is gone and `path` is
    what it was.
    """
    try:
        target = path.resolve()
        check_regular(target)
        remove_leftovers(target.parent)
        name, handle = _open(target)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise _explained(error, path) from error
    try:
        yield handle
        os.fsync(handle)
        os.replace(name, target)
        _sync_folder(target.parent)
    except OSError as error:
        raise _explained(error, path) from error
    finally:
        os.close(handle)
        with suppress(OSError):
            os.unlink(name)


def _open(target: Path) -> tuple[Path, int]:
    """Make a draft and lock it."""
    while True:
        name = target.with_name(f".{secrets.token_hex(8)}{SUFFIX}")
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        if fcntl is None:
            return name, handle
        fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):  # another job found it before it was locked
            if os.stat(name).st_ino == os.fstat(handle).st_ino:
                return name, handle
        os.close(handle)


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove the drafts that killed jobs left in a folder, and return their names."""
    removed = []
    for name in folder.glob(f".*{SUFFIX}") if fcntl is not None else ():
        with suppress(OSError):
            handle = os.open(name, os.O_RDWR)
            try:
                if stat.S_ISREG(os.fstat(handle).st_mode):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name)
                    removed.append(name)
            finally:
                os.close(handle)
    return removed


def _sync_folder(folder: Path) -> None:
    """Make a rename last."""
    with suppress(OSError):  # some file systems cannot
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _explained(error: OSError | RuntimeError, path: Path) -> StorageError:
    if isinstance(error, StorageError):
        return error
    if not isinstance(error, OSError):
        return StorageError(f"{path} cannot be written: {error}. What was there is unchanged. Check the path.")
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Free space, or write to another disk."
    elif error.errno in (errno.ENOENT, errno.ENOTDIR):
        remedy = "Make the folder first."
    else:
        remedy = "Check the path and its permissions."
    return StorageError(f"{path} cannot be written: {why}. What was there is unchanged. {remedy}")
