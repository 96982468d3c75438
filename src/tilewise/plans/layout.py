"""Who owns each block of a tensor that is spread over ranks, and what it takes to change that.

| layout | the owner of a block |
|---|---|
| `cyclic` | its number among the stored blocks, counted round |
| `cyclic2d` | tile of the first modes along one side of a grid, of the last modes along the other, counted round |
| `column` | its tile of the last mode; tiles are dealt by their bytes, largest first, forward and back |
| `weight` | neighbouring blocks together, in runs of equal bytes |
| `replicated` | every rank has it |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.patterns import Pattern
from tilewise.plans.balance import cut_evenly, deal_mirrored
from tilewise.plans.grids import divisors, total_by
from tilewise.spaces.integers import parse_count

Ints = npt.NDArray[np.int64]

LAYOUTS = ("cyclic", "cyclic2d", "column", "weight", "replicated")
"""Names that ``layout=`` takes."""

EVERYBODY = -1
"""The owner of a block that every rank has."""

MOST_RANKS = 1_000_000
"""More are not planned for."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The owner of each stored block of a pattern."""

    ranks: int
    """How many ranks there are."""
    owner: Ints
    """Rank that has each block; `EVERYBODY` if all have it."""

    def __post_init__(self) -> None:
        self.owner.setflags(write=False)

    def blocks_of(self, rank: int) -> Ints:
        """The blocks that a rank has and others do not."""
        return np.flatnonzero(self.owner == rank)


def largest_share(owner: Ints, sizes: Ints, ranks: int) -> int:
    """Most bytes of blocks of some sizes that a rank has."""
    everybody = owner == EVERYBODY
    own = total_by(owner[~everybody], sizes[~everybody], ranks)
    return int(sizes[everybody].sum()) + int(own.max(initial=0))


def parse_ranks(ranks: object, ranks_per_node: object) -> tuple[int, int]:
    """How many ranks a user plans for, and how many of them share a node."""
    count = parse_count("ranks", ranks, "ranks")
    if count > MOST_RANKS:
        raise InputError(f"ranks={count} are more than can be planned for. Expected at most {MOST_RANKS}. Use fewer.")
    return count, parse_count("ranks_per_node", ranks_per_node, "ranks")


def check_layout(name: str) -> None:
    """Raise if there is no such layout."""
    if name not in LAYOUTS:
        raise InputError(f"layout={name!r} is unknown. Expected one of {', '.join(LAYOUTS)}. Correct the name.")


def make_layout(name: str, pattern: Pattern, ranks: int) -> Layout:
    """Give every stored block an owner.

    Parameters
    ----------
    name : str
        One of `LAYOUTS`.
    pattern : Pattern
        The blocks.
    ranks : int
        How many ranks there are.

    Examples
    --------
    >>> from tilewise import Pattern, Space
    >>> i = Space([2, 3, 4])
    >>> make_layout("cyclic", Pattern.dense((i, i)), 4).owner.tolist()
    [0, 1, 2, 3, 0, 1, 2, 3, 0]
    """
    check_layout(name)
    if ranks < 1:
        raise InputError(f"A tensor cannot be spread over {ranks} ranks. Expected at least one. Correct the number.")
    count = pattern.nnz_blocks
    if name == "replicated":
        return Layout(ranks, np.full(count, EVERYBODY, np.int64))
    if name == "cyclic":
        return Layout(ranks, np.arange(count) % ranks)
    if name == "weight":
        ends = cut_evenly(pattern.block_sizes.astype(np.float64), ranks)
        return Layout(ranks, np.repeat(np.arange(ranks), np.diff(ends)))
    return Layout(ranks, _cyclic2d(pattern, ranks) if name == "cyclic2d" else _column(pattern, ranks))


def _cyclic2d(pattern: Pattern, ranks: int) -> Ints:
    rows = max(d for d in divisors(ranks) if d <= math.isqrt(ranks))
    half = pattern.ndim // 2
    first, last = (_composite(pattern, modes) for modes in (range(half), range(half, pattern.ndim)))
    return first % rows * (ranks // rows) + last % (ranks // rows)


def _column(pattern: Pattern, ranks: int) -> Ints:
    if not pattern.ndim:
        return np.zeros(pattern.nnz_blocks, np.int64)
    tile = pattern.index[:, -1]
    weight = total_by(tile, pattern.block_sizes, pattern.spaces[-1].ntiles)
    return deal_mirrored(weight, ranks)[tile]


def _composite(pattern: Pattern, modes: range) -> Ints:
    """One number for the tiles of some modes."""
    number = np.zeros(pattern.nnz_blocks, np.int64)
    for mode in modes:
        number = number * pattern.spaces[mode].ntiles + pattern.index[:, mode]
    return number


@dataclass(frozen=True, slots=True)
class Exchange:
    """One round of messages that changes a layout: between two ranks at most one."""

    source: Ints
    """Rank that sends each message."""
    target: Ints
    """Rank that gets it."""
    ptr: Ints
    """First block of each message; one more at the end."""
    block: Ints
    """Blocks of the messages."""
    message_bytes: Ints
    """Bytes of each message."""

    def blocks(self, message: int) -> Ints:
        """The blocks of a message."""
        return self.block[self.ptr[message] : self.ptr[message + 1]]


def plan_exchange(old: Layout, new: Layout, block_bytes: Ints) -> Exchange:
    """The messages that take blocks from one layout to another.

    What every rank has is sent by nobody; what every rank is to have goes to all that lack it.
    """
    if old.ranks != new.ranks or len(old.owner) != len(new.owner):
        raise InputError(
            f"A layout of {len(old.owner)} blocks on {old.ranks} ranks cannot become one of {len(new.owner)} blocks on "
            f"{new.ranks}. Expected the same blocks and ranks. Make the new layout for the same tensor."
        )
    moving = np.flatnonzero((old.owner != new.owner) & (old.owner != EVERYBODY))
    to_all = new.owner[moving] == EVERYBODY
    block = np.concatenate([moving[~to_all], np.repeat(moving[to_all], old.ranks)])
    target = np.concatenate([new.owner[moving[~to_all]], np.tile(np.arange(old.ranks), int(to_all.sum()))])
    lacks = old.owner[block] != target
    block, target = block[lacks], target[lacks]
    return list_messages(old.owner[block], target, block, old.ranks, block_bytes)


def list_messages(source: Ints, target: Ints, block: Ints, ranks: int, block_bytes: Ints) -> Exchange:
    """Blocks that go from rank to rank, put into one message for each pair of ranks."""
    order = np.lexsort((block, target, source))
    block, source, target = block[order], source[order], target[order]
    first = np.flatnonzero(np.diff(source * ranks + target, prepend=-1))
    ptr = np.append(first, len(block)).astype(np.int64)
    total = np.concatenate([[0], np.cumsum(block_bytes[block])])
    return Exchange(source[first], target[first], ptr, block, np.diff(total[ptr]).astype(np.int64))
