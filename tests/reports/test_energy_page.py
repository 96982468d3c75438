"""The report of an energy and its pictures."""

from __future__ import annotations

import base64
import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tilewise.errors import StorageError
from tilewise.expressions.equations import parse_equations
from tilewise.iteration import Iteration, PlannedStep
from tilewise.reports import energy_page
from tilewise.reports.energy_page import EnergyPage, versions, write_energy_page
from tilewise.reports.outputs import check_report
from tilewise.reports.plots import (
    COLOURS,
    group_colours,
    new_figure,
    plot_convergence,
    plot_groups,
    plot_memory,
    plot_terms,
)

pytest.importorskip("matplotlib")

SPACE = tw.Space([4, 5], name="p")
EQUATIONS = """
A[ij] = t[ik] v[kj]    @first
B[ij] = A[ik] v[kj]    @second
A[ij] += B[ij]         @first
"""
CYCLES = [(1, -0.02, 0.3), (2, 1e-3, 0.02), (3, 0.0, 1e-6)]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def steps() -> tuple[PlannedStep, ...]:
    """Terms of a small iteration that take 1, 4 and 2 seconds."""
    tensors = {name: tw.random((SPACE, SPACE)) for name in ("t", "v")}
    made = Iteration(parse_equations(EQUATIONS), dict.fromkeys("ijk", SPACE), tensors, ["A"], memory=10**9)
    for step, seconds in zip(made.steps, (1.0, 4.0, 2.0), strict=True):
        step.seconds.extend([seconds, 100 * seconds, seconds])  # one of them was disturbed
    return made.steps


def page(**changes: Any) -> EnergyPage:
    given: dict[str, Any] = {
        "title": "CCSD of <water>",
        "command": 'tilewise energy "a & b.xyz"',
        "verdict": "converged in 3 cycles",
        "good": True,
        "energies": [("E(HF)", -75.5), ("E_corr(CCSD)", -0.25)],
        "facts": [("computed", "CCSD/sto-3g")],
    }
    return EnergyPage(**(given | changes))


def pictures(text: str) -> list[tuple[str, bytes]]:
    """Kind and content of the pictures in a page."""
    found = re.findall(r'src="data:image/([a-z+]+);base64,([^"]+)"', text)
    return [(kind, base64.b64decode(content)) for kind, content in found]


def test_the_page_stands_alone(tmp_path: Path, steps: tuple[PlannedStep, ...]) -> None:
    pattern = tw.Pattern((SPACE, SPACE), [(0, 1), (1, 1)], norms=[1.0, 1e-3])
    made = page(cycles=CYCLES, steps=steps, budget=10_000, held={"DIIS": 300}, patterns={"t2[ij]": pattern})
    file = write_energy_page(tmp_path / "new" / "folder", made)
    text = file.read_text()
    names = ["convergence", "groups", "timeline", "memory", "sparsity-1"]
    assert [kind for kind, _ in pictures(text)] == ["svg+xml"] * len(names)
    for name, (_, content) in zip(names, pictures(text), strict=True):
        assert (file.parent / f"{name}.svg").read_bytes() == content
        assert (file.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    without = re.sub(r'src="data:[^"]+"', "", text)
    assert not re.search(r"https?://|src=|<link|@import|url\(", without)
    assert text.count("<figure>") == text.count('alt="') == len(names)


def test_what_is_shown_is_escaped_and_complete(tmp_path: Path, steps: tuple[PlannedStep, ...]) -> None:
    made = page(
        steps=steps, budget=10_000, explanation="<table id=plan></table>", versions={"numpy": "2.0"}, cycles=CYCLES
    )
    text = write_energy_page(tmp_path, made).read_text()
    assert "CCSD of &lt;water&gt;" in text
    assert "<span>&quot;a</span> <span>&amp;</span>" in text
    assert "<b>-75.5000000000</b>" in text
    assert "<table id=plan></table>" in text
    assert "numpy 2.0" in text
    assert 'class="badge"' in text
    for step in steps:
        assert str(step.statement) in text
    assert text.index("B[ij] = A[ik] v[kj]") < text.index("A[ij] = t[ik] v[kj]")  # the longest first
    assert "57 %" in text  # 4 of 7 seconds


def test_a_method_without_iterations_has_fewer_pictures(tmp_path: Path) -> None:
    text = write_energy_page(tmp_path, page()).read_text()
    assert pictures(text) == []
    assert "Convergence" not in text
    assert list(tmp_path.iterdir()) == [tmp_path / "index.html"]


def test_no_convergence_is_seen(tmp_path: Path) -> None:
    made = page(good=False, verdict="NOT CONVERGED in 3 cycles", advice="Raise max_cycle to 7.")
    text = write_energy_page(tmp_path, made).read_text()
    assert '<span class="badge bad">NOT CONVERGED in 3 cycles</span>' in text
    assert "Raise max_cycle to 7." in text


def test_large_drawings_are_put_in_as_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy_page, "MOST_SVG", 100)
    text = write_energy_page(tmp_path, page(cycles=CYCLES)).read_text()
    ((kind, content),) = pictures(text)
    assert kind == "png"
    assert content == (tmp_path / "convergence.png").read_bytes()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"The report cannot be written to .*file.*Name another\."):
        write_energy_page(tmp_path / "file", page())


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["full", "stopped"])
def test_a_report_that_is_cut_off_says_so_and_is_written_anew(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "index.html"
    with monkeypatch.context() as patch:
        cut_off(patch, error)
        with pytest.raises((StorageError, KeyboardInterrupt)):
            write_energy_page(tmp_path, page(cycles=CYCLES))
    text = file.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["convergence.png", "index.html"]
    assert '<span class="badge bad">not finished</span>' in text
    assert "This report is not finished: its pictures are being drawn, or that was cut off." in text
    assert "tilewise</span> <span>energy</span>" in text
    check_report(tmp_path, "--report")
    assert write_energy_page(tmp_path, page(cycles=CYCLES)) == file
    assert "not finished" not in file.read_text()


def cut_off(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Have the first picture of a report end half-written."""

    def draw(axes: object, path: Path) -> None:
        path.with_suffix(".png").write_bytes(b"\x89PNG")
        raise error

    patch.setattr(energy_page, "save_plot", draw)


def test_an_earlier_report_stays_until_the_new_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = write_energy_page(tmp_path, page()).read_text()
    cut_off(monkeypatch, FULL)
    with pytest.raises(StorageError, match="No space left on device"):
        write_energy_page(tmp_path, page(title="another", cycles=CYCLES))
    assert (tmp_path / "index.html").read_text() == before


def test_a_disk_that_was_full_before_gets_no_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise FULL

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=r"No space left on device\..* Expected a folder with room"):
        write_energy_page(tmp_path, page(cycles=CYCLES))
    assert list(tmp_path.iterdir()) == []


def test_versions_are_those_installed() -> None:
    assert versions()["numpy"] == np.__version__
    assert {"Python", "tilewise", "matplotlib"} <= set(versions())


# Pictures


def test_convergence_leaves_zeros_out() -> None:
    axes = plot_convergence(CYCLES, (1e-7, 1e-5), new_figure(4, 3).add_subplot())
    change, limit, norm, other = (np.asarray(line.get_ydata(), float) for line in axes.lines)
    np.testing.assert_allclose(change, [0.02, 1e-3, np.nan])
    np.testing.assert_allclose(norm, [0.3, 0.02, 1e-6])
    assert (limit[0], other[0]) == (1e-7, 1e-5)


def test_terms_follow_each_other_in_rows_of_groups(steps: tuple[PlannedStep, ...]) -> None:
    axes = plot_terms(steps, new_figure(6, 3).add_subplot())
    rows = [[path.get_extents().bounds for path in drawn.get_paths()] for drawn in axes.collections]
    assert [[(x, round(width, 9)) for x, _, width, _ in row] for row in rows] == [[(0, 1), (5, 2)], [(1, 4)]]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["first", "second"]
    assert axes.get_xlim() == (0, 7)
    assert {text.get_text() for text in axes.texts} == {"A", "B"}


def test_memory_is_stacked_below_its_budget(steps: tuple[PlannedStep, ...]) -> None:
    peak = max(step.peak_bytes for step in steps) + 500
    axes = plot_memory(steps, budget=2 * peak, others={"DIIS": 500}, ax=new_figure(6, 3).add_subplot())
    tops = [float(drawn.get_paths()[0].get_extents().ymax) for drawn in axes.collections]
    assert tops == [500, 500 + max(step.held_bytes for step in steps), peak]
    assert [np.asarray(line.get_ydata(), float)[0] for line in axes.lines] == [2 * peak]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["budget", "buffers", "tensors", "DIIS"]


def test_a_budget_far_away_is_not_drawn(steps: tuple[PlannedStep, ...]) -> None:
    axes = plot_memory(steps, budget=10**12, ax=new_figure(6, 3).add_subplot())
    assert list(axes.lines) == []
    assert "of 1 TB" in axes.get_title()
    assert axes.get_ylim()[1] < 10**6


def test_groups_show_flops_and_time(steps: tuple[PlannedStep, ...]) -> None:
    figure = new_figure(6, 3)
    flops, times = figure.subplots(1, 2, sharey=True)
    plot_groups(steps, (flops, times))
    named = [tick.get_text() for tick in flops.get_yticklabels()]
    shares = dict(zip(named, [bar.get_width() for bar in times.patches], strict=True))
    assert shares == pytest.approx({"first": 100 * 3 / 7, "second": 100 * 4 / 7})
    assert [bar.get_width() for bar in flops.patches] == pytest.approx([50, 50])
    labels = [text.get_text() for text in times.texts]
    assert sorted(labels) == sorted([f"3 s, {2 * 9**3 / 3 * 1e-9:.3g} GF/s", f"4 s, {2 * 9**3 / 4 * 1e-9:.3g} GF/s"])


def test_times_are_medians_and_projected_before_the_first_run(steps: tuple[PlannedStep, ...]) -> None:
    assert [step.expected_seconds for step in steps] == [1.0, 4.0, 2.0]
    steps[0].seconds.clear()
    assert steps[0].plan is not None
    assert steps[0].expected_seconds == steps[0].plan.seconds
    assert group_colours(steps) == {"first": COLOURS[0], "second": COLOURS[1]}
