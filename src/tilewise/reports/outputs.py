"""Files that a command was asked to write: looked at before a long run, written after it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from tilewise.errors import InputError
from tilewise.reports.plots import new_figure

__all__ = ["check_apart", "check_file", "check_report", "write_json"]


def check_apart(files: Mapping[str, Path | None]) -> None:
    """Raise if two of these are the same file: one would be written over the other.

    Parameters
    ----------
    files : mapping of str to Path
        The files by what they are to the user, what is only read first.
    """
    named = [(name, path) for name, path in files.items() if path is not None]
    for (first, path), (second, other) in combinations(named, 2):
        if path.resolve() == other.resolve():
            raise InputError(
                f"{other} is the file of {first}, and {second} would be written over it. Different files are expected. "
                f"Correct {second}."
            )


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
    if path.is_dir():
        raise InputError(f"{path} is a folder. The name of a file is expected. Correct {option}.")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is no folder. A file in a folder that exists is expected. Correct {option}.")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, option, error) from error


def check_report(folder: Path | None, option: str) -> None:
    """Make the folder of a report, or raise before a long run if it could not be drawn or written."""
    if folder is None:
        return
    new_figure(1, 1)  # there is nothing to draw with if this fails
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, option, error) from error
    check_file(folder / "index.html", option)


def write_json(path: Path, content: Mapping[str, object], option: str) -> None:
    """Write figures for other programs."""
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, option, error) from error


def _unwritable(path: Path, option: str, error: OSError) -> InputError:
    return InputError(
        f"{path} cannot be written ({error.strerror}). A place in a folder that can be written to is expected. Correct "
        f"{option}."
    )
