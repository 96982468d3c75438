"""Pictures; the only module that imports Matplotlib, and only when a picture is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewise.errors import InputError, MissingPackageError
from tilewise.patterns import Pattern, expand
from tilewise.tensors import BlockTensor
from tilewise.tensors.html import composite_edges, composite_tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_pattern(item: Pattern | BlockTensor, ax: Axes | None = None) -> Axes:
    """Draw the blocks of a pattern or tensor to scale, coloured by the logarithm of their norms.

    More than two modes are drawn as a matrix: the first half of the modes down, the rest across. Blocks of
    unknown norm are grey.

    Parameters
    ----------
    item : Pattern or BlockTensor
        What is drawn; it has at least one mode.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        Where it was drawn.
    """
    if not isinstance(item, (Pattern, BlockTensor)):
        raise InputError(
            f"plot_pattern was given a {type(item).__name__}. Expected a Pattern or a BlockTensor. Pass plan.result or "
            "operand.pattern of a plan."
        )
    pattern = item.pattern if isinstance(item, BlockTensor) else item
    if not pattern.ndim:
        raise InputError("A scalar has no blocks to draw. Expected at least one mode. Draw an operand instead.")
    axes = _new_axes() if ax is None else ax
    half = pattern.ndim // 2
    rows, cols = composite_edges(pattern.spaces[:half]), composite_edges(pattern.spaces[half:])
    _draw(axes, pattern, rows, cols)
    axes.set_xlim(0, cols[-1] or 1)
    axes.set_ylim(rows[-1] or 1, 0)
    axes.set_title(f"{pattern.nnz_blocks} blocks, density {pattern.density:.3g}")
    axes.set_xlabel(_label(pattern, range(half, pattern.ndim)))
    axes.set_ylabel(_label(pattern, range(half)))
    return axes


def _new_axes() -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise _missing() from error
    made: Axes = pyplot.subplots()[1]
    return made


def _missing() -> MissingPackageError:
    return MissingPackageError(
        "Matplotlib is not installed. It is needed to draw patterns. Install it with `pip install tilewise[plot]`."
    )


def _draw(axes: Axes, pattern: Pattern, rows: Any, cols: Any) -> None:
    try:
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Rectangle
    except ImportError as error:
        raise _missing() from error
    full = expand(pattern)
    half = pattern.ndim // 2
    down = composite_tiles(full.index[:, :half], pattern.spaces[:half])
    across = composite_tiles(full.index[:, half:], pattern.spaces[half:])
    boxes = [
        Rectangle((cols[c], rows[r]), cols[c + 1] - cols[c], rows[r + 1] - rows[r])
        for r, c in zip(down.tolist(), across.tolist(), strict=True)
    ]
    known = np.isfinite(full.norms) & (full.norms > 0)
    axes.set_facecolor("white")
    if not known.all():
        grey = [box for box, sure in zip(boxes, known.tolist(), strict=True) if not sure]
        axes.add_collection(PatchCollection(grey, facecolor="0.6", edgecolor="white", linewidth=0.2))
    if known.any():
        sure = [box for box, good in zip(boxes, known.tolist(), strict=True) if good]
        drawn = PatchCollection(sure, cmap="viridis", edgecolor="white", linewidth=0.2)
        drawn.set_array(np.log10(full.norms[known]))
        axes.add_collection(drawn)
        axes.figure.colorbar(drawn, ax=axes, label="log10 of the norm bound")


def _label(pattern: Pattern, modes: range) -> str:
    return " x ".join(pattern.spaces[mode].name or f"mode {mode}" for mode in modes)
