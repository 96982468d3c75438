"""The ranks of a run: who they are, which of them share a node, and what happens when one of them fails.

The only place that imports mpi4py.  MPI starts when the first engine for it is made, never on ``import tilewise``.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError, MissingPackageError, TilewiseError
from tilewise.spaces.integers import parse_count

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")
"""Variables in which launchers say how many ranks they started."""

FORWARDING = 0.5
"""Seconds that a launcher is given to pass a message on: what it has not read when ranks are ended is lost."""


@lru_cache(maxsize=1)
def load_mpi() -> ModuleType:
    """mpi4py's MPI, started."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise MissingPackageError(
            f"The mpi engine needs mpi4py and an MPI library: {error}. Expected both. Install them with "
            '`pip install "tilewise[mpi]"`, which brings MPICH along.'
        ) from error
    check_launch(MPI.COMM_WORLD.size, os.environ)
    if MPI.COMM_WORLD.size > 1:
        sys.excepthook = _abort
    return MPI


def check_launch(size: int, environment: Mapping[str, str]) -> None:
    """Refuse to run as one of several ranks that do not know of each other."""
    for name in LAUNCHED:
        text = environment.get(name, "1")
        if text.isdigit() and int(text) > size == 1:
            raise TilewiseError(
                f"The launcher says that it started {text} ranks ({name}), but MPI sees one. Expected one job of them "
                "all. Start it with the mpiexec that belongs to the MPI in use, or install mpi4py for the launcher's."
            )


def _abort(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End all ranks with the message of the one that failed."""
    world = load_mpi().COMM_WORLD
    lines = traceback.format_exception(kind, error, trace)
    print(f"Rank {world.rank} of {world.size} failed:\n{''.join(lines)}", file=sys.stderr, flush=True)
    time.sleep(FORWARDING)
    world.Abort(1)


@dataclass(frozen=True, slots=True)
class World:
    """The ranks of a run."""

    everyone: Any
    """Communicator of all ranks."""
    neighbours: Any
    """Communicator of the ranks on this node."""

    @property
    def rank(self) -> int:
        """Number of the rank that asks."""
        return int(self.everyone.rank)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return int(self.everyone.size)

    def sum(self, values: Array) -> Array:
        """Sums over all ranks, on every rank."""
        found = np.empty_like(values)
        self.everyone.Allreduce(np.ascontiguousarray(values), found)
        return found

    def share_parts(self, data: Bytes, begin: Ints, size: Ints, rank_of_part: Ints) -> None:
        """Fill in the parts of an array of bytes that other ranks have; all ranks have all parts afterwards.

        Parameters
        ----------
        data : array of uint8
            The array, on every rank.
        begin, size : array of int
            Where each part begins, and its bytes.
        rank_of_part : array of int
            Who has it.
        """
        mpi = load_mpi()
        kinds, sent = [], []
        for rank in range(self.size):
            own = rank_of_part == rank
            if own.any():
                kinds.append(mpi.BYTE.Create_hindexed(*joined(begin[own], size[own])).Commit())
                sent.append(self.everyone.Ibcast([data, 1, kinds[-1]], root=rank))
        mpi.Request.Waitall(sent)
        for kind in kinds:
            kind.Free()


def make_world(ranks_per_node: int | None = None) -> World:
    """The ranks, with those on one computer as a node, or as many as one is told to take for a node."""
    return _world(None if ranks_per_node is None else parse_count("ranks_per_node", ranks_per_node, "ranks"))


@lru_cache(maxsize=16)
def _world(ranks_per_node: int | None) -> World:
    """Communicators are made once, by all ranks together."""
    mpi = load_mpi()
    everyone = mpi.COMM_WORLD.Dup()
    if ranks_per_node is not None:
        return World(everyone, everyone.Split(everyone.rank // ranks_per_node))
    found = everyone.Split_type(mpi.COMM_TYPE_SHARED)
    sizes = everyone.allgather(found.size)
    firsts = everyone.allgather(everyone.rank - found.rank)
    if any(first % sizes[0] for first in firsts) or len(set(sizes[: -sizes[-1]])) > 1:
        raise InputError(
            f"Ranks are not numbered node by node: nodes have {sizes} ranks. Expected neighbouring ranks on each node. "
            "Ask the launcher for block placement, such as srun --distribution=block."
        )
    return World(everyone, found)


def joined(begin: Ints, size: Ints) -> tuple[list[int], list[int]]:
    """Lengths and beginnings of parts, those that follow each other as one."""
    order = np.argsort(begin, kind="stable")
    begin, size = begin[order], size[order]
    first = np.flatnonzero(np.append(True, begin[1:] != begin[:-1] + size[:-1]))
    return np.add.reduceat(size, first).tolist(), begin[first].tolist()
