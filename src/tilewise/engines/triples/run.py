"""The run: operands are read and packed by slices, then the workers do the tasks of three slices at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.kernels.microkernel import LANES_8
from tilewise.engines.kernels.triples import ORDERS, Operands, Room, Virtual, contract_triples
from tilewise.engines.kernels.triples_packing import Source, pack_columns, pack_pairs, pack_rows
from tilewise.engines.progress import Tell, Watch
from tilewise.engines.threads import ThreadsEngine, hosting
from tilewise.engines.triples.orbitals import begins
from tilewise.engines.triples.slices import Holding, Three, TriplesInput, has_fock, share_tasks, total_irreps
from tilewise.engines.views import frozen, integers
from tilewise.patterns import Expansion, expand
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor, Engine

if TYPE_CHECKING:
    from tilewise.engines.mpi import MpiEngine

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Key = TypeVar("Key")

OVVV, OVOV, OOOV = (2, 0, 1, 3), (1, 3, 0, 2), (3, 2, 1, 0)
"""Modes of (kc|bd) and of (ia|jb) or t2 as (a, b, i, D) or (a, b, i, j), and of (lj|kc) as (c, k, j, D)."""

AMPLITUDES = (1, 0, 2, 3)
"""Modes of t2 as (c, k, j, D)."""


class _Slots:
    """Places for things of which some are needed at a time."""

    def __init__(self, count: int) -> None:
        self._held: list[Any] = [None] * count

    def bring(self, wanted: Sequence[Key]) -> list[tuple[Key, int]]:
        """Give a place to each thing that has none; those that are not wanted lose theirs."""
        missing = [key for key in wanted if key not in self._held]
        free = [slot for slot, key in enumerate(self._held) if key not in wanted]
        for key, slot in zip(missing, free, strict=False):
            self._held[slot] = key
        return list(zip(missing, free, strict=False))


class TriplesRun:
    """The share of one process in a triples correction.

    Parameters
    ----------
    host : ThreadsEngine
        Whose workers compute.
    given : TriplesInput
        The tensors.
    holding : Holding
        What is held at a time.
    budget : int
        Bytes that may be held.
    """

    def __init__(self, host: ThreadsEngine, given: TriplesInput, holding: Holding, budget: int) -> None:
        Account(budget).take(holding.peak_bytes(given, host.workers), "The triples correction")
        self.host, self.given, self.holding, self.orbitals = host, given, holding, holding.orbitals
        self.tally = np.zeros((host.workers, 8), np.int64)
        self.occ = self.orbitals.occupied_view(given.occupied_energies)
        self.vir = Virtual(
            irrep=frozen(self.orbitals.vir_irrep),
            energy=frozen(given.virtual_energies),
            singles=self._by_virtual(given.t1),
            fock=self._by_virtual(given.fov),
            pitch=self.orbitals.nocc + LANES_8,
            has_fock=has_fock(given),
        )
        self.held = self._allocate()
        self.rooms = [self._room() for _ in range(host.workers)]
        self._panels, self._columns = _Slots(holding.panels), _Slots(holding.columns)
        tensors = {name: getattr(given, name) for name in ("t2", "ovov", "ooov", "ovvv")}
        self._blocks = {name: _allowed(tensor, self.orbitals.irreps) for name, tensor in tensors.items()}

    @property
    def flops(self) -> int:
        """Floating-point operations of products so far."""
        return int(self.tally[:, 2].sum())

    def _by_virtual(self, tensor: BlockTensor) -> Floats:
        """A tensor [i, a] as (a, i), with occupied orbitals sorted and nothing that vanishes by symmetry."""
        orbitals = self.orbitals
        allowed = orbitals.occ_irrep[:, None] == orbitals.vir_irrep
        made = np.zeros((orbitals.nvir, orbitals.nocc + LANES_8))
        made[:, orbitals.occ_number] = np.where(allowed, tensor.to_dense(), 0.0).T
        return frozen(made.reshape(-1))

    def _allocate(self) -> Operands:
        holding, n = self.holding, self.orbitals.nvir
        return Operands(
            rows=np.empty(holding.panels * holding.row_panel),
            row_at=np.full((n, n), -1),
            cols=np.empty(holding.columns * holding.column_panel),
            turned=np.empty(holding.columns * holding.column_panel),
            col_at=np.full(n, -1),
            repulsion=np.zeros(holding.pair_elements),
            doubles=np.zeros(holding.pair_elements if self.vir.has_fock else 0),
            pair_at=np.full((n, n), -1),
        )

    def _room(self) -> Room:
        """Buffers of a worker: what is read beyond the orbitals has to be finite."""
        sums, orders = self.orbitals.room_sizes
        return Room(np.zeros(sums), np.zeros(orders), np.zeros((ORDERS, 5), np.int64), np.zeros(4, np.int64))

    def compute(self, flops: int, ranks: int, rank: int) -> Floats:
        """The energies of all tasks but for a factor of two; zero for those of other ranks."""
        energies = np.zeros(self.orbitals.ntasks)
        for three, tasks, work, first in share_tasks(self.holding, flops, ranks, rank):
            self._hold(three)
            self._contract(tasks, work, energies[first : first + len(tasks)])
        return energies

    def _contract(self, tasks: Ints, flops: Ints, energies: Floats) -> None:
        """Have the workers fill in the energies of tasks whose slices are held."""

        def loop(worker: int, queues: Ints, stop: Ints) -> None:
            contract_triples(
                worker,
                queues,
                stop,
                self.occ,
                self.vir,
                self.held,
                self.rooms[worker],
                self.orbitals.chunks,
                tasks,
                energies,
                self.tally,
            )

        self.host.run_loop(loop, flops.astype(np.float64))

    # What is held

    def _hold(self, three: Three) -> None:
        """Bring what the tasks of three slices need and what is not held."""
        panels = self._panels.bring(sorted({(x, y) for x, y in permutations(three, 2)}))
        columns = self._columns.bring(sorted(set(three)))
        if panels:
            self._load_panels(panels)
        if columns:
            self._load_columns(columns)

    def _span(self, number: int) -> slice:
        """The virtual orbitals of a slice."""
        begin, end = self.holding.slices[number]
        return slice(int(self.orbitals.chunks[begin]), int(self.orbitals.chunks[end]))

    def _load_panels(self, panels: Sequence[tuple[tuple[int, int], int]]) -> None:
        """Read and pack the rows and pairs of pairs of slices."""
        given, held, holding, irrep = self.given, self.held, self.holding, self.orbitals.vir_irrep
        row_at, pair_at = np.full_like(held.row_at, -1), np.full_like(held.pair_at, -1)
        for (x, y), slot in panels:
            where = self._span(x), self._span(y)
            pair = irrep[where[0], None] ^ irrep[where[1]]
            row_at[where] = _places(self.orbitals.row_sizes.sum(axis=1)[pair], slot * holding.row_panel)
            pair_at[where] = _places(self.orbitals.pairs[pair], slot * holding.pair_panel)
            held.rows[slot * holding.row_panel :][: holding.row_panel] = 0
            for pairs in (held.repulsion, held.doubles):
                pairs[slot * holding.pair_panel :][: holding.pair_panel] = 0
        np.copyto(held.row_at, row_at, where=row_at >= 0)
        np.copyto(held.pair_at, pair_at, where=pair_at >= 0)
        wanted = _by_tile(row_at >= 0, given.vir)
        occ_depth, vir_depth = self.orbitals.depth_numbers
        virtual, number = self.vir.irrep, frozen(self.orbitals.occ_number)
        for source in self._sources("ovvv", OVVV, lambda index: wanted[index[:, 2], index[:, 0]]):
            self._pack(pack_rows, source, virtual, number, frozen(vir_depth), 1.0, row_at, held.rows)
        for source in self._sources("t2", OVOV, lambda index: wanted[index[:, 1], index[:, 3]]):
            self._pack(pack_rows, source, virtual, number, frozen(occ_depth), -1.0, row_at, held.rows)
            if self.vir.has_fock:
                self._pack(pack_pairs, source, number, pair_at, held.doubles)
        for source in self._sources("ovov", OVOV, lambda index: wanted[index[:, 1], index[:, 3]]):
            self._pack(pack_pairs, source, number, pair_at, held.repulsion)

    def _load_columns(self, columns: Sequence[tuple[int, int]]) -> None:
        """Read and pack the columns of slices."""
        given, held, panel = self.given, self.held, self.holding.column_panel
        col_at = np.full_like(held.col_at, -1)
        for each, slot in columns:
            sizes = self.orbitals.col_sizes.sum(axis=1)[self.orbitals.vir_irrep[self._span(each)]]
            col_at[self._span(each)] = _places(sizes, slot * panel)
            for packed in (held.cols, held.turned):
                packed[slot * panel :][:panel] = 0
        np.copyto(held.col_at, col_at, where=col_at >= 0)
        wanted = np.logical_or.reduceat(col_at >= 0, given.vir.offsets[:-1])
        occ_depth, vir_depth = self.orbitals.depth_numbers
        virtual, number = self.vir.irrep, frozen(self.orbitals.occ_number)
        for source in self._sources("t2", AMPLITUDES, lambda index: wanted[index[:, 1]]):
            self._pack(pack_columns, source, virtual, number, frozen(vir_depth), col_at, held.cols, held.turned)
        for source in self._sources("ooov", OOOV, lambda index: wanted[index[:, 3]]):
            self._pack(pack_columns, source, virtual, number, frozen(occ_depth), col_at, held.cols, held.turned)

    def _pack(self, kernel: Callable[..., None], source: Source, *arguments: Any) -> None:
        """Have the workers pack blocks."""
        modes = np.empty((self.host.workers, 3, 4), np.int64)

        def loop(worker: int, queues: Ints, stop: Ints) -> None:
            kernel(worker, queues, stop, self.occ, source, *arguments, modes[worker])

        self.host.run_loop(loop, source.blocks[:, 4:8].prod(axis=1).astype(np.float64))

    def _sources(self, name: str, roles: tuple[int, ...], is_wanted: Callable[[Ints], Bools]) -> Iterator[Source]:
        """The wanted blocks of a tensor: those that lie in memory as they are at once, then the others one by one."""
        tensor: BlockTensor = getattr(self.given, name)
        full = self._blocks[name]
        rows = np.flatnonzero(is_wanted(full.index))
        direct = np.zeros(len(rows), np.bool_)
        if tensor.in_memory and tensor.arena.complete and tensor.dtype == np.float64:
            direct = (full.perm[rows] == 0) & (full.sign[rows] == 1)
        if direct.any():
            offsets = tensor.arena.offsets[full.source[rows[direct]]]
            table = _block_table(tensor, full.index[rows[direct]], offsets)
            yield Source(frozen(tensor.arena.data), table, integers(roles))
        for row in rows[~direct].tolist():
            block = np.transpose(tensor.read_only(int(full.source[row])), full.perms[full.perm[row]])
            data = np.ascontiguousarray(block, np.float64)
            data = data if full.sign[row] == 1 else -data
            yield Source(frozen(data.reshape(-1)), _block_table(tensor, full.index[[row]], 0), integers(roles))


def _allowed(tensor: BlockTensor, irreps: int) -> Expansion:
    """All blocks of a tensor but those that vanish by symmetry."""
    full = expand(tensor.pattern)
    return full if irreps == 1 else full.taken(np.flatnonzero(total_irreps(tensor.pattern, full.index) == 0))


def _block_table(tensor: BlockTensor, index: Ints, offsets: Any) -> Ints:
    """First orbitals, extents and first elements of blocks, as the packing loops read them."""
    table = np.empty((len(index), 9), np.int64)
    for mode, space in enumerate(tensor.spaces):
        table[:, mode], table[:, 4 + mode] = space.offsets[index[:, mode]], space.sizes[index[:, mode]]
    table[:, 8] = offsets
    return frozen(table)


def _places(sizes: Ints, begin: int) -> Ints:
    """Where things of some sizes lie one after the other."""
    return (begin + begins(sizes.ravel())).reshape(sizes.shape)


def _by_tile(wanted: Bools, space: Space) -> Bools:
    """Whether anything is wanted of two tiles."""
    first = space.offsets[:-1]
    found: Bools = np.logical_or.reduceat(np.logical_or.reduceat(wanted, first, axis=0), first, axis=1)
    return found


def run_triples(
    engine: Engine, given: TriplesInput, holding: Holding, flops: int, budget: int, tell: Tell | None = None
) -> Floats:
    """The energies of all tasks but for a factor of two, on every rank.

    Parameters
    ----------
    engine : Engine
        Whose ranks and workers compute.
    given : TriplesInput
        The tensors.
    holding : Holding
        What each rank holds at a time.
    flops : int
        Floating-point operations of all tasks.
    budget : int
        Bytes that a rank may hold.
    tell : callable, optional
        Called now and then with how far this rank is.
    """
    if not holding.orbitals.ntasks:
        return np.zeros(0)

    def compute() -> Floats:
        run = TriplesRun(hosting(engine), given, holding, budget)
        with Watch(tell, "E(T)", -(-flops // engine.ranks)) as watch, watch.following(lambda: run.flops):
            return run.compute(flops, engine.ranks, engine.rank)

    energies = engine.agree(compute)
    assert energies is not None
    # Each energy is zero on all ranks but one: nothing is rounded.
    return cast("MpiEngine", engine).world.sum(energies) if engine.ranks > 1 else energies
