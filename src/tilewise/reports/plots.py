"""Pictures; the only module that imports Matplotlib, and only when a picture is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tilewise.errors import InputError, MissingPackageError
from tilewise.patterns import Pattern, expand
from tilewise.plans import Plan
from tilewise.tensors import BlockTensor
from tilewise.tensors.html import composite_edges, composite_tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]
Logarithmic = Literal["", "x", "y", "xy"]

MARKERS = "osD^vP"
"""Series are told apart without colours too."""
SPANS = (
    ("compute", "computing"),
    ("add", "adding sums"),
    ("fetch", "waiting for blocks"),
    ("wait", "waiting for neighbours"),
)
"""What a rank does: the names of a trace, and words for them."""
MOST_TICKS = 12
"""There is room for so many on an axis."""


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


def plot_series(
    series: Mapping[str, Points],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    log: Logarithmic = "",
    marks: Mapping[str, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw measured figures as lines through their points.

    Parameters
    ----------
    series : mapping of str to sequence of (float, float)
        The points (x, y) of each line, by what the legend calls it; they are joined in the order of x.
    xlabel, ylabel : str
        What the axes show, with the unit.
    title : str
        Stands above.
    log : str
        Axes that are logarithmic: ``"x"``, ``"y"`` or ``"xy"``.  Their coordinates are positive.
    marks : mapping of str to float, optional
        Values of x that get a dashed vertical line, such as a capacity, by what the legend calls them.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        Where it was drawn.

    Examples
    --------
    >>> from tilewise.reports.plots import plot_series
    >>> rates = {"1 queue": [(32, 4.1), (64, 9.8)], "2 queues": [(32, 5.0), (64, 17.2)]}
    >>> axes = plot_series(rates, xlabel="tile size", ylabel="GF/s", log="x")
    >>> [line.get_label() for line in axes.lines]
    ['1 queue', '2 queues']
    """
    if log not in get_args(Logarithmic):
        raise InputError(f"log={log!r} names no axes. Expected '', 'x', 'y' or 'xy'. Correct it.")
    axes = _new_axes() if ax is None else ax
    for (label, points), marker in zip(series.items(), cycle(MARKERS), strict=False):
        axes.plot(*np.array(sorted(points), float).reshape(-1, 2).T, marker=marker, markersize=5, label=label)
    for label, x in (marks or {}).items():
        axes.axvline(x, color="0.5", linestyle="--", linewidth=1.2, label=label)
    _scale(axes, series, log)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.grid(color="0.92")
    if axes.lines:
        axes.legend(frameon=False)
    return axes


def _scale(axes: Axes, series: Mapping[str, Points], log: Logarithmic) -> None:
    """Linear axes that are never negative begin at zero; a logarithmic x axis has ticks at points, as there is room."""
    points = [point for own in series.values() for point in own]
    for number, name in enumerate("xy"):
        if name in log:
            axes.set(**{f"{name}scale": "log"})
        elif all(point[number] >= 0 for point in points):
            axes.set(**{f"{name}lim": (0, None)})
    if "x" in log and points:
        places = _apart(sorted({x for x, _ in points}))
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.set_xticks([], minor=True)


def _apart(places: Sequence[float]) -> list[float]:
    """Those of some sorted positive numbers whose labels do not touch on a logarithmic axis."""
    kept = [places[0]]
    for place in places[1:]:
        if MOST_TICKS * np.log(place / kept[-1]) >= np.log(places[-1] / places[0]):
            kept.append(place)
    return kept


def plot_ranks(plan: Plan, ax: Axes | None = None) -> Axes:
    """Draw what each rank did in the latest run of a plan: computed, waited for blocks, waited for its neighbours.

    Parameters
    ----------
    plan : Plan
        What was run on several ranks; every rank can draw it.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        Where it was drawn: one bar for each rank, in seconds.
    """
    ranks = plan.runs[-1].ranks if isinstance(plan, Plan) and plan.runs else ()
    if not ranks:
        raise InputError(
            "plot_ranks needs a plan that was run on several ranks. Expected one step, run under mpiexec. Run it with "
            "tw.execute first, or give it one of the steps of a program."
        )
    axes, number = _new_axes() if ax is None else ax, np.arange(len(ranks))
    begin = np.zeros(len(ranks))
    for what, label in SPANS:
        seconds = np.array([rank.seconds(what) for rank in ranks])
        axes.barh(number, seconds, left=begin, label=label)
        begin += seconds
    rest = np.maximum(plan.runs[-1].seconds - begin, 0.0)
    axes.barh(number, rest, left=begin, label="the rest", color="0.85")
    axes.set(xlabel="seconds", ylabel="rank", title=plan.label, yticks=number[:: 1 + len(number) // MOST_TICKS])
    axes.invert_yaxis()
    axes.legend(frameon=False)
    return axes


def save_plot(ax: Axes, path: Path | str) -> tuple[Path, Path]:
    """Write the figure that axes belong to as PNG and as SVG.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Part of the figure.
    path : Path or str
        Where to, without an ending; missing folders are made.

    Returns
    -------
    tuple of Path
        Both files, the PNG first.

    Examples
    --------
    >>> import tempfile
    >>> from tilewise.reports.plots import plot_series, save_plot
    >>> axes = plot_series({"moved": [(1, 2), (2, 5)]}, xlabel="size, MB", ylabel="moved, MB")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in save_plot(axes, folder + "/moved")]
    ['moved.png', 'moved.svg']
    """
    stem, figure = Path(path), ax.figure.figure  # of axes in a subfigure, the whole figure
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    figure.savefig(written[0], dpi=150, bbox_inches="tight")
    figure.savefig(written[1], bbox_inches="tight")
    return written


def _new_axes() -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise _missing() from error
    made: Axes = pyplot.subplots()[1]
    return made


def _missing() -> MissingPackageError:
    return MissingPackageError(
        "Matplotlib is not installed. It is needed to draw pictures. Install it with `pip install tilewise[plot]`."
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
