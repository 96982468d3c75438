"""Hypothesis strategies shared by all tests: spaces, symmetries, patterns, tensors, einsum strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from references import dense
from tilewise.factories import random
from tilewise.patterns import Pattern, Symmetry
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor

__all__ = [
    "DTYPES",
    "EinsumCase",
    "einsum_cases",
    "matrix_cases",
    "norm_bounds",
    "patterns",
    "space_lists",
    "spaces",
    "symmetric_patterns",
    "symmetries",
    "tensors",
]

DTYPES = ("float32", "float64", "complex64", "complex128")
"""Element types of tensors, by name."""


@st.composite
def spaces(draw: st.DrawFn, max_tiles: int = 4, max_tile: int = 4, min_tiles: int = 0, labels: bool = False) -> Space:
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
def _some_blocks(draw: st.DrawFn, every: Pattern, fill: float | None = None) -> Pattern:
    """A random part of a pattern's blocks; the seed is drawn, not each block, to keep examples small."""
    fraction = draw(st.sampled_from((0.0, 0.2, 0.5, 0.8, 1.0))) if fill is None else fill
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    index = every.index[rng.random(every.nnz_blocks) < fraction]
    return Pattern(every.spaces, index, draw(norm_bounds(len(index))), every.symmetry)


@st.composite
def tensors(
    draw: st.DrawFn,
    modes: Sequence[Space] | None = None,
    dtype: str | None = None,
    max_modes: int = 4,
    symmetric: bool | None = None,
    fill: float | None = None,
) -> BlockTensor:
    """A tensor of random elements over given or drawn spaces; with a symmetry, without one, or either.

    `fill` is the fraction of blocks that are stored, drawn too without it.
    """
    kind = draw(st.sampled_from(DTYPES)) if dtype is None else dtype
    if modes is not None:
        shared = None if symmetric is False else draw(_fitting_symmetries(modes))
        pattern = draw(_some_blocks(Pattern.dense(modes, shared), fill))
    elif draw(st.booleans()) if symmetric is None else symmetric:
        pattern = draw(symmetric_patterns(max_modes=max_modes))
    else:
        pattern = draw(patterns(max_modes=max_modes))
    unscaled = Pattern(pattern.spaces, pattern.index, None, pattern.symmetry)
    return random(pattern=unscaled, seed=draw(st.integers(0, 2**32 - 1)), dtype=kind)


@st.composite
def _fitting_symmetries(draw: st.DrawFn, modes: Sequence[Space]) -> Symmetry | None:
    """Groups of two or three among modes with equal spaces; often none at all."""
    if draw(st.integers(0, 2)):
        return None
    free, groups = list(range(len(modes))), []
    while len(free) > 1:
        first = free.pop(0)
        alike = [mode for mode in free if modes[mode] == modes[first]]
        size = draw(st.integers(0, min(2, len(alike))))
        if size:
            chosen = draw(st.permutations(alike))[:size]
            free = [mode for mode in free if mode not in chosen]
            groups.append(((first, *chosen), draw(st.sampled_from((-1, 1)))))
    return Symmetry(*groups) if groups else None


@dataclass(frozen=True)
class EinsumCase:
    """An einsum string with tensors that fit it."""

    text: str
    tensors: tuple[BlockTensor, ...]

    @property
    def arrays(self) -> list[npt.NDArray[Any]]:
        """The tensors as dense arrays."""
        return [dense(tensor) for tensor in self.tensors]

    @property
    def expected(self) -> npt.NDArray[Any]:
        """What NumPy makes of it."""
        return np.asarray(np.einsum(self.text, *self.arrays))

    @property
    def scale(self) -> float:
        """The product of the operands' norms: what errors are measured by."""
        return float(np.prod([np.linalg.norm(array.astype(np.complex128)) for array in self.arrays]))


FILLS = (1.0, 0.8, 0.6, 0.3, 0.0)
"""Fractions of blocks stored in the operands of one case; alike for all, or results would mostly be empty."""


@st.composite
def einsum_cases(draw: st.DrawFn, operands: int, dtype: str | None = None) -> EinsumCase:
    """Any valid einsum: repeated, batch, lone and summed indices, scalars, ellipses, implicit outputs.

    Spaces come from a small pool, so that operands may have symmetry groups; some spaces have no tiles.
    """
    letters, most, tile = ("abcdef", 4, 3) if operands < 3 else ("abcde", 3, 2)
    fewest = draw(st.sampled_from((1, 1, 1, 1, 0)))
    pool = draw(st.lists(spaces(max_tiles=3, max_tile=tile, min_tiles=fewest), min_size=1, max_size=2))
    home = {letter: draw(st.sampled_from(pool)) for letter in letters}
    under = draw(st.lists(st.sampled_from(pool), max_size=draw(st.sampled_from((0, 0, 2)))))
    fill = draw(st.sampled_from(FILLS[: 5 if operands == 1 else 4]))
    terms, made = [], []
    for _ in range(operands):
        modes = draw(st.integers(0, most).flatmap(lambda n: st.tuples(*[st.sampled_from(letters)] * n)))
        own, place = list(modes), draw(st.integers(0, len(modes)))
        covered = draw(st.integers(0, len(under)))
        tilings = [home[letter] for letter in own]
        every = tilings[:place] + under[len(under) - covered :] + tilings[place:]
        made.append(draw(tensors(every, dtype, fill=fill)))
        terms.append([*own[:place], *(["..."] if covered else []), *own[place:]])
    text = ",".join(map("".join, terms))
    if draw(st.booleans()):
        used = sorted({letter for term in terms for letter in term} - {"..."})
        kept = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
        if "..." in text:
            kept.insert(draw(st.integers(0, len(kept))), "...")
        text += "->" + "".join(kept)
    return EinsumCase(text, tuple(made))


@st.composite
def matrix_cases(draw: st.DrawFn, dtype: str, tile: int = 5, batches: int = 0, symmetric: bool = False) -> EinsumCase:
    """A product of matrices whose rows, columns and inner indices are one or two modes, in any order."""
    groups = [draw(st.sampled_from((names, names[:1]))) for names in ("ij", "ab", "kl")]
    m, n, k = (list(group) for group in groups)
    batch = list("xy"[:batches])
    pool = draw(st.lists(st.lists(st.integers(3, tile), min_size=1, max_size=3).map(Space), min_size=1, max_size=2))
    home = {letter: draw(st.sampled_from(pool)) for letter in m + n + k}
    home |= {letter: draw(spaces(max_tiles=2, max_tile=3, min_tiles=1)) for letter in batch}
    terms = [draw(st.permutations(batch + one + two)) for one, two in ((m, k), (k, n), (m, n))]
    kind, fill = None if symmetric else False, draw(st.sampled_from(FILLS[:4]))
    both = [draw(tensors([home[c] for c in term], dtype, symmetric=kind, fill=fill)) for term in terms[:2]]
    left, right, out = map("".join, terms)
    return EinsumCase(f"{left},{right}->{out}", tuple(both))
