"""One operand of a product as the inspector sees it: block entries keyed by panel and by k tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.patterns import Expansion
from tilewise.patterns.keys import block_keys, blocks_of_keys
from tilewise.plans.arrange import order_by_inner, order_side, shared_keys
from tilewise.plans.joins import Entries
from tilewise.spaces import Space

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Numbering:
    """Composite tiles (one tile per mode of a group) numbered from zero in lexicographic order."""

    counts: tuple[int, ...]
    """Tiles of each mode of the group."""
    keys: Ints | None
    """Key of each number where only those that occur are numbered; None if the number is the key."""
    size: int
    """How many numbers there are."""

    @classmethod
    def of(cls, spaces: Sequence[Space], keys: Sequence[Ints]) -> Numbering:
        """Number the composite tiles; only those that occur if all would be many more."""
        counts = tuple(s.ntiles for s in spaces)
        everything = math.prod(counts)
        if everything <= 1024 + 2 * sum(map(len, keys)):
            return cls(counts, None, everything)
        found = np.unique(np.concatenate(keys))
        return cls(counts, found, len(found))

    def numbers(self, keys: Ints) -> Ints:
        """The number of each key."""
        return keys if self.keys is None else np.searchsorted(self.keys, keys)

    def tiles(self, numbers: Ints) -> Ints:
        """The tile of each mode, one row per number."""
        return blocks_of_keys(numbers if self.keys is None else self.keys[numbers], self.counts)

    def sizes(self, spaces: Sequence[Space], modes: range) -> Ints:
        """Elements of each composite tile, counting only some modes of the group."""
        if self.keys is None:
            sizes = np.ones(1, np.int64)
            for mode, space in enumerate(spaces):
                factor = space.sizes if mode in modes else np.ones_like(space.sizes)
                sizes = (sizes[:, None] * factor).ravel()
            return sizes
        tiles = blocks_of_keys(self.keys, self.counts)
        sizes = np.ones(self.size, np.int64)
        for mode in modes:
            sizes *= spaces[mode].sizes[tiles[:, mode]]
        return sizes


@dataclass(frozen=True, slots=True)
class Modes:
    """The modes of one tensor of a product, by group."""

    free: tuple[int, ...]
    """Modes shared with the result only."""
    inner: tuple[int, ...]
    """Modes shared with the other operand only; of the result: the modes of the columns."""
    batch: tuple[int, ...]
    """Modes shared by both operands and the result."""


@dataclass(frozen=True, slots=True)
class Side:
    """One operand, its blocks ordered by panel and k."""

    modes: Modes
    """The operand's modes by group."""
    spaces: tuple[Space, ...]
    """Spaces of the batch and free modes."""
    panels: Numbering
    """Numbering of the panels: composite tiles of batch and free modes."""
    ptr: Ints
    """First entry of each panel; one more at the end."""
    block: Ints
    """Block of each entry (a row of the operand's expansion)."""
    inner: Ints
    """K tile of each entry."""
    at: Ints
    """Position of each entry along its panel's k range."""
    depth: Ints
    """Length of each panel's k range."""
    size: Ints
    """Free elements of each panel."""
    batch: Ints
    """Batch elements of each panel."""
    norms: Floats
    """Norm of each entry."""

    def tile_sizes(self) -> Ints:
        """Sizes of the batch and free tiles of each panel, one row per panel."""
        tiles = self.panels.tiles(np.arange(self.panels.size))
        sizes = np.empty_like(tiles)
        for mode, space in enumerate(self.spaces):
            np.take(space.sizes, tiles[:, mode], out=sizes[:, mode])
        return sizes

    def by_panel(self) -> Entries:
        """The entries as the row operand of a join."""
        return Entries(self.ptr, self.inner, self.at, self.block, self.norms)

    def by_inner(self, tiles: int) -> Entries:
        """The entries as the column operand of a join: ordered by k tile, then by panel."""
        ptr, order, panel = order_by_inner(self.ptr, self.inner, tiles)
        return Entries(ptr, panel, self.at[order], self.block[order], self.norms[order])


def keys_of(expansion: Expansion, spaces: Sequence[Space], modes: Sequence[int]) -> Ints:
    """Key of each block over some of its modes."""
    return block_keys(expansion.index, [spaces[d].ntiles for d in modes], modes)


def make_sides(
    expansions: tuple[Expansion, Expansion],
    spaces: tuple[Sequence[Space], Sequence[Space]],
    modes: tuple[Modes, Modes],
    tiles: Numbering | None = None,
) -> tuple[Side, Side, Numbering, Ints]:
    """Order both operands' blocks, without those that meet no block of the other.

    Returns
    -------
    tuple
        Rows, columns, the numbering of the k tiles (the one given, if any) and the length of each.
    """
    keys = [
        keys_of(expansion, own, mode.batch + mode.inner)
        for expansion, own, mode in zip(expansions, spaces, modes, strict=True)
    ]
    common = modes[0].batch + modes[0].inner
    inner_spaces = [spaces[0][d] for d in common]
    tiles = Numbering.of(inner_spaces, keys) if tiles is None else tiles
    lengths = tiles.sizes(inner_spaces, range(len(modes[0].batch), len(common)))
    numbers = [tiles.numbers(k) for k in keys]
    meets = shared_keys(numbers[0], numbers[1], tiles.size)
    left, right = (_make_side(expansions[i], spaces[i], modes[i], numbers[i], lengths, meets) for i in range(2))
    return left, right, tiles, lengths


def _make_side(
    expansion: Expansion,
    spaces: Sequence[Space],
    modes: Modes,
    tile: Ints,
    lengths: Ints,
    meets: npt.NDArray[np.bool_],
) -> Side:
    panel_modes = modes.batch + modes.free
    panel_spaces = [spaces[d] for d in panel_modes]
    keys = keys_of(expansion, spaces, panel_modes)
    panels = Numbering.of(panel_spaces, [keys])
    ptr, block, inner, at, norms, depth = order_side(
        panels.numbers(keys), tile, meets, lengths, panels.size, expansion.norms
    )
    batches = len(modes.batch)
    return Side(
        modes=modes,
        spaces=tuple(panel_spaces),
        panels=panels,
        ptr=ptr,
        block=block,
        inner=inner,
        at=at,
        depth=depth,
        size=panels.sizes(panel_spaces, range(batches, len(panel_modes))),
        batch=panels.sizes(panel_spaces, range(batches)),
        norms=norms,
    )
