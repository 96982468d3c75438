"""Pictures; the only module that imports Matplotlib, and only when a picture is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from tilewise.errors import InputError, MissingPackageError
from tilewise.iteration import PlannedStep
from tilewise.patterns import Pattern, expand
from tilewise.plans import Plan
from tilewise.plans.explain import bytes_text, count_text, rate_text, seconds_text
from tilewise.tensors import BlockTensor
from tilewise.tensors.html import composite_edges, composite_tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure

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
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#8C6D31", "#999999")
"""Told apart by people who do not see all colours (Okabe and Ito 2008), black and yellow replaced."""
STYLE: Final[Mapping[Any, Any]] = {
    "font.size": 11.0,
    "axes.titlesize": 12.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
"""How pictures of reports look."""
LETTER = 0.01
"""Part of the width of a picture that a small letter takes: names stand in bars with room for them."""
_NEAR = 4
"""A budget that is so many times what is held is left out of the picture."""


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


def plot_convergence(
    cycles: Sequence[tuple[int, float, float]], limits: tuple[float, float], ax: Axes | None = None
) -> Axes:
    """Draw how an iteration converges, on a logarithmic scale, and where it may stop.

    Parameters
    ----------
    cycles : sequence of (int, float, float)
        Number of each cycle, change of the energy in hartree, norm of the step of the amplitudes.
    limits : (float, float)
        Below these the change and the norm count as converged.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        Where it was drawn.

    Examples
    --------
    >>> from tilewise.reports.plots import plot_convergence
    >>> axes = plot_convergence([(1, -0.02, 0.3), (2, 1e-3, 0.02)], (1e-7, 1e-5))
    >>> axes.get_yscale(), [round(float(y), 3) for y in axes.lines[0].get_ydata()]
    ('log', [0.02, 0.001])
    """
    axes = _new_axes() if ax is None else ax
    numbers = [cycle[0] for cycle in cycles]
    curves = (("change of the energy, hartree", 1), ("norm of the step of the amplitudes", 2))
    for (label, column), limit, colour, marker in zip(curves, limits, COLOURS, MARKERS, strict=False):
        values = [abs(cycle[column]) or np.nan for cycle in cycles]  # zero has no logarithm
        axes.plot(numbers, values, marker=marker, markersize=5, color=colour, label=label)
        axes.axhline(limit, color=colour, linestyle=":", linewidth=1.3, label=f"limit {limit:.3g}")
    axes.set(yscale="log", xlabel="cycle", ylabel="absolute value", title="Convergence")
    axes.locator_params(axis="x", integer=True)
    axes.grid(color="0.92")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return axes


def plot_terms(steps: Sequence[PlannedStep], ax: Axes | None = None) -> Axes:
    """Draw when the terms of an iteration run, a row for each group of them.

    Parameters
    ----------
    steps : sequence of PlannedStep
        The terms in the order in which they run; times are medians of their runs, projected before the first.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        Where it was drawn: a bar for each term, in seconds since the iteration began.
    """
    axes = _new_axes() if ax is None else ax
    ends = np.cumsum([step.expected_seconds for step in steps])
    colours = group_colours(steps)
    for row, (group, colour) in enumerate(colours.items()):
        own = [number for number, step in enumerate(steps) if step.statement.group == group]
        bars = [(float(ends[n]) - steps[n].expected_seconds, steps[n].expected_seconds) for n in own]
        axes.broken_barh(bars, (row - 0.38, 0.76), facecolor=colour, edgecolor="white", linewidth=0.4)
        for number, (begin, seconds) in zip(own, bars, strict=True):
            name = steps[number].statement.target.name
            if seconds > LETTER * (len(name) + 1) * ends[-1]:
                axes.text(begin + seconds / 2, row, name, ha="center", va="center", color="white", fontsize=8)
    axes.set_yticks(range(len(colours)), list(colours))
    axes.set(xlim=(0, float(ends[-1]) if len(ends) and ends[-1] else 1), xlabel="seconds", title="One iteration")
    axes.invert_yaxis()
    axes.grid(axis="x", color="0.92")
    axes.set_axisbelow(True)
    return axes


def plot_memory(
    steps: Sequence[PlannedStep], *, budget: int, others: Mapping[str, int] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw what an iteration holds in memory while its terms run.

    Parameters
    ----------
    steps : sequence of PlannedStep
        The terms in the order in which they run.
    budget : int
        Bytes that are allowed: a dashed line, unless it is far above everything.
    others : mapping of str to int, optional
        Bytes that are held all the time, by what the legend calls them.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        Where it was drawn: bytes against seconds since the iteration began.
    """
    axes = _new_axes() if ax is None else ax
    times = np.append(0.0, np.cumsum([step.expected_seconds for step in steps]))
    layers = {name: [size] * len(steps) for name, size in (others or {}).items()}
    layers |= {"tensors": [step.held_bytes for step in steps], "buffers": [step.added_bytes for step in steps]}
    below = np.zeros(len(steps))
    for (label, sizes), colour in zip(layers.items(), COLOURS, strict=False):
        above = below + np.array(sizes, float)
        low, high = (np.append(part, part[-1:]) for part in (below, above))
        axes.fill_between(times[: len(low)], low, high, step="post", color=colour, linewidth=0, label=label)
        below = above
    peak = float(below.max(initial=0.0))
    top = budget if budget < _NEAR * peak else peak
    if top == budget:
        axes.axhline(budget, color="black", linestyle="--", label="budget")
    axes.set(xlim=(0, times[-1] or 1), ylim=(0, 1.08 * top or 1), xlabel="seconds")
    axes.set_title(f"Memory: at most {bytes_text(peak)} of {bytes_text(budget)}")
    axes.yaxis.set_major_formatter(lambda size, _: bytes_text(size))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
    return axes


def plot_groups(steps: Sequence[PlannedStep], axes: Sequence[Axes]) -> None:
    """Draw which groups of terms have the flops, and which take the time, beside each other.

    Parameters
    ----------
    steps : sequence of PlannedStep
        The terms.
    axes : sequence of two matplotlib.axes.Axes
        Where to draw the share of the flops and that of the time, with its rate.
    """
    colours = group_colours(steps)
    totals = {group: _total(steps, group) for group in colours}
    ordered = sorted(totals, key=lambda group: totals[group])
    for number, (ax, title) in enumerate(zip(axes, ("Floating-point operations", "Time"), strict=True)):
        values = np.array([totals[group][number] for group in ordered], float)
        shares = 100 * values / (values.sum() or 1.0)
        bars = ax.barh(ordered, shares, color=[colours[group] for group in ordered], height=0.7)
        ax.bar_label(bars, [_amount(*totals[group], number) for group in ordered], padding=4, fontsize=9.5)
        ax.set(xlim=(0, 1.5 * max(shares.max(initial=0.0), 1.0)), xlabel="% of an iteration", title=title)
        ax.grid(axis="x", color="0.92")
        ax.set_axisbelow(True)


def _total(steps: Sequence[PlannedStep], group: str) -> tuple[float, float]:
    """Flops and seconds of a group."""
    own = [step for step in steps if step.statement.group == group]
    return float(sum(step.flops for step in own)), sum(step.expected_seconds for step in own)


def _amount(flops: float, seconds: float, number: int) -> str:
    if number == 0:
        return f"{count_text(flops)}F" if flops else "0"
    return f"{seconds_text(seconds)}, {rate_text(flops, seconds)}" if flops else seconds_text(seconds)


def group_colours(steps: Sequence[PlannedStep]) -> dict[str, str]:
    """A colour for each group of terms, in the order in which groups begin."""
    groups = dict.fromkeys(step.statement.group for step in steps)
    return dict(zip(groups, cycle(COLOURS), strict=False))


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that belongs to no window; sizes in inches.

    Examples
    --------
    >>> from tilewise.reports.plots import new_figure, plot_convergence
    >>> figure = new_figure(6, 3)
    >>> plot_convergence([(1, -0.02, 0.3)], (1e-7, 1e-5), figure.add_subplot()).figure is figure
    True
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise _missing() from error
    return Figure(figsize=(width, height), layout="constrained")


def report_style() -> AbstractContextManager[None]:
    """Inside a ``with`` block, pictures look as those of reports do."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise _missing() from error
    return mpl.rc_context(dict(STYLE))


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
