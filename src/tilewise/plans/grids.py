"""Grids of ranks, and how they are laid over nodes so that little crosses between them (Irmler et al. 2023, 2).

A product on a grid sends something along each axis: copies of one operand along the axis of the other's free index,
partial results along the axis of the summed one.  A fibre of the grid that lies on `g` nodes sends its words to
``g - 1`` of them.  With `W_i` the words of all fibres along axis `i` together, what crosses between nodes is

    V = sum_i W_i (p_i / m_i - 1),    prod_i m_i = m,    m_i divides p_i,

for `p_i` ranks along axis `i`, `m_i` of them on one node, and `m` ranks on each node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.plans.balance import cut_evenly, mirrored

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Grid:
    """Ranks on a grid whose axes are cut among nodes.

    Ranks are numbered node by node, as launchers place them, and row by row on each node.

    Examples
    --------
    >>> Grid((4, 2), inside=(2, 2)).ranks().tolist()
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    >>> Grid((2, 4), inside=(2, 2)).ranks().tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """

    shape: tuple[int, ...]
    """Ranks along each axis."""
    inside: tuple[int, ...]
    """Those of them that one node has along each axis."""

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.inside) or any(p % m for p, m in zip(self.shape, self.inside, strict=True)):
            raise InputError(
                f"A node of {shape_text(self.inside)} ranks does not fit a grid of {shape_text(self.shape)}. Expected "
                "a divisor along each axis. Choose other factors."
            )

    @property
    def size(self) -> int:
        """Ranks in all."""
        return math.prod(self.shape)

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each node."""
        return math.prod(self.inside)

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes along each axis."""
        return tuple(p // m for p, m in zip(self.shape, self.inside, strict=True))

    def coordinates(self) -> Ints:
        """One row for each rank: its place along each axis."""
        node, local = np.divmod(np.arange(self.size), self.ranks_per_node)
        first = np.stack(np.unravel_index(node, self.nodes), axis=1) * np.array(self.inside)
        return np.asarray(first + np.stack(np.unravel_index(local, self.inside), axis=1))

    def ranks(self) -> Ints:
        """An array of the grid's shape: the rank at each place."""
        found = np.empty(self.shape, np.int64)
        found[tuple(self.coordinates().T)] = np.arange(self.size)
        return found

    def volume(self, words: Sequence[float]) -> float:
        """Words that cross between nodes, given those that all fibres along each axis have to send."""
        return sum(w * (g - 1) for w, g in zip(words, self.nodes, strict=True))

    def rank_volume(self, words: Sequence[float]) -> float:
        """Words that cross between ranks, whether they share a node or not."""
        return sum(w * (p - 1) for w, p in zip(words, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class RankRates:
    """What a grid is weighed with."""

    flops: float
    """Flops per second of a rank."""
    between: float
    """Bytes per second that a node receives from others."""
    inside: float
    """Bytes per second that a rank receives from others of its node."""

    def __post_init__(self) -> None:
        rates = (self.flops, self.between, self.inside)
        if not all(rate > 0 for rate in rates):
            raise InputError(
                f"The rates {rates} are not all positive. Expected flops and bytes per second. Correct it."
            )


def shape_text(shape: Sequence[int]) -> str:
    """A shape as people write it."""
    return " x ".join(map(str, shape))


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, in ascending order.

    Examples
    --------
    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def factorisations(number: int, axes: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as an ordered product.

    Examples
    --------
    >>> list(factorisations(4, 2))
    [(1, 4), (2, 2), (4, 1)]
    """
    if axes == 1:
        yield (number,)
        return
    for first in divisors(number):
        for rest in factorisations(number // first, axes - 1):
            yield (first, *rest)


def node_shapes(shape: Sequence[int], ranks_per_node: int) -> list[tuple[int, ...]]:
    """All ways to lay nodes over a grid."""
    ways = factorisations(ranks_per_node, len(shape))
    return [inside for inside in ways if all(p % m == 0 for p, m in zip(shape, inside, strict=True))]


def map_nodes(shape: Sequence[int], words: Sequence[float], ranks_per_node: int) -> Grid | None:
    """The grid whose nodes are laid so that the least crosses between them; None if they cannot be laid over it.

    Among equals, the one that cuts the first axes least.  Every node gets a box of the grid; where ranks numbered row
    by row put some whole planes and a part of one on each node, `row_major_volume` can be less than with any box.

    Examples
    --------
    >>> map_nodes((12, 12), (1.0, 1.0), ranks_per_node=12)
    Grid(shape=(12, 12), inside=(4, 3))
    """
    grids = [Grid(tuple(shape), inside) for inside in node_shapes(shape, ranks_per_node)]
    return min(grids, key=lambda grid: (grid.volume(words), grid.nodes), default=None)


def choose_grid(words: Sequence[float], ranks: int, ranks_per_node: int) -> Grid:
    """Shape and node mapping together: the least between nodes, among equals the least between ranks.

    For a dense product, where what an axis sends does not depend on how the others are cut.

    Parameters
    ----------
    words : sequence of float
        What all fibres along each axis have to send.
    ranks, ranks_per_node : int
        How many ranks there are, and how many of them share a node.
    """
    check_nodes(ranks, ranks_per_node)
    ways = list(factorisations(ranks_per_node, len(words)))
    cuts = list(factorisations(ranks // ranks_per_node, len(words)))
    least = min(cuts, key=lambda nodes: (Grid(nodes, (1,) * len(nodes)).volume(words), nodes))
    grids = [Grid(tuple(g * m for g, m in zip(least, inside, strict=True)), inside) for inside in ways]
    return min(grids, key=lambda grid: (grid.rank_volume(words), grid.shape))


def check_nodes(ranks: int, ranks_per_node: int) -> None:
    """Raise if ranks do not fill whole nodes."""
    if ranks < 1 or ranks_per_node < 1 or ranks % ranks_per_node:
        raise InputError(
            f"{ranks} ranks, {ranks_per_node} on a node, do not fill whole nodes. Expected a multiple. Use "
            f"{max(ranks // max(ranks_per_node, 1), 1) * max(ranks_per_node, 1)} ranks."
        )


def row_major_volume(shape: Sequence[int], words: Sequence[float], ranks_per_node: int) -> float:
    """Words that cross between nodes where ranks are numbered row by row over the grid, whatever the nodes are."""
    node = (np.arange(math.prod(shape)) // ranks_per_node).reshape(tuple(shape))
    volume = 0.0
    for axis, sent in enumerate(words):
        # Along a fibre the numbers ascend, and so do the nodes.
        further = np.count_nonzero(np.diff(node, axis=axis), axis=axis)
        volume += sent * float(further.mean())
    return volume


def deal_axis(weight: Floats, nodes: int, inside: int, contiguous: bool) -> Ints:
    """Deal weights to nodes, and those of each node to its ranks.

    Neighbours together: runs of equal weight, of which each node has neighbouring ones.  Otherwise largest first,
    forward and back over the nodes, and what a node gets forward and back over its ranks.

    Examples
    --------
    >>> import numpy as np
    >>> weight = np.array([4.0, 2.0, 2.0, 1.0, 3.0, 3.0, 1.0])
    >>> deal_axis(weight, nodes=2, inside=2, contiguous=True).tolist()
    [0, 1, 1, 2, 2, 3, 3]
    >>> deal_axis(weight, nodes=2, inside=2, contiguous=False).tolist()
    [0, 1, 1, 3, 2, 3, 2]
    """
    if contiguous:
        return np.repeat(np.arange(nodes * inside), np.diff(cut_evenly(weight, nodes * inside)))
    turn = np.arange(len(weight))
    group = np.empty(len(weight), np.int64)
    group[np.argsort(-weight, kind="stable")] = mirrored(turn, nodes) * inside + mirrored(turn // nodes, inside)
    return group


def deal_boxes(weight: Floats, tiles: Ints, nodes: int, inside: int) -> Ints:
    """Deal panels of several modes in boxes: every mode has an axis of its own within the axis of the grid.

    This is what nested SUMMA does on grids with more than three dimensions (Irmler et al. 2023, 2.2): the tiles of each
    mode are dealt to a part of the nodes and ranks, neighbours together.  The factors of both go, the largest first, to
    the mode with the most tiles for each group.

    Parameters
    ----------
    weight : array of float
        What each panel costs.
    tiles : array of int
        One row for each panel: its tile in each mode.
    nodes, inside : int
        Nodes along the axis, and ranks of each.

    Examples
    --------
    >>> import numpy as np
    >>> tiles = np.argwhere(np.ones((4, 4)))
    >>> deal_boxes(np.ones(16), tiles, nodes=2, inside=2).reshape(4, 4).tolist()
    [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    """
    by_mode = [total_by(column, weight, int(column.max(initial=-1)) + 1) for column in tiles.T]
    occupied = np.array([np.count_nonzero(each) for each in by_mode])
    cuts = np.ones((2, len(by_mode)), np.int64)
    for level, number in enumerate((nodes, inside)):
        for factor in reversed(prime_factors(number)):
            cuts[level, np.argmax(occupied / cuts.prod(axis=0))] *= factor
    node, local = (np.zeros(len(weight), np.int64) for _ in range(2))
    for own, column, (across, within) in zip(by_mode, tiles.T, cuts.T.tolist(), strict=True):
        group = deal_axis(own, across, within, contiguous=True)[column]
        node, local = node * across + group // within, local * within + group % within
    return node * inside + local


def prime_factors(number: int) -> list[int]:
    """Prime factors, in ascending order.

    Examples
    --------
    >>> prime_factors(72)
    [2, 2, 2, 3, 3]
    """
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found


def total_by(group: Ints, weight: Floats | Ints, count: int) -> Floats:
    """The weight of each group."""
    return np.asarray(np.bincount(group, weight, count), np.float64)
