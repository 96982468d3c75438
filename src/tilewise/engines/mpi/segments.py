"""Files that MPICH keeps for the memory that ranks of a node share: taken away while the ranks still run.

MPICH makes one or two files under ``/dev/shm`` when it starts, and removes them when it ends. A job that is killed
never gets that far, and its files take memory until the computer is started again. Ranks need the name of a file only
to find it: once all of them have mapped it, it can go, and the memory goes with the last of them. Files that MPICH
makes later, for windows, it takes away itself as soon as they are mapped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MAPS = Path("/proc/self/maps")
"""Where Linux lists what a process has mapped."""

FOLDER = "/dev/shm/"
"""Where Linux keeps shared memory that has a name."""

PREFIXES = ("mpich_shm_", "mpich_vci_")
"""How MPICH's names begin: one file for messages, one more where it is told to use several channels."""

GONE = " (deleted)"
"""What Linux writes behind the name of a file that was taken away."""


def unlink_segments(neighbours: Any) -> tuple[str, ...]:
    """Take away the names of the shared memory that MPICH made for this job; where there is none, do nothing.

    All ranks of a node call this together, after MPI started; calling it again does no harm, and finds what came since.

    Parameters
    ----------
    neighbours : communicator
        Ranks that share a computer, or some of them.

    Returns
    -------
    tuple of str
        Names of the files that this rank took away.
    """
    mapped = find_segments(_read_maps())
    everywhere = set[str].intersection(*map(set, neighbours.allgather(mapped)))  # mapped by all: nobody looks for it
    if neighbours.rank:
        return ()
    return tuple(name for name in mapped if name in everywhere and _unlink(name))


def find_segments(lines: Iterable[str]) -> tuple[str, ...]:
    """Files of MPICH that are mapped and still have their names.

    Parameters
    ----------
    lines : iterable of str
        A list of what a process has mapped, as Linux writes it.

    Examples
    --------
    >>> find_segments(["7f00-7f10 rw-s 00000000 00:17 5 /dev/shm/mpich_shm_1_0", "7f10-7f20 rw-p 00000000 00:00 0"])
    ('/dev/shm/mpich_shm_1_0',)
    """
    columns = (line.rstrip("\n").split(maxsplit=5) for line in lines)
    paths = {each[5] for each in columns if len(each) > 5}
    begin = tuple(FOLDER + prefix for prefix in PREFIXES)
    return tuple(sorted(path for path in paths if path.startswith(begin) and not path.endswith(GONE)))


def _read_maps() -> list[str]:
    """What this process has mapped; nothing on systems that do not say."""
    try:
        return MAPS.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _unlink(name: str) -> bool:
    """Take a name away, and say whether that worked: somebody else may have been first, or it is not ours to take."""
    with contextlib.suppress(OSError):
        Path(name).unlink()
        return True
    return False
