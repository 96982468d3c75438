"""Pictures of patterns."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tilewise.reports import plot_pattern

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
