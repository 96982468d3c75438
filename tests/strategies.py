"""Hypothesis strategies shared by all tests: spaces, symmetries, patterns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from tilewise.patterns import Pattern, Symmetry
from tilewise.spaces import Space

__all__ = ["norm_bounds", "patterns", "space_lists", "spaces", "symmetric_patterns", "symmetries"]


@st.composite
def spaces(
    draw: st.DrawFn, max_tiles: int = 4, max_tile: int = 4, min_tiles: int = 0, labels: bool = False
) -> Space:
    """A space of a few small tiles, by default also without any; with all three kinds of label if asked."""
    sizes = draw(st.lists(st.integers(1, max_tile), min_size=min_tiles, max_size=max_tiles))
    if not labels:
        return Space(sizes)
    count = len(sizes)
    irrep = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    spin = draw(st.lists(st.sampled_from((-1, 1)), min_size=count, max_size=count))
    charge = draw(st.lists(st.integers(-2, 2), min_size=count, max_size=count))
    return Space(sizes, irrep=irrep, spin=spin, charge=charge)


@st.composite
def space_lists(
    draw: st.DrawFn,
    min_modes: int = 0,
    max_modes: int = 4,
    max_tiles: int = 3,
    max_tile: int = 3,
    min_tiles: int = 0,
) -> tuple[Space, ...]:
    """Spaces of the modes of one tensor; some of them are equal, as in real tensors."""
    pool = draw(st.lists(spaces(max_tiles, max_tile, min_tiles), min_size=1, max_size=3))
    return tuple(draw(st.lists(st.sampled_from(pool), min_size=min_modes, max_size=max_modes)))


@st.composite
def symmetries(draw: st.DrawFn, ndim: int) -> Symmetry:
    """One or more groups of modes of a tensor with at least two modes, interleaved in any way."""
    modes = list(draw(st.permutations(range(ndim))))
    groups: list[tuple[list[int], int]] = []
    while len(modes) >= 2 and (not groups or draw(st.booleans())):
        size = draw(st.integers(2, min(len(modes), 4)))
        groups.append((modes[:size], draw(st.sampled_from((-1, 1)))))
        modes = modes[size:]
    return Symmetry(*groups)


@st.composite
def norm_bounds(draw: st.DrawFn, count: int) -> npt.NDArray[np.float64] | None:
    """Norm bounds of so many blocks: unknown, or some numbers among which are 0 and infinity."""
    if draw(st.booleans()):
        return None
    values = st.sampled_from((0.0, 1e-9, 0.5, 1.0, 3.0, 1e6, float("inf")))
    return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype=np.float64)


@st.composite
def patterns(draw: st.DrawFn, modes: Sequence[Space] | None = None, max_modes: int = 4) -> Pattern:
    """A pattern without symmetry over given or drawn spaces: from no block to all."""
    chosen = draw(space_lists(max_modes=max_modes)) if modes is None else tuple(modes)
    return draw(_some_blocks(Pattern.dense(chosen)))


@st.composite
def symmetric_patterns(draw: st.DrawFn, min_modes: int = 2, max_modes: int = 4) -> Pattern:
    """A pattern with symmetry groups, over spaces that are equal where modes are exchanged."""
    ndim = draw(st.integers(min_modes, max_modes))
    symmetry = draw(symmetries(ndim))
    chosen = [draw(spaces(max_tiles=3, max_tile=3)) for _ in range(ndim)]
    for modes, _ in symmetry.groups:
        for mode in modes:
            chosen[mode] = chosen[modes[0]]
    return draw(_some_blocks(Pattern.dense(chosen, symmetry)))


@st.composite
def _some_blocks(draw: st.DrawFn, every: Pattern) -> Pattern:
    """A random part of a pattern's blocks; the seed is drawn, not each block, to keep examples small."""
    fraction = draw(st.sampled_from((0.0, 0.2, 0.5, 0.8, 1.0)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    index = every.index[rng.random(every.nnz_blocks) < fraction]
    return Pattern(every.spaces, index, draw(norm_bounds(len(index))), every.symmetry)
