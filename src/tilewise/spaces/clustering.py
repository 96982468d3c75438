"""Centres in space to tiles: k-means with the clusters numbered along the principal axis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.spaces.integers import parse_integer, parse_integers

__all__ = ["cluster_centres"]

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]

_MOST_ROUNDS = 100


def cluster_centres(
    points: npt.ArrayLike, ntiles: int, functions: npt.ArrayLike | None, seed: int
) -> tuple[_Ints, _Ints]:
    """Group centres into `ntiles` clusters; return the elements per cluster and the element permutation.

    Elements are those of the centres in the order given, `functions[i]` on centre i. The same
    arguments give the same clusters, and no cluster is empty.
    """
    places, count, weights = _parse_centres(points, ntiles, functions)
    if not count:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    owner = _kmeans(places, count, weights.astype(np.float64), np.random.default_rng(seed))
    owner = _along_principal_axis(places, owner, count)
    centres = np.argsort(owner, kind="stable")
    first = np.cumsum(weights) - weights
    taken = weights[centres]
    within = np.arange(weights.sum()) - np.repeat(np.cumsum(taken) - taken, taken)
    sizes = np.zeros(count, dtype=np.int64)
    np.add.at(sizes, owner, weights)
    return sizes, np.repeat(first[centres], taken) + within


def _parse_centres(points: npt.ArrayLike, ntiles: int, functions: npt.ArrayLike | None) -> tuple[_Floats, int, _Ints]:
    remedy = "Pass a row of coordinates and a positive count for each centre, and at most one tile per centre."
    try:
        places = np.array(points, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise InputError(f"The points of a clustered space are no numbers: {error}. {remedy}") from error
    if places.size == 0 and places.ndim == 1:
        places = places.reshape(0, 3)
    if places.ndim != 2 or not np.isfinite(places).all():
        raise InputError(
            f"The points of a clustered space have shape {places.shape} or are not finite. "
            f"A finite array of shape (centres, coordinates) is expected. {remedy}"
        )
    count = parse_integer(ntiles, "The number of tiles of a clustered space", remedy)
    if not min(1, len(places)) <= count <= len(places):
        raise InputError(
            f"{len(places)} centres cannot be clustered into {count} tiles. "
            f"From {min(1, len(places))} to {len(places)} tiles are possible. {remedy}"
        )
    if functions is None:
        return places, count, np.ones(len(places), dtype=np.int64)
    weights = parse_integers(functions, "The functions per centre of a clustered space", remedy)
    if weights.shape != (len(places),) or (weights < 1).any():
        raise InputError(
            f"The functions per centre have shape {weights.shape} and minimum {weights.min(initial=1)}. "
            f"Shape ({len(places)},) and at least 1 on each centre are expected. {remedy}"
        )
    return places, count, weights


def _kmeans(points: _Floats, count: int, weights: _Floats, rng: np.random.Generator) -> _Ints:
    """Cluster of each point by Lloyd's rounds, until nothing moves."""
    centres = points[_spread_seeds(points, count, weights, rng)]
    owner = np.full(len(points), -1, dtype=np.int64)
    for _ in range(_MOST_ROUNDS):
        previous = owner
        owner, distance = _nearest(points, centres)
        _fill_empty(owner, distance, count)
        if np.array_equal(owner, previous):
            break
        centres = _means(points, owner, count, weights)
    return owner


def _spread_seeds(points: _Floats, count: int, weights: _Floats, rng: np.random.Generator) -> _Ints:
    """First cluster centres, each drawn with a probability that grows as its squared distance to others."""
    chosen = [int(rng.choice(len(points), p=weights / weights.sum()))]
    nearest = np.full(len(points), np.inf)
    while len(chosen) < count:
        nearest = np.minimum(nearest, _squared_distance(points, points[chosen[-1]]))
        mass = nearest * weights
        total = mass.sum()
        # Points that coincide with a seed have no mass; once no other is left, any unused one serves.
        unused = np.setdiff1d(np.arange(len(points)), chosen)
        pick = rng.choice(len(points), p=mass / total) if total > 0 else unused[0]
        chosen.append(int(pick))
    return np.array(chosen, dtype=np.int64)


def _nearest(points: _Floats, centres: _Floats) -> tuple[_Ints, _Floats]:
    """Nearest centre of each point and its squared distance; the lower number wins a tie."""
    owner = np.zeros(len(points), dtype=np.int64)
    distance = _squared_distance(points, centres[0])
    for number in range(1, len(centres)):
        other = _squared_distance(points, centres[number])
        closer = other < distance
        owner[closer] = number
        distance[closer] = other[closer]
    return owner, distance


def _fill_empty(owner: _Ints, distance: _Floats, count: int) -> None:
    """Give each empty cluster the point farthest from its centre among clusters that can spare one."""
    population = np.bincount(owner, minlength=count)
    for cluster in np.flatnonzero(population == 0):
        spare = np.where(population[owner] > 1, distance, -1.0)
        point = int(np.argmax(spare))
        population[owner[point]] -= 1
        population[cluster] = 1
        owner[point] = cluster
        distance[point] = 0.0


def _means(points: _Floats, owner: _Ints, count: int, weights: _Floats) -> _Floats:
    mass = np.bincount(owner, weights=weights, minlength=count)
    sums = [np.bincount(owner, weights=weights * column, minlength=count) for column in points.T]
    return np.stack(sums, axis=1) / mass[:, None] if sums else np.zeros((count, 0))


def _along_principal_axis(points: _Floats, owner: _Ints, count: int) -> _Ints:
    """Renumber clusters by their mean's place on the direction in which the points spread most."""
    centred = points - points.mean(axis=0)
    if centred.shape[1] == 0:
        return owner
    axis = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    axis *= np.sign(axis[np.argmax(np.abs(axis))])
    place = _means(points, owner, count, np.ones(len(points))) @ axis
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort(place, kind="stable")] = np.arange(count)
    return rank[owner]


def _squared_distance(points: _Floats, centre: _Floats) -> _Floats:
    distance: _Floats = ((points - centre) ** 2).sum(axis=1)
    return distance
