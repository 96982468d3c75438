"""Blocks of synthetic and of selected patterns, as sorted index arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.patterns.keys import blocks_of_keys, fits_keys
from tilewise.patterns.permutation import Symmetry
from tilewise.spaces import Rule, Space, allowed_blocks
from tilewise.spaces.integers import parse_seed

__all__ = ["decaying_blocks", "masked_blocks", "random_blocks", "selected_blocks"]

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


def selected_blocks(spaces: tuple[Space, ...], rules: Sequence[Rule], symmetry: Symmetry | None) -> _Ints:
    """Unique blocks that all rules allow; all unique blocks without rules."""
    groups = [] if symmetry is None else [modes for modes, _ in symmetry.groups]
    for rule in rules:
        signs = rule.signs if rule.signs is not None and len(rule.signs) == len(spaces) else (1,) * len(spaces)
        mixed = [modes for modes in groups if len({signs[mode] for mode in modes}) > 1]
        if mixed:
            raise InputError(
                f"The {rule.label} rule gives modes {mixed[0]}, which are one symmetry group, the signs "
                f"{tuple(signs[mode] for mode in mixed[0])}. Modes that are exchanged enter a rule alike. "
                "Give them one sign or drop the group."
            )
    return allowed_blocks(spaces, rules, groups)


def random_blocks(spaces: tuple[Space, ...], density: float, seed: int, symmetry: Symmetry | None) -> _Ints:
    """Unique blocks that stay when random ones are removed until the next would take the density too low."""
    number = parse_seed(seed)
    if isinstance(density, bool) or not isinstance(density, (int, float, np.number)) or not 0 <= density <= 1:
        raise InputError(
            f"density is {density!r}. A number from 0 to 1 is expected, the fraction of elements in "
            "non-zero blocks. Pass density=0.1 for ten per cent."
        )
    counts = [space.ntiles for space in spaces]
    if symmetry is None and fits_keys(counts):
        sizes = np.ones(1, dtype=np.int64)
        for space in spaces:
            sizes = np.multiply.outer(sizes, space.sizes).reshape(-1)
        return blocks_of_keys(_kept(sizes, float(density), number), counts)
    index = selected_blocks(spaces, (), symmetry)
    sizes = np.ones(len(index), dtype=np.int64) if symmetry is None else symmetry.multiplicity(index)
    for mode, space in enumerate(spaces):
        sizes *= space.sizes[index[:, mode]]
    return index[_kept(sizes, float(density), number)]


def _kept(sizes: _Ints, density: float, seed: int) -> _Ints:
    """Rows that stay, ascending.

    What a removal in random order leaves is the end of that order, read backwards: the shortest
    beginning of a random order that reaches the target. Only about as many rows as stay are drawn.
    """
    if density in (0.0, 1.0) or not sizes.size:
        return np.arange(sizes.size if density else 0)
    rng = np.random.default_rng(seed)
    total = sizes.sum()
    order = rng.choice(sizes.size, min(sizes.size, int(1.1 * density * sizes.size) + 100), replace=False)
    if sizes[order].sum() / total < density:
        others = np.ones(sizes.size, dtype=np.bool_)
        others[order] = False
        order = np.concatenate([order, rng.permutation(np.flatnonzero(others))])
    count = int(np.searchsorted(np.cumsum(sizes[order]) / total, density)) + 1
    return np.sort(order[:count])


def decaying_blocks(
    spaces: tuple[Space, ...],
    length: float,
    cut: float,
    norm: float,
    pairs: Sequence[tuple[int, int]] | None,
    symmetry: Symmetry | None,
) -> tuple[_Ints, _Floats]:
    """Unique blocks and norms `norm * exp(-distance / length)` above `cut`.

    Modes are added one at a time; the distance only grows, so what falls under the cut goes at once.
    """
    _check_decay(length, cut, norm, pairs, len(spaces))
    before: dict[int, int] = {}
    for modes, _ in symmetry.groups if symmetry is not None else ():
        before |= dict(zip(modes[1:], modes[:-1], strict=True))
    places = _tile_places(spaces)
    columns: list[_Ints] = []
    norms = np.full(1 if norm > cut else 0, float(norm))
    for mode, place in enumerate(places):
        rows = np.repeat(np.arange(norms.size), place.size)
        grown = [column[rows] for column in columns] + [np.tile(np.arange(place.size), norms.size)]
        norms = norm * np.exp(-_distance(grown, places, pairs) / length)
        kept = norms > cut
        if mode in before:
            kept &= grown[mode] >= grown[before[mode]]
        columns, norms = [column[kept] for column in grown], norms[kept]
    index = np.stack(columns, axis=1) if columns else np.zeros((norms.size, 0), dtype=np.int64)
    return index, norms


def _tile_places(spaces: tuple[Space, ...]) -> list[_Floats]:
    """Place of each tile on a line as long as the greatest number of tiles."""
    longest = max((space.ntiles for space in spaces), default=0)
    return [(np.arange(space.ntiles, dtype=np.float64) + 0.5) * (longest / max(space.ntiles, 1)) for space in spaces]


def _distance(columns: list[_Ints], places: list[_Floats], pairs: Sequence[tuple[int, int]] | None) -> _Floats:
    """Distance of the tiles chosen so far: summed over pairs of modes, or that of the farthest two."""
    here = [place[column] for place, column in zip(places, columns, strict=False)]
    if pairs is None:
        spread: _Floats = np.max(here, axis=0) - np.min(here, axis=0)
        return spread
    total = np.zeros(columns[0].size)
    for left, right in pairs:
        if max(left, right) < len(columns):
            total += np.abs(here[left] - here[right])
    return total


def _check_decay(length: float, cut: float, norm: float, pairs: Sequence[tuple[int, int]] | None, ndim: int) -> None:
    if not (0 < length < np.inf and 0 <= cut < np.inf and 0 <= norm < np.inf):
        raise InputError(
            f"length={length}, cut={cut} and norm={norm} give no decaying pattern. A positive length and "
            "a non-negative cut and norm, all finite, are expected. Pass, for example, length=2.0, cut=1e-8."
        )
    for pair in pairs or ():
        if len(pair) != 2 or not all(0 <= mode < ndim for mode in pair) or pair[0] == pair[1]:
            raise InputError(
                f"pairs contains {pair!r}. Two different modes from 0 to {ndim - 1} are expected. "
                "Pass pairs such as ((0, 2), (1, 3))."
            )


def masked_blocks(spaces: tuple[Space, ...], mask: npt.ArrayLike, symmetry: Symmetry | None) -> _Ints:
    """Unique blocks where a boolean array over all blocks is true."""
    array = np.asarray(mask)
    counts = tuple(space.ntiles for space in spaces)
    if array.shape != counts or (array.dtype != np.bool_ and array.size):
        raise InputError(
            f"The mask is an array of {array.dtype} with shape {array.shape}. A boolean array with one entry "
            f"per block, shape {counts}, is expected. Compare with a number first, such as norms > 1e-8."
        )
    index = np.ascontiguousarray(np.argwhere(array), dtype=np.int64)
    if symmetry is None:
        return index
    for modes, _ in symmetry.groups:
        for mode in modes[1:]:
            if not np.array_equal(array, np.swapaxes(array, modes[0], mode)):
                raise InputError(
                    f"The mask changes when modes {modes[0]} and {mode} are exchanged. {symmetry!r} needs a "
                    "mask that does not. Symmetrise it, for a matrix by mask | mask.T."
                )
    return index[symmetry.ascends(index)]
