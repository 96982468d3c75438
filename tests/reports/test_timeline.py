"""What ranks did when, in a file for a viewer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tilewise as tw
from tilewise.trace import RankTrace

SPACE = tw.Space([3, 4])


def plan() -> tw.Plan:
    pattern = tw.Pattern.dense((SPACE, SPACE))
    made = tw.plan("ij,jk->ik", pattern, pattern)
    assert isinstance(made, tw.Plan)
    return made


def trace(*ranks: RankTrace) -> tw.Trace:
    return tw.Trace("ij,jk->ik", 1.0, 0.0, 686, 1, 8, 2, 0, "a loop", ranks=ranks)


def test_every_span_of_every_rank_is_an_event(tmp_path: Path) -> None:
    made = plan()
    first = RankTrace(400, 10, 20, 1, 0, 0, (("compute", 0.5, 0.75), ("wait", 0.75, 1.0)))
    second = RankTrace(286, 0, 0, 0, 0, 0, (("compute", 0.25, 1.0),))
    made.runs.append(trace(first, second))
    tw.save_timeline(made, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [(0, "compute", 5e5, 2.5e5), (0, "wait", 7.5e5, 2.5e5), (1, "compute", 2.5e5, 7.5e5)]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["rank 0", "rank 1"]


def test_a_run_on_one_rank_has_no_timeline(tmp_path: Path) -> None:
    made = plan()
    made.runs.append(trace())
    with pytest.raises(tw.InputError, match="was not run on several ranks"):
        tw.save_timeline(made, tmp_path / "t.json")
    assert not list(tmp_path.iterdir())
