"""Every numbered example runs; each ends in an assertion of its own."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("[0-9]*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_ends_in_an_assertion(path: Path) -> None:
    assert isinstance(ast.parse(path.read_text(encoding="utf-8")).body[-1], ast.Assert)


def test_examples_are_numbered_without_gaps() -> None:
    assert [int(path.stem[:2]) for path in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))
