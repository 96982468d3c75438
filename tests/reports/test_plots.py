"""Pictures of patterns and of measured figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tilewise.reports import plot_pattern, plot_ranks
from tilewise.reports.plots import plot_series, save_plot
from tilewise.trace import RankTrace

SPACE = tw.Space([2, 3, 5], name="p")


@pytest.fixture
def figure() -> Any:
    return pytest.importorskip("matplotlib.figure").Figure()


def boxes(ax: Any) -> list[tuple[float, float, float, float]]:
    """Corner and size of every drawn block."""
    found = [path.get_extents().bounds for drawn in ax.collections for path in drawn.get_paths()]
    return sorted((round(x), round(y), round(w), round(h)) for x, y, w, h in found)


def test_blocks_are_drawn_to_scale(figure: Any) -> None:
    pattern = tw.Pattern((SPACE, SPACE), [(0, 1), (2, 2)], norms=[1.0, 1e-3])
    ax = plot_pattern(pattern, figure.add_subplot())
    assert boxes(ax) == [(2, 0, 3, 2), (5, 5, 5, 5)]
    assert ax.get_xlim() == (0, 10)
    assert ax.get_ylim() == (10, 0)
    np.testing.assert_allclose(np.asarray(ax.collections[0].get_array()), [0, -3])


def test_unknown_norms_are_grey_and_symmetry_is_expanded(figure: Any) -> None:
    pattern = tw.Pattern((SPACE, SPACE), [(0, 1)], symmetry=tw.Symmetry(((0, 1), -1)))
    ax = plot_pattern(pattern, figure.add_subplot())
    assert boxes(ax) == [(0, 2, 2, 3), (2, 0, 3, 2)]
    assert ax.collections[0].get_array() is None


@pytest.mark.parametrize("modes", [1, 3, 4])
def test_other_numbers_of_modes_are_drawn_as_a_matrix(figure: Any, modes: int) -> None:
    ax = plot_pattern(tw.random((SPACE,) * modes, density=0.5), figure.add_subplot())
    assert ax.get_xlim() == (0, 10 ** (modes - modes // 2))
    assert ax.get_ylim() == (10 ** (modes // 2), 0)


def test_empty_pattern_is_drawn(figure: Any) -> None:
    assert boxes(plot_pattern(tw.Pattern.empty((SPACE, SPACE)), figure.add_subplot())) == []
    assert boxes(plot_pattern(tw.Pattern.empty((tw.Space([]), SPACE)), figure.add_subplot())) == []


def test_what_has_no_blocks_is_refused() -> None:
    with pytest.raises(tw.InputError, match="scalar has no blocks"):
        plot_pattern(tw.Pattern.dense(()))
    with pytest.raises(tw.InputError, match="given a ndarray"):
        plot_pattern(np.zeros((2, 2)))  # type: ignore[arg-type]


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(tw.MissingPackageError, match=r"pip install tilewise\[plot\]"):
        plot_pattern(tw.Pattern.dense((SPACE, SPACE)))
    with pytest.raises(tw.MissingPackageError, match=r"pip install tilewise\[plot\]"):
        plot_series({}, xlabel="x", ylabel="y")


def legend(ax: Any) -> list[str]:
    """What the legend says."""
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_series_are_joined_in_the_order_of_x_and_named(figure: Any) -> None:
    series = {"cache": [(2, 9.0), (1, 3.0)], "blocked": [(1, 2.0)], "none": []}
    ax: Any = plot_series(series, xlabel="size, MB", ylabel="moved, MB", title="moved", ax=figure.add_subplot())
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[1, 3], [2, 9]], [[1, 2]], []]
    assert legend(ax) == list(series)
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("size, MB", "moved, MB", "moved")
    assert len({line.get_marker() for line in ax.lines}) == 3


@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
def test_axes_are_logarithmic_where_asked_and_else_begin_at_zero(figure: Any, log: Any) -> None:
    ax = plot_series({"rate": [(16, 2.0), (512, 3.0)]}, xlabel="x", ylabel="y", log=log, ax=figure.add_subplot())
    scales = {"x": (ax.get_xscale(), ax.get_xlim()), "y": (ax.get_yscale(), ax.get_ylim())}
    for name, (scale, (low, _)) in scales.items():
        assert scale == ("log" if name in log else "linear")
        assert (low == 0) == (name not in log)


@pytest.mark.parametrize(
    ("places", "ticks"),
    [
        ([32, 64, 128, 256], ["32", "64", "128", "256"]),
        ([1, 10, 10.5, 100], ["1", "10", "100"]),
        ([2**i for i in range(25)], [f"{4**i:g}" for i in range(13)]),
        ([7], ["7"]),
    ],
    ids=["few", "close", "many", "one"],
)
def test_logarithmic_axis_has_ticks_at_points_that_are_apart(
    figure: Any, places: list[float], ticks: list[str]
) -> None:
    points = [(x, 1.0) for x in places]
    ax = plot_series({"rate": points}, xlabel="x", ylabel="y", log="x", ax=figure.add_subplot())
    assert [text.get_text() for text in ax.get_xticklabels()] == ticks


def test_negative_points_stay_in_view_and_marks_are_drawn(figure: Any) -> None:
    points = [(-1.0, -2.0), (1.0, 2.0)]
    ax = plot_series({"a": points}, xlabel="x", ylabel="y", marks={"capacity": 3.0}, ax=figure.add_subplot())
    assert ax.get_xlim()[0] < -1
    assert ax.get_ylim()[0] < -2
    assert ax.lines[1].get_xdata() == [3.0, 3.0]
    assert legend(ax) == ["a", "capacity"]


def test_no_series_and_unknown_axes(figure: Any) -> None:
    assert plot_series({}, xlabel="x", ylabel="y", log="xy", ax=figure.add_subplot()).get_legend() is None
    with pytest.raises(tw.InputError, match="log='z' names no axes"):
        plot_series({}, xlabel="x", ylabel="y", log="z")  # type: ignore[arg-type]


def test_figures_are_saved_whole_in_both_formats(figure: Any, tmp_path: Path) -> None:
    part = figure.subfigures(1, 2)[0]
    ax = plot_series({"a": [(1, 2)]}, xlabel="x", ylabel="y", ax=part.add_subplot())
    written = save_plot(ax, tmp_path / "new" / "rate.of.queues")
    assert [path.name for path in written] == ["rate.of.queues.png", "rate.of.queues.svg"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in written[1].read_text(encoding="utf-8")


def test_every_rank_has_a_bar_of_what_it_did(figure: Any) -> None:
    pattern = tw.Pattern.dense((SPACE, SPACE))
    plan = tw.plan("ij,jk->ik", pattern, pattern)
    assert isinstance(plan, tw.Plan)
    with pytest.raises(tw.InputError, match="needs a plan that was run on several ranks"):
        plot_ranks(plan)
    first = RankTrace(400, 0, 0, 0, 0, 0, (("compute", 0.0, 0.5), ("wait", 0.5, 0.75), ("compute", 0.75, 1.0)))
    second = RankTrace(600, 0, 0, 0, 0, 0, (("fetch", 0.25, 0.5), ("compute", 0.5, 1.0)))
    plan.runs.append(tw.Trace("ij,jk->ik", 1.0, 0.0, 1000, 1, 8, 2, 0, "a loop", ranks=(first, second)))
    ax: Any = plot_ranks(plan, figure.add_subplot())
    drawn = {bars.get_label(): [bar.get_width() for bar in bars] for bars in ax.containers}
    assert drawn == {
        "computing": [0.75, 0.5],
        "adding sums": [0.0, 0.0],
        "waiting for blocks": [0.0, 0.25],
        "waiting for neighbours": [0.25, 0.0],
        "the rest": [0.0, 0.25],
    }
