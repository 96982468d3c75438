"""The ranks of a run: who they are, which of them share a node, and what happens when one of them fails.

The only place that imports mpi4py.  MPI starts when the first engine for it is made, never on ``import tilewise``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.current import using
from tilewise.engines.mpi.segments import unlink_segments
from tilewise.engines.workers import available_cores
from tilewise.errors import InputError, MissingPackageError, TilewiseError
from tilewise.machine import Machine
from tilewise.spaces.integers import parse_count
from tilewise.tensors.storage import Result

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")
"""Variables in which launchers say how many ranks they started."""

PRECEDENCE = 1.0
"""Seconds that ranks wait with their message: where all fail alike, the first one says so for all."""

FORWARDING = 0.5
"""Seconds that a launcher is given to pass a message on: what it has not read when ranks are ended is lost."""

ROUNDING = 1e-6
"""How far apart, of their size, numbers may be that ranks have worked out alike."""

NUMBERS = 3
"""How many numbers are compared that way at a time."""

SPIN, NAP = 5e-5, 5e-5
"""Seconds that a rank looks without a break for others that it waits for, and of the breaks after that."""


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
    end_job(error)


def end_job(error: BaseException, message: str = "") -> None:
    """End all ranks with the message of the one that failed: the error's traceback, unless something else is said."""
    world = load_mpi().COMM_WORLD
    if world.rank:
        time.sleep(PRECEDENCE)
    leaves, code = isinstance(error, SystemExit), getattr(error, "code", 1)
    if leaves:
        message = message or f"Rank {world.rank} of {world.size} left with {code!r}."
    if not message:
        message = f"Rank {world.rank} of {world.size} failed:\n{''.join(traceback.format_exception(error))}"
    print(message, file=sys.stderr, flush=True)
    time.sleep(FORWARDING)
    world.Abort(code if leaves and isinstance(code, int) else 1)


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """The ranks of a run."""

    everyone: Any
    """Communicator of all ranks."""
    neighbours: Any
    """Communicator of the ranks on this node."""
    ranks_per_node: int
    """Ranks on each node; the last one may have fewer."""
    origin: float
    """The clock of this rank when all of them met, from which times are counted."""
    cores: int
    """Cores that this rank has to itself."""
    machine: Machine
    """The computer of the first rank."""
    calling: threading.RLock
    """Held by the thread that is in a call of MPI: libraries are slow, or worse, with several."""

    @property
    def rank(self) -> int:
        """Number of the rank that asks."""
        return int(self.everyone.rank)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return int(self.everyone.size)

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return -(-self.size // self.ranks_per_node)

    @property
    def node(self) -> int:
        """Number of the node of the rank that asks."""
        return self.rank // self.ranks_per_node

    def node_of(self, rank: Any) -> Any:
        """The node of a rank, or of each of several."""
        return rank // self.ranks_per_node

    def meet(self, *, everywhere: bool = False) -> None:
        """Wait for the other ranks of this node, or for all, without taking a core from them for long."""
        ranks = self.everyone if everywhere else self.neighbours
        # Other nodes may ask for blocks meanwhile, and are answered while this rank looks.
        nap = NAP if self.nodes == 1 else 0.0
        with self.calling:
            request, patience = ranks.Ibarrier(), time.perf_counter() + SPIN
            while not request.Test():
                if time.perf_counter() > patience:
                    time.sleep(nap)

    def gather(self, value: Any) -> list[Any]:
        """What each rank has, on every rank."""
        with self.calling:
            return list(self.everyone.allgather(value))

    def of_first(self, value: Result) -> Result:
        """What the first rank has, on every rank."""
        with self.calling:
            found: Result = self.everyone.bcast(value)
        return found

    def sum(self, values: Array) -> Array:
        """Sums over all ranks, on every rank."""
        found = np.empty_like(values)
        with self.calling:
            self.everyone.Allreduce(np.ascontiguousarray(values), found)
        return found

    def largest(self, value: int) -> int:
        """The largest of what the ranks have."""
        with self.calling:
            return int(self.everyone.allreduce(value, load_mpi().MAX))

    def least(self, value: int) -> int:
        """The least of what the ranks have."""
        return -self.largest(-value)

    def agree(self, work: Callable[[], Result], *, once: bool = False) -> Result | None:
        """Have every rank do something, or the first one; if one fails, all raise its error.

        Each does it for itself: contractions in functions of the user do not wait for other ranks.
        """
        made, failure = None, None
        if not once or self.rank == 0:
            try:
                with using(None):
                    made = work()
            except Exception as error:
                failure = error
        for rank, found in enumerate(self.gather(failure)):
            if found is not None and failure is None:
                found.add_note(f"It happened on rank {rank} of {self.size}.")
                raise found
        if failure is not None:
            raise failure
        return made

    def check_agreed(self, mark: int, what: str, numbers: Sequence[complex] = ()) -> None:
        """Raise, on all ranks, if they do not mean the same thing.

        Parameters
        ----------
        mark : int
            Tells it apart, as `tilewise.plans.digest.digest` makes it.
        what : str
            What it is, for people.
        numbers : sequence of complex
            Up to `NUMBERS` finite ones that each rank has worked out for itself, and may differ by rounding.
        """
        # As many values whatever is compared: ranks may be in different calls.
        own = np.zeros(NUMBERS, np.complex128)
        own[: len(numbers)] = numbers
        parts = own.view(np.float64)
        most = np.concatenate([[mark, -mark], parts, -parts])
        with self.calling:
            self.everyone.Allreduce(load_mpi().IN_PLACE, most, load_mpi().MAX)
        high, low = most[2 : 2 + len(parts)], -most[2 + len(parts) :]
        size = np.maximum(abs(high), abs(low)).reshape(NUMBERS, 2).max(axis=1).repeat(2)
        if most[0] != -most[1] or np.any(high - low > ROUNDING * size):
            raise InputError(
                f"Ranks do not agree on {what}: their operands or options differ. Expected the same calls with the "
                "same tensors on every rank. Give every rank the same seeds, patterns, options and workers."
            )

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
        with self.calling, parts_of(data) as part:
            sent = [
                self.everyone.Ibcast(part(begin[own], size[own]), root=rank)
                for rank in range(self.size)
                if (own := rank_of_part == rank).any()
            ]
            load_mpi().Request.Waitall(sent)


def make_world(ranks_per_node: int | None = None) -> World:
    """The ranks, with those on one computer as a node, or as many as one is told to take for a node."""
    if ranks_per_node is None:
        return _world(_ranks_per_computer())
    return _world(min(parse_count("ranks_per_node", ranks_per_node, "ranks"), load_mpi().COMM_WORLD.size))


@lru_cache(maxsize=16)
def _world(ranks_per_node: int) -> World:
    """Communicators are made once, by all ranks together."""
    mpi = load_mpi()
    everyone = mpi.COMM_WORLD.Dup()
    unlink_segments(everyone.Split_type(mpi.COMM_TYPE_SHARED))
    cores, machine = _share_cores(), everyone.bcast(Machine.measured())
    near = everyone.Split(everyone.rank // ranks_per_node)
    if everyone.allreduce(near.Split_type(mpi.COMM_TYPE_SHARED).size < near.size):
        raise InputError(
            f"ranks_per_node={ranks_per_node} puts ranks of several computers on a node. Expected ranks that share "
            "memory. Leave it away, or give a divisor of the ranks on each computer."
        )
    return World(everyone, near, ranks_per_node, _meet(everyone), cores, machine, _calling())


@lru_cache(maxsize=1)
def _ranks_per_computer() -> int:
    """How many ranks each computer has; the last one may have fewer."""
    everyone = load_mpi().COMM_WORLD
    here = everyone.Split_type(load_mpi().COMM_TYPE_SHARED)
    sizes = everyone.allgather(here.size)
    firsts = everyone.allgather(everyone.rank - here.rank)
    if any(first % sizes[0] for first in firsts) or len(set(sizes[: -sizes[-1]])) > 1 or sizes[-1] > sizes[0]:
        raise InputError(
            f"Ranks are not numbered node by node: nodes have {sizes} ranks. Expected neighbouring ranks on each node. "
            "Ask the launcher for block placement, such as srun --distribution=block."
        )
    return int(sizes[0])


@lru_cache(maxsize=1)
def _calling() -> threading.RLock:
    """One lock for all calls of MPI."""
    return threading.RLock()


@lru_cache(maxsize=1)
def _share_cores() -> int:
    """How many cores a rank has to itself: those that its launcher gave it, shared with ranks that got the same.

    Work is shared evenly, and all ranks have to plan alike: those with more cores take what the others have.
    """
    mpi = load_mpi()
    here = mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED)
    own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(available_cores()))
    share = max(len(own) // here.allgather(own).count(own), 1)
    return int(mpi.COMM_WORLD.allreduce(share, mpi.MIN))


def _meet(everyone: Any) -> float:
    """Wait for all ranks; this rank's clock then."""
    everyone.Barrier()
    return time.perf_counter()


@contextmanager
def parts_of(data: Bytes) -> Iterator[Callable[[Ints, Ints], list[Any]]]:
    """What describes parts of an array of bytes to MPI: a function of their beginnings and sizes."""
    mpi = load_mpi()
    kinds: list[Any] = []

    def part(begin: Ints, size: Ints) -> list[Any]:
        kinds.append(mpi.BYTE.Create_hindexed(*joined(begin, size)).Commit())
        return [data, 1, kinds[-1]]

    try:
        yield part
    finally:
        for kind in kinds:
            kind.Free()


def joined(begin: Ints, size: Ints) -> tuple[list[int], list[int]]:
    """Lengths and beginnings of parts in their order, those that follow each other as one."""
    first = np.flatnonzero(np.append(True, begin[1:] != begin[:-1] + size[:-1]))
    return np.add.reduceat(size, first).tolist(), begin[first].tolist()
