"""A tensor as a notebook shows it: a line of facts and a picture of its blocks."""

from __future__ import annotations

import math
from html import escape

import numpy as np
import numpy.typing as npt

from tilewise.patterns import Pattern, expand
from tilewise.spaces import Space
from tilewise.tensors.tensor import BlockTensor

PICTURE_PIXELS = 160
"""Longest edge of the picture."""

MOST_RECTANGLES = 2500
"""Blocks that are drawn one by one; a finer pattern is drawn as a raster of its density."""

Floats = npt.NDArray[np.float64]


def tensor_html(tensor: BlockTensor) -> str:
    """Shape, spaces, element type, blocks, density, and the block pattern to scale.

    Tensors of four and more modes are drawn as a matrix, the first half of the modes down and the rest across.

    Examples
    --------
    >>> import tilewise as tw
    >>> from tilewise.tensors.html import tensor_html
    >>> i = tw.Space([2, 3], name="i")
    >>> tensor_html(tw.random((i, i), density=0.5)).count("<rect")
    3
    """
    pattern = tensor.pattern
    facts = [
        ("shape", " x ".join(map(str, tensor.shape)) or "scalar"),
        ("spaces", ", ".join(_space_text(space) for space in tensor.spaces) or "none"),
        ("elements", f"{tensor.dtype.name}, {tensor.nbytes / 1e6:.3g} MB"),
        ("blocks", f"{pattern.nnz_blocks}, density {pattern.density:.3g}"),
    ]
    if tensor.symmetry is not None:
        facts.append(("symmetry", repr(tensor.symmetry)))
    if tensor.error_bound:
        facts.append(("error bound", f"{tensor.error_bound:.2e}"))
    rows = "".join(
        f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in facts
    )
    table = f"<table><caption>BlockTensor</caption><tbody>{rows}</tbody></table>"
    return f'<div style="display:flex;align-items:center;gap:1em">{table}{pattern_svg(pattern)}</div>'


def _space_text(space: Space) -> str:
    text = f"{space.size} in {space.ntiles}"
    return text if space.name is None else f"{space.name}: {text}"


def pattern_svg(pattern: Pattern) -> str:
    """The blocks of a pattern as an inline picture; empty for scalars and tensors without elements."""
    if not pattern.ndim or not math.prod(pattern.shape):
        return ""
    rows, cols = (
        composite_edges(pattern.spaces[: pattern.ndim // 2]),
        composite_edges(pattern.spaces[pattern.ndim // 2 :]),
    )
    longest = max(rows[-1], cols[-1])
    scale = PICTURE_PIXELS / longest
    # Even a very oblong matrix gets some pixels across.
    height, width = (max(float(edges[-1]) * scale, 12.0) for edges in (rows, cols))
    rows, cols = rows * (height / rows[-1]), cols * (width / cols[-1])
    index = expand(pattern).index
    down = composite_tiles(index[:, : pattern.ndim // 2], pattern.spaces[: pattern.ndim // 2])
    across = composite_tiles(index[:, pattern.ndim // 2 :], pattern.spaces[pattern.ndim // 2 :])
    boxes = _boxes(down, across, rows, cols) if len(index) <= MOST_RECTANGLES else _raster(down, across, rows, cols)
    frame = f'<rect width="{width:.1f}" height="{height:.1f}" fill="#ffffff" stroke="#888888"/>'
    return (
        f'<svg role="img" aria-label="block pattern" width="{width + 2:.0f}" height="{height + 2:.0f}" '
        f'viewBox="-1 -1 {width + 2:.1f} {height + 2:.1f}" xmlns="http://www.w3.org/2000/svg">{frame}{boxes}</svg>'
    )


def composite_edges(spaces: tuple[Space, ...]) -> Floats:
    """First element of each composite tile, and the total at the end."""
    sizes = np.ones(1)
    for space in spaces:
        sizes = np.multiply.outer(sizes, space.sizes.astype(np.float64)).ravel()
    return np.concatenate([[0.0], np.cumsum(sizes)])


def composite_tiles(index: npt.NDArray[np.int64], spaces: tuple[Space, ...]) -> npt.NDArray[np.int64]:
    """Number of each composite tile, counted like the edges."""
    number = np.zeros(len(index), np.int64)
    for mode, space in enumerate(spaces):
        number = number * space.ntiles + index[:, mode]
    return number


def _boxes(down: npt.NDArray[np.int64], across: npt.NDArray[np.int64], rows: Floats, cols: Floats) -> str:
    return "".join(
        f'<rect x="{cols[c]:.2f}" y="{rows[r]:.2f}" width="{cols[c + 1] - cols[c]:.2f}" '
        f'height="{rows[r + 1] - rows[r]:.2f}" fill="#3b6ea5" stroke="#ffffff" stroke-width="0.3"/>'
        for r, c in zip(down.tolist(), across.tolist(), strict=True)
    )


def _raster(down: npt.NDArray[np.int64], across: npt.NDArray[np.int64], rows: Floats, cols: Floats) -> str:
    """Fields of 4 pixels, as dark as the share of them that blocks cover; blocks count at their centres."""
    step = 4.0
    counts = (math.ceil(rows[-1] / step), math.ceil(cols[-1] / step))
    y = ((rows[down] + rows[down + 1]) / 2 / step).astype(np.int64)
    x = ((cols[across] + cols[across + 1]) / 2 / step).astype(np.int64)
    area = (rows[down + 1] - rows[down]) * (cols[across + 1] - cols[across])
    cover = np.bincount(y * counts[1] + x, area, counts[0] * counts[1]) / step**2
    fields = np.flatnonzero(cover)
    return "".join(
        f'<rect x="{f % counts[1] * step:.0f}" y="{f // counts[1] * step:.0f}" width="4" height="4" fill="#3b6ea5" '
        f'fill-opacity="{min(max(float(cover[f]), 0.05), 1.0):.2f}"/>'
        for f in fields.tolist()
    )
