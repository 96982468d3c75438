"""Files for the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def hydrogen(tmp_path: Path) -> Path:
    file = tmp_path / "h2.xyz"
    file.write_text("2\nbond of 0.74 Angstrom\nH 0 0 0\nH 0 0 0.74\n")
    return file


@pytest.fixture(autouse=True)
def json_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWISE_TEST_JSON", str(tmp_path / "out.json"))
    return tmp_path / "out.json"
