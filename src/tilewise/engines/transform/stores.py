"""Where A and O2 are held while a transform runs, and the tables that tell the compiled loop where their blocks lie."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.kernels.pairs import EMPTY, PACKED, PLAIN, TURNED, Sources
from tilewise.engines.transform.sources import Source
from tilewise.engines.views import frozen
from tilewise.errors import TilewiseError
from tilewise.plans.transform import Problem, TilePairs
from tilewise.tensors.storage import all_finite

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def allocate(account: Account, elements: int, what: str) -> Floats:
    """Memory that an account knows of; it is given back with `release`."""
    account.take(8 * elements, what)
    return np.empty(elements)


def release(account: Account, *arrays: Floats) -> None:
    """Tell the account of arrays that the caller drops now."""
    for array in arrays:
        account.give(array.nbytes)


class Readers:
    """Threads that bring blocks of A, and count them."""

    def __init__(self, source: Source, functions: TilePairs, workers: int) -> None:
        self.source, self.functions = source, functions
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="tilewise-read")
        count = functions.count
        self.needed = np.ones((count, count), np.bool_) if source.needed is None else source.needed
        self.made = 0
        self._lock = threading.Lock()

    def run(self, calls: Iterable[Callable[[], int]], told: Callable[[], None] | None = None) -> int:
        """Do things on several threads, and add up what they return; the first error ends all."""
        futures, total = [self.pool.submit(call) for call in calls], 0
        try:
            for future in as_completed(futures):
                total += future.result()
                if told is not None:
                    told()
        finally:
            for future in futures:
                future.cancel()
        return total

    def read(self, places: Sequence[tuple[int, int, Floats]], told: Callable[[], None] | None = None) -> None:
        """Bring blocks (row pair, column pair) to where they belong, large ones first."""
        ordered = sorted(places, key=lambda place: -place[2].size)
        self.run([partial(self._read, *place) for place in ordered], told)

    def _read(self, row: int, column: int, out: Floats) -> int:
        sizes = self.functions.sizes
        block = out.reshape(int(sizes[row]), int(sizes[column]))
        self.source.read(row, column, block)
        if not all_finite(out):
            tiles = (*self.functions.tiles[column].tolist(), *self.functions.tiles[row].tolist())
            raise TilewiseError(
                f"The integrals of the tiles {tiles} are not all finite numbers. Expected finite ones. Look at the "
                "basis set and the geometry, or at the array they come from."
            )
        with self._lock:
            self.made += out.size
        return out.size

    def close(self) -> None:
        """Give up what is under way."""
        self.pool.shutdown(wait=False, cancel_futures=True)


class Integrals:
    """A or a part of it, in memory that is let go as a whole."""

    def __init__(self, readers: Readers, account: Account, elements: int, what: str) -> None:
        self.readers, self.account = readers, account
        self.data = allocate(account, elements, what)

    def close(self) -> None:
        """Let go of everything."""
        release(self.account, self.data)
        self.data = np.empty(0)


class Kept(Integrals):
    """A in memory, one of each two blocks that are equal."""

    def __init__(self, readers: Readers, account: Account) -> None:
        sizes = readers.functions.sizes
        rows, columns = np.tril_indices(len(sizes))
        lengths = np.where(readers.needed[rows, columns], sizes[rows] * sizes[columns], 0)
        self.start = np.full((len(sizes), len(sizes)), -1, np.int64)
        self.start[rows, columns] = np.cumsum(lengths) - lengths
        super().__init__(readers, account, int(lengths.sum()), "The integrals")

    def fill(self, rows: Bools, told: Callable[[], None]) -> None:
        """Bring the blocks that some rows need."""
        sizes, places = self.readers.functions.sizes, []
        for row, column in np.argwhere(np.tril(self.readers.needed) & (rows[:, None] | rows)).tolist():
            begin = self.start[row, column]
            places.append((row, column, self.data[begin : begin + sizes[row] * sizes[column]]))
        self.readers.read(places, told)

    def sources(self, row: int, sign: int) -> Sources:
        """The matrices of a row: blocks of its own, then those that other rows have."""
        sizes, own = self.readers.functions.sizes, np.arange(len(self.start)) <= row
        start = np.where(own, self.start[row], self.start[:, row])
        strides = np.where(own, sizes, 1), np.where(own, 1, sizes[row])
        return square_sources(self.readers, row, self.data, start, *strides, sign)


class Panel(Integrals):
    """A for one pair of tiles of functions at a time."""

    def __init__(self, readers: Readers, account: Account) -> None:
        sizes = readers.functions.sizes
        most = int((sizes * (readers.needed @ sizes)).max(initial=0))
        super().__init__(readers, account, most, "The integrals of a pair of tiles")

    def sources(self, row: int, sign: int) -> Sources:
        """The matrices of a row, made now."""
        sizes = self.readers.functions.sizes
        lengths = np.where(self.readers.needed[row], sizes[row] * sizes, 0)
        start = np.cumsum(lengths) - lengths
        bring_row(self.readers, row, self.data, start, lengths)
        return square_sources(self.readers, row, self.data, start, sizes, np.ones_like(sizes), sign)


class Slab(Integrals):
    """A for some pairs of tiles of functions."""

    def __init__(self, readers: Readers, account: Account, rows: Ints) -> None:
        self.rows, sizes = rows, readers.functions.sizes
        lengths = np.where(readers.needed[rows], sizes[rows, None] * sizes, 0)
        self.lengths = lengths
        self.start = (np.cumsum(lengths) - lengths.ravel()).reshape(lengths.shape)
        super().__init__(readers, account, int(lengths.sum()), "A slab of integrals")

    def fill(self, told: Callable[[], None]) -> None:
        """Bring all blocks."""
        for place, row in enumerate(self.rows.tolist()):
            bring_row(self.readers, row, self.data, self.start[place], self.lengths[place])
            told()

    def sources(self, row: int, sign: int) -> Sources:
        """The matrices of a row."""
        sizes = self.readers.functions.sizes
        start = self.start[np.searchsorted(self.rows, row)]
        return square_sources(self.readers, row, self.data, start, sizes, np.ones_like(sizes), sign)


def bring_row(readers: Readers, row: int, data: Floats, start: Ints, lengths: Ints) -> None:
    """Bring every block of a row that is needed."""
    columns = np.flatnonzero(lengths).tolist()
    readers.read([(row, column, data[start[column] : start[column] + lengths[column]]) for column in columns])


def square_sources(
    readers: Readers, row: int, data: Floats, start: Ints, row_strides: Ints, strides: Ints, sign: int
) -> Sources:
    """Where each block of a row of A stands in its matrix (functions, functions)."""
    needed = readers.needed[row]
    kinds = np.where(needed, _kinds(readers.functions), EMPTY)
    table = _table(readers.functions, kinds, start, row_strides, strides)
    return Sources(frozen(data), frozen(table), float(sign), True)


class Halves:
    """O2: for pairs of tiles of functions (rows) and of orbitals (columns), one block after the other.

    Parameters
    ----------
    problem : Problem
        The pairs.
    rows, columns : array of int
        Those that are held, in ascending order.
    data : array
        Room for their elements, or for more.
    """

    def __init__(self, problem: Problem, rows: Ints, columns: Ints, data: Floats) -> None:
        self.problem, self.rows, self.columns, self.data = problem, rows, columns, data
        row_sizes, column_sizes = problem.functions.sizes[rows], problem.first.sizes[columns]
        before_row = np.cumsum(row_sizes) - row_sizes
        before_column = np.cumsum(column_sizes) - column_sizes
        self.start = before_row[:, None] * column_sizes.sum() + row_sizes[:, None] * before_column

    @staticmethod
    def elements(problem: Problem, rows: Ints, columns: Ints) -> int:
        """Room that some rows and columns need, one block after the other."""
        return int(problem.functions.sizes[rows].sum() * problem.first.sizes[columns].sum())

    def starts(self, row: int) -> Ints:
        """First element of each block of a row."""
        found: Ints = self.start[np.searchsorted(self.rows, row)]
        return found

    def block(self, row: int, column: int) -> Floats:
        """The elements of one block, of the orbitals within those of the functions."""
        begin = self.starts(row)[np.searchsorted(self.columns, column)]
        return self.data[begin : begin + self.problem.functions.sizes[row] * self.problem.first.sizes[column]]

    def sources(self, column: int, part: tuple[int, int] | None = None) -> Sources:
        """The matrices (functions, functions) of the orbitals of a column; of some tiles of l if there is a part."""
        problem, functions = self.problem, self.problem.functions
        start = self.start[:, np.searchsorted(self.columns, column)]
        strides = np.ones(len(start), np.int64), np.full(len(start), problem.first.sizes[column])
        if part is None:
            table = _table(functions, _kinds(functions), start, *strides)
        else:
            table = _slab_table(functions, self.rows, part, start, *strides)
        return Sources(frozen(self.data), frozen(table), float(problem.sign), part is None)


def _kinds(functions: TilePairs) -> Ints:
    """How a block of each pair of tiles stands in a symmetric matrix."""
    diagonal = functions.tiles[:, 0] == functions.tiles[:, 1]
    return np.where(diagonal, PACKED, PLAIN)


def _table(functions: TilePairs, kinds: Ints, start: Ints, row_strides: Ints, strides: Ints) -> Ints:
    """The table of `Sources` for a whole matrix of functions."""
    first, second = functions.tiles.T
    space = functions.spaces[0]
    columns: list[Any] = [kinds, space.offsets[first], space.offsets[second], space.sizes[first], space.sizes[second]]
    return np.stack([*columns, start, row_strides, strides], axis=1).astype(np.int64)


def _slab_table(
    functions: TilePairs, rows: Ints, part: tuple[int, int], start: Ints, row_strides: Ints, strides: Ints
) -> Ints:
    """The table of `Sources` for the columns l of some tiles: as they are, or with k and l exchanged."""
    space, begin = functions.spaces[0], functions.spaces[0].offsets[part[0]]
    first, second = functions.tiles[rows].T
    place = [start, row_strides, strides]
    inside = [(tile >= part[0]) & (tile < part[1]) for tile in (first, second)]
    sizes: list[Any] = [space.sizes[first], space.sizes[second]]
    kinds = np.where(first == second, PACKED, PLAIN)
    plain = np.stack([kinds, space.offsets[first], space.offsets[second] - begin, *sizes, *place], axis=1)
    turned = np.full_like(kinds, TURNED)
    other = np.stack([turned, space.offsets[second], space.offsets[first] - begin, *sizes, *place], axis=1)
    return np.concatenate([plain[inside[1]], other[inside[0] & (first != second)]]).astype(np.int64)
