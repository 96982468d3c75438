"""Files that a command was asked to write: looked at before a long run, written after it."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from tilewise.errors import InputError, StorageError
from tilewise.reports.energy_page import FIGURE, PAGE, PICTURES, is_energy_page
from tilewise.reports.plots import new_figure
from tilewise.tensors.drafts import draft, fcntl

__all__ = ["check_apart", "check_file", "check_report", "write_json"]

CHECKPOINT = "--checkpoint"
"""The option whose file has others beside it."""

BESIDE = r"\.(orbitals|previous|\d{6,}\.\w+\.h5)"
"""What their names have behind that of the checkpoint."""

REPORT = "--report"
"""The option that names a folder, in which a page and pictures are written."""


def check_apart(files: Mapping[str, Path | None]) -> None:
    """Raise if two of these are the same file, or one of them belongs to another: it would be written over.

    Parameters
    ----------
    files : mapping of str to Path
        The files by what they are to the user, what is only read first.
    """
    given = {name: path for name, path in files.items() if path is not None}
    found = {name: _resolved(path) for name, path in given.items()}
    for first, second in combinations(given, 2):
        if _is_same(found[first], found[second]):
            raise InputError(
                f"{given[second]} is the file of {first}, and {second} would be written over it. Different files are "
                f"expected. Correct {second}."
            )
    for name, path in found.items():
        if CHECKPOINT in found and name != CHECKPOINT:
            _check_beside(found[CHECKPOINT], path, f"{given[name]} of {name}", name)
        if REPORT in found and name != REPORT:
            _check_report_apart(found[REPORT], path, (given[REPORT], given[name]), name)


def _check_beside(checkpoint: Path, path: Path, text: str, name: str) -> None:
    """Raise if a file, or a folder above it, has a name of those that lie beside a checkpoint."""
    kept = re.compile(re.escape(checkpoint.name) + BESIDE)
    if any(each.parent == checkpoint.parent and kept.fullmatch(each.name) for each in (path, *path.parents)):
        raise InputError(
            f"{text} has the name of a file that is kept beside {CHECKPOINT} {checkpoint.name}. Another name is "
            f"expected. Correct {name} or {CHECKPOINT}."
        )


def _check_report_apart(folder: Path, path: Path, given: tuple[Path, Path], name: str) -> None:
    """Raise if a file is one of a report, or where its folder is to be."""
    if path in folder.parents:
        raise InputError(
            f"{given[0]} of {REPORT} lies below {given[1]}, the file of {name}. A folder that is not below a file is "
            f"expected. Correct {REPORT} or {name}."
        )
    if path.parent == folder and (path.name == PAGE or path.suffix in PICTURES):
        raise InputError(
            f"{given[1]} of {name} is a file of {REPORT} {given[0]}, which writes {PAGE} and pictures there. A file of "
            f"its own is expected. Correct {name} or {REPORT}."
        )


def _resolved(path: Path) -> Path:
    """Where a path leads, whether there is a file or not."""
    return Path(os.path.realpath(os.path.expanduser(path)))


def _is_same(path: Path, other: Path) -> bool:
    """Whether both are one file, be it by two names."""
    try:
        return path == other or path.samefile(other)
    except OSError:
        return False


def check_file(path: Path | None, option: str) -> None:
    """Raise before a long run if its result could not be written.

    Parameters
    ----------
    path : Path, optional
        The file.
    option : str
        What the user named it with.
    """
    if path is None:
        return
    try:
        mode = _mode(path)
        folder = Path(os.path.realpath(path)).parent
        if mode is not None and not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
            raise InputError(f"{path} is {what}. The name of a file is expected. Correct {option}.")
        if not folder.is_dir():
            raise InputError(f"{folder} is no folder. A file in a folder that exists is expected. Correct {option}.")
        _try_folder(folder)
        if mode is not None and _is_fixed(path, folder):
            raise PermissionError(0, "it is of another user")
    except OSError as error:
        raise _unwritable(path, option, error) from error


def _mode(path: Path) -> int | None:
    """What the system says a path leads to, None if it does not exist."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _try_folder(folder: Path) -> None:
    """Raise if no file can be made and locked in a folder, as drafts are."""
    with tempfile.TemporaryFile(dir=folder) as stream:
        if fcntl is not None:
            fcntl.flock(stream, fcntl.LOCK_EX)


def _is_fixed(path: Path, folder: Path) -> bool:
    """Whether another user has a file in a folder where, as in /tmp, only the owner may replace it."""
    place = folder.stat()
    owners = (0, place.st_uid, path.stat().st_uid)
    return bool(place.st_mode & stat.S_ISVTX) and hasattr(os, "geteuid") and os.geteuid() not in owners


def check_report(folder: Path | None, option: str) -> None:
    """Raise before a long run if its report could not be drawn, or not be written without loss; nothing is made yet."""
    if folder is None:
        return
    new_figure(1, 1)  # there is nothing to draw with if this fails
    try:
        place = next(each for each in (folder, *folder.absolute().parents) if _is_there(each))
        if not place.is_dir():
            raise InputError(f"{place} is no folder. One, or a name for a new one, is expected. Correct {option}.")
        if place is folder:
            _check_page(folder / PAGE, option)
            _check_pictures(folder, option)
        else:
            _try_folder(place)
    except OSError as error:
        raise _unwritable(folder, option, error) from error


def _check_page(page: Path, option: str) -> None:
    """Raise if a page cannot be written, or somebody else has written it."""
    check_file(page, option)
    if page.exists() and not is_energy_page(page):
        raise InputError(
            f"{page} is not a report of tilewise. Expected a folder without it, or with an earlier report. Name "
            f"another folder with {option}."
        )


def _check_pictures(folder: Path, option: str) -> None:
    """Raise if pictures of a report would be written over those of somebody else: there is no report yet."""
    if (folder / PAGE).exists():
        return
    for path in folder.iterdir():
        if FIGURE.fullmatch(path.name):
            raise InputError(
                f"{path} has the name of a picture of a report. Expected a folder without it, or with an earlier "
                f"report. Name another folder with {option}."
            )


def _is_there(path: Path) -> bool:
    """Whether there is something of a name, be it a link that leads nowhere."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def write_json(path: Path, content: Mapping[str, object], option: str) -> None:
    """Write figures for other programs; until all of them are on the disk, what was there stays as it was."""
    text = json.dumps(content, indent=1) + "\n"
    try:
        with draft(path) as handle, os.fdopen(os.dup(handle), "wb") as stream:
            stream.write(text.encode())
    except StorageError as error:
        raise StorageError(f"{error} It was named with {option}.") from error


def _unwritable(path: Path, option: str, error: OSError) -> InputError:
    return InputError(
        f"{path} cannot be written ({error.strerror}). A place in a folder that can be written to is expected. Correct "
        f"{option}."
    )
