"""A counter that all ranks draw tickets from, by one-sided fetch-and-add.

One window has a counter on every rank, independent of the others. A counter for all ranks lies on one of them; ranks
that draw from the first rank of their own node have one for each node (the buckets of Ozog et al. 2013, III).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np

from tilewise.engines.mpi.world import load_mpi
from tilewise.errors import InputError, TilewiseError
from tilewise.spaces.integers import parse_count

ITEM = np.dtype(np.int64)


class Counter:
    """Numbers 0, 1, 2, ... of which each is drawn once.

    Ranks make, reset and close it together, and draw each on its own. Inside a node nobody has to help. Between nodes
    the rank that holds the counter may have to be inside an MPI call before others are served. One thread of a rank
    may draw at a time.

    Parameters
    ----------
    ranks : communicator
        Those who may draw.
    place : int, optional
        The rank that holds the counter this rank draws from; ranks may say different places.
    """

    def __init__(self, ranks: Any, place: int = 0) -> None:
        mpi = load_mpi()
        self.ranks = ranks
        self.place = self._parse_place(place)
        self._add, self._replace = mpi.SUM, mpi.REPLACE
        self._given, self._found = np.zeros(1, ITEM), np.zeros(1, ITEM)
        self._window = mpi.Win.Allocate(ITEM.itemsize, ITEM.itemsize, comm=ranks)
        self._window.Lock_all()
        self._open = True
        self.reset()

    def draw(self, count: int = 1, place: int | None = None) -> int:
        """Take the next numbers from the counter.

        Parameters
        ----------
        count : int
            How many.
        place : int, optional
            The rank whose counter is asked, the one named at the beginning by default.

        Returns
        -------
        int
            The first of the numbers taken; the others follow it.
        """
        count = parse_count("count", count, "tickets")
        return self._exchange(count, self.place if place is None else self._parse_place(place), self._add)

    def reset(self) -> None:
        """Begin again with 0 at every place, after the draws of all ranks so far and before those that follow."""
        self._check_open()
        self.ranks.Barrier()
        self._exchange(0, self.ranks.rank, self._replace)
        self.ranks.Barrier()

    def close(self) -> None:
        """Give the window back; a second time does nothing."""
        if self._open:
            self._open = False
            self._window.Unlock_all()
            self._window.Free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # a rank that failed is alone in leaving: waiting for the others here would hide its message
            self.close()

    def _exchange(self, value: int, place: int, operation: Any) -> int:
        """Change a counter and see what it was."""
        self._check_open()
        self._given[0] = value
        self._window.Fetch_and_op(self._given, self._found, place, 0, operation)
        self._window.Flush(place)
        return int(self._found[0])

    def _check_open(self) -> None:
        if not self._open:
            raise TilewiseError(
                "The counter is closed. Expected draws and resets before that. Make a new one, or close it later."
            )

    def _parse_place(self, place: int) -> int:
        if isinstance(place, bool) or not isinstance(place, (int, np.integer)) or not 0 <= place < self.ranks.size:
            raise InputError(
                f"place={place!r} is no rank. Expected an integer from 0 to {self.ranks.size - 1}. Correct it."
            )
        return int(place)
