"""`Space`: an index range cut into tiles, with optional labels per tile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.spaces.clustering import cluster_centres
from tilewise.spaces.integers import parse_integer, parse_integers

__all__ = ["LABELS", "Space"]

LABELS = ("irrep", "spin", "charge")
"""The kinds of label a tile can carry, in the order they enter a space's identity."""

_MOST_ELEMENTS = 2**62


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Space:
    """An index range cut into tiles, with optional labels per tile.

    Two spaces are equal, and hash alike, if their tile sizes and labels are; the name and the
    element order are for people. A label that is absent differs from a label that is zero.

    Parameters
    ----------
    sizes : sequence of int
        Elements per tile, each at least 1. An empty sequence makes a space without tiles.
    name : str, optional
        Name for printing.
    irrep : sequence of int, optional
        Irreducible representation per tile, at least 0, combined by XOR (D2h and its subgroups).
    spin : sequence of int, optional
        Spin projection per tile, such as 0 and 1 or +1 and -1; summed with a sign per mode.
    charge : sequence of int, optional
        Any other abelian charge per tile; summed with a sign per mode.

    Examples
    --------
    >>> from tilewise.spaces import Space
    >>> occ = Space([4, 6, 5], name="occ", spin=[1, 1, -1])
    >>> occ
    Space('occ', 15 in 3 tiles of 4 to 6, spin)
    >>> occ.offsets
    array([ 0,  4, 10, 15])
    """

    sizes: npt.NDArray[np.int64]
    """Elements per tile (read-only)."""
    offsets: npt.NDArray[np.int64]
    """First element of each tile, and the total at the end (read-only, `ntiles + 1` long)."""
    name: str | None
    """Name for printing; no part of the space's identity."""
    irrep: npt.NDArray[np.int64] | None
    """Irreducible representation per tile, combined by XOR."""
    spin: npt.NDArray[np.int64] | None
    """Spin projection per tile, combined by addition."""
    charge: npt.NDArray[np.int64] | None
    """Abelian charge per tile, combined by addition."""
    size: int
    """Number of elements."""
    _order: npt.NDArray[np.int64] | None = field(repr=False)
    """Element permutation found by clustering, or None for the identity."""
    _key: bytes = field(repr=False)
    """Sizes and labels as bytes: one comparison decides equality."""

    def __init__(
        self,
        sizes: npt.ArrayLike,
        name: str | None = None,
        *,
        irrep: npt.ArrayLike | None = None,
        spin: npt.ArrayLike | None = None,
        charge: npt.ArrayLike | None = None,
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise InputError(
                f"The name of a space is {name!r}. It must be a string or None. "
                "Pass the tile sizes as one sequence, Space([4, 6, 5]), and the name after it."
            )
        tiles = _parse_sizes(sizes, name)
        labels = {
            kind: _parse_label(values, kind, tiles.size, name)
            for kind, values in zip(LABELS, (irrep, spin, charge), strict=True)
        }
        self._assign(tiles, name, labels, None)

    def _assign(
        self,
        sizes: npt.NDArray[np.int64],
        name: str | None,
        labels: dict[str, npt.NDArray[np.int64] | None],
        order: npt.NDArray[np.int64] | None,
    ) -> None:
        """Set all fields from checked arrays, which become read-only."""
        offsets = np.zeros(sizes.size + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        present = [values for values in labels.values() if values is not None]
        flags = bytes(values is not None for values in labels.values())
        arrays = (sizes, offsets, *present) if order is None else (sizes, offsets, *present, order)
        for array in arrays:
            array.flags.writeable = False
        fields: dict[str, Any] = dict(labels, sizes=sizes, offsets=offsets, name=name, size=int(offsets[-1]))
        fields |= {"_order": order, "_key": flags + b"".join(array.tobytes() for array in (sizes, *present))}
        for attribute, value in fields.items():
            object.__setattr__(self, attribute, value)

    @classmethod
    def uniform(cls, size: int, tile: int = 24, name: str | None = None) -> Space:
        """Cut `size` elements into the fewest tiles of at most `tile` elements, as equal as they can be.

        Sizes differ by at most one, larger tiles first, so that no tiny last tile is left over:
        100 elements in tiles of 24 become five tiles of 20, not four of 24 and one of 4.

        Examples
        --------
        >>> from tilewise.spaces import Space
        >>> Space.uniform(11, tile=4).sizes
        array([4, 4, 3])
        """
        remedy = "Pass whole numbers, such as Space.uniform(120, tile=24)."
        elements = parse_integer(size, "The size of a uniform space", remedy)
        most = parse_integer(tile, "The tile size of a uniform space", remedy)
        if elements < 0 or most < 1:
            raise InputError(
                f"A uniform space of {elements} elements in tiles of {most} cannot be made. "
                f"The size must be at least 0 and the tile at least 1. {remedy}"
            )
        ntiles = -(-elements // most)
        sizes = np.full(ntiles, elements // ntiles if ntiles else 0, dtype=np.int64)
        sizes[: elements - int(sizes.sum())] += 1
        return cls(sizes, name)

    @classmethod
    def clustered(
        cls,
        points: npt.ArrayLike,
        ntiles: int,
        name: str | None = None,
        *,
        functions: npt.ArrayLike | None = None,
        seed: int = 0,
    ) -> Space:
        """Tile elements that sit on centres, by k-means over the centres.

        Tiles are numbered along the principal axis of the centres, so that neighbouring tiles are
        near each other in space. The result is the same for the same arguments.

        Parameters
        ----------
        points : array_like, shape (ncentres, ndim)
            Position of each centre.
        ntiles : int
            Number of tiles, at most the number of centres.
        name : str, optional
            Name for printing.
        functions : sequence of int, optional
            Elements on each centre (basis functions of an atom), at least 1; 1 without it. Elements
            of one centre are neighbours and stay in one tile; centres weigh as many as they carry.
        seed : int
            Seed of the first choice of cluster centres.

        Returns
        -------
        Space
            Its `order` brings elements given centre by centre into tile order: `dense[space.order]`.

        Examples
        --------
        >>> from tilewise.spaces import Space
        >>> space = Space.clustered([[0, 0, 9], [0, 0, 0], [0, 0, 8]], ntiles=2)
        >>> space.sizes, space.order
        (array([1, 2]), array([1, 0, 2]))
        """
        sizes, order = cluster_centres(points, ntiles, functions, seed)
        plain = cls(sizes, name)
        space = object.__new__(cls)
        space._assign(plain.sizes, plain.name, dict.fromkeys(LABELS), order)
        return space

    @classmethod
    def reordered(cls, space: Space, order: npt.ArrayLike | None) -> Space:
        """The space with an element permutation that a clustering found; None is the identity."""
        if order is None:
            return space
        given = parse_integers(order, "The element order of a space", "Pass a permutation of the elements.")
        if given.shape != (space.size,) or not np.array_equal(np.sort(given), np.arange(space.size)):
            raise InputError(
                f"The element order given has {given.size} entries that are no permutation of {space.size} elements. "
                "Expected each element once. Pass the order of the space it was saved from."
            )
        made = object.__new__(cls)
        labels = {kind: getattr(space, kind) for kind in LABELS}
        made._assign(space.sizes, space.name, labels, np.array(given, np.int64))
        return made

    @property
    def is_reordered(self) -> bool:
        """Whether `order` is something else than the identity."""
        return self._order is not None

    @property
    def ntiles(self) -> int:
        """Number of tiles."""
        return int(self.sizes.size)

    @property
    def order(self) -> npt.NDArray[np.int64]:
        """Permutation of the elements into tile order, `dense[order]`; the identity unless clustered."""
        return np.arange(self.size, dtype=np.int64) if self._order is None else self._order

    def label(self, kind: str) -> npt.NDArray[np.int64] | None:
        """The label per tile of one kind ("irrep", "spin" or "charge"), or None where the space has none."""
        if kind not in LABELS:
            raise InputError(f"Label {kind!r} is unknown. Labels are {LABELS}. Use one of these.")
        values: npt.NDArray[np.int64] | None = getattr(self, kind)
        return values

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Space):
            return NotImplemented
        return self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[Any, ...]:
        labels = {kind: self.label(kind) for kind in LABELS}
        return _rebuild, (self.sizes, self.name, labels, self._order)

    def __repr__(self) -> str:
        parts = [repr(self.name)] if self.name is not None else []
        parts.append(f"{self.size} in {self.ntiles} tile{'' if self.ntiles == 1 else 's'}")
        if self.ntiles:
            small, large = int(self.sizes.min()), int(self.sizes.max())
            parts[-1] += f" of {small}" if small == large else f" of {small} to {large}"
        parts += [kind for kind in LABELS if self.label(kind) is not None]
        return f"Space({', '.join(parts)})"


def _rebuild(
    sizes: npt.NDArray[np.int64],
    name: str | None,
    labels: dict[str, npt.NDArray[np.int64] | None],
    order: npt.NDArray[np.int64] | None,
) -> Space:
    """Make a space from the arrays of another one; arrays that were copied lose their read-only flag."""
    space = object.__new__(Space)
    space._assign(sizes, name, labels, order)
    return space


def _called(name: str | None) -> str:
    return "a space" if name is None else f"the space {name!r}"


def _parse_sizes(sizes: npt.ArrayLike, name: str | None) -> npt.NDArray[np.int64]:
    remedy = "Pass one positive integer per tile, such as Space([4, 6, 5])."
    tiles = parse_integers(sizes, f"The tile sizes of {_called(name)}", remedy)
    if tiles.ndim != 1:
        raise InputError(f"The tile sizes of {_called(name)} have {tiles.ndim} dimensions. One is expected. {remedy}")
    small = np.flatnonzero(tiles < 1)
    if small.size:
        raise InputError(
            f"Tile {small[0]} of {_called(name)} has size {tiles[small[0]]}. "
            "A tile has at least one element. Leave the tile out or give it a positive size."
        )
    if tiles.sum(dtype=np.float64) >= _MOST_ELEMENTS:
        raise InputError(
            f"The tiles of {_called(name)} sum to {tiles.sum(dtype=np.float64):.3g} elements. "
            "A space has fewer than 2**62. Give smaller tile sizes."
        )
    return tiles


def _parse_label(
    values: npt.ArrayLike | None, kind: str, ntiles: int, name: str | None
) -> npt.NDArray[np.int64] | None:
    if values is None:
        return None
    remedy = f"Pass {kind}= with one integer per tile."
    labels = parse_integers(values, f"The labels {kind} of {_called(name)}", remedy)
    if labels.shape != (ntiles,):
        raise InputError(
            f"The labels {kind} of {_called(name)} have shape {labels.shape}. "
            f"There are {ntiles} tiles, so shape ({ntiles},) is expected. {remedy}"
        )
    if kind == "irrep" and labels.size and labels.min() < 0:
        raise InputError(
            f"The labels irrep of {_called(name)} contain {labels.min()}. Irreps are numbered from 0, "
            "so that their product is an XOR. Number them 0, 1, 2, ... with the totally symmetric one as 0."
        )
    return labels
