"""Patterns like those of a long alkane in the ladder term R(ij, ab) = T(ij, cd) V(cd, ab).

Modelled on C65H132 in tiling v1 of Herault et al. 2020, Table 1: 59 tiles of atomic orbitals, so 3481
composite tiles cd and as many ab; V has 2.4 % of its blocks, T 9.8 %; 1.9 million block products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import tilewise as tw
from problems import Floats, Ints

ORBITALS, ORBITAL_TILES = 1570, 59
OCCUPIED, OCCUPIED_TILES = 196, 10
V_BLOCKS = 300_000
T_DENSITY = 0.098
PRODUCTS = 1_900_000


@dataclass(frozen=True, slots=True)
class Ladder:
    """Patterns of the two operands and the number of their block products."""

    t: tw.Pattern
    """Amplitudes, modes i j c d."""
    v: tw.Pattern
    """Integrals, modes c d a b."""
    products: int
    """Pairs of blocks that meet."""


def chain(tiles: int, seed: int) -> Floats:
    """Centres of tiles along a chain of length 1, unevenly spaced as clustering leaves them."""
    steps = np.random.default_rng(seed).uniform(0.7, 1.3, tiles)
    return np.asarray((np.cumsum(steps) - steps / 2) / steps.sum())


def closest(rows: Floats, cols: Floats, count: int) -> NDArray[np.bool_]:
    """Mask of the `count` pairs of centres that lie closest to each other, or one more among equals."""
    distance = np.abs(np.subtract.outer(rows, cols))
    reach = np.partition(distance.ravel(), count - 1)[count - 1]
    return np.asarray(distance <= reach)


def tile_sizes(total: int, tiles: int, seed: int) -> Ints:
    """Uneven sizes, at least 1, that add up to `total`."""
    cuts = np.random.default_rng(seed).choice(np.arange(1, 2 * tiles), tiles - 1, replace=False)
    shares = np.diff(np.concatenate([[0], np.sort(cuts), [2 * tiles]])) + 2.0
    edges = np.round(np.cumsum(shares) / shares.sum() * total).astype(np.int64)
    return np.diff(np.concatenate([[0], edges]))


def pair_blocks(left: NDArray[np.bool_], right: NDArray[np.bool_], rows: Ints) -> Ints:
    """Blocks (p, q, r, s) with left[p, r] and right[q, s], for the pairs (p, q) in `rows`."""
    parts = []
    for p, q in rows:
        r, s = np.flatnonzero(left[p]), np.flatnonzero(right[q])
        part = np.empty((len(r), len(s), 4), dtype=np.int64)
        part[:, :, 0], part[:, :, 1], part[:, :, 2], part[:, :, 3] = p, q, r[:, None], s[None, :]
        parts.append(part.reshape(-1, 4))
    return np.concatenate(parts)


def ladder(products: int = PRODUCTS) -> Ladder:
    """The patterns with the closest pairs ij, as many as give about `products` block products."""
    orbitals, occupied = chain(ORBITAL_TILES, 1), chain(OCCUPIED_TILES, 2)
    near = closest(orbitals, orbitals, round(V_BLOCKS**0.5))
    domain = closest(occupied, orbitals, round(T_DENSITY**0.5 * OCCUPIED_TILES * ORBITAL_TILES))
    partners = near.sum(axis=1)  # tiles a that a tile c meets
    work = np.multiply.outer(domain @ partners, domain @ partners)  # products of each pair ij
    apart = np.abs(np.subtract.outer(occupied, occupied))
    pairs = np.argsort(apart, axis=None, kind="stable")
    kept = int(np.searchsorted(np.cumsum(work.ravel()[pairs]), products)) + 1
    rows = np.stack(np.divmod(np.sort(pairs[:kept]), OCCUPIED_TILES), axis=1)
    every = np.stack(np.divmod(np.arange(ORBITAL_TILES**2), ORBITAL_TILES), axis=1)
    ao = tw.Space(tile_sizes(ORBITALS, ORBITAL_TILES, 3), name="ao")
    occ = tw.Space(tile_sizes(OCCUPIED, OCCUPIED_TILES, 4), name="occ")
    t = tw.Pattern((occ, occ, ao, ao), pair_blocks(domain, domain, rows))
    v = tw.Pattern((ao, ao, ao, ao), pair_blocks(near, near, every))
    return Ladder(t, v, int(work[rows[:, 0], rows[:, 1]].sum()))
