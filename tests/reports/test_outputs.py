"""Files that a command was asked to write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewise.errors import InputError
from tilewise.reports.outputs import check_file, check_report, write_json


def test_a_file_that_can_be_written_is_not_touched(tmp_path: Path) -> None:
    for path in (None, tmp_path / "new.json"):
        check_file(path, "--json")
    assert list(tmp_path.iterdir()) == []
    old = tmp_path / "old.json"
    old.write_text("kept")
    check_file(old, "--json")
    assert old.read_text() == "kept"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", r"is a folder\. The name of a file is expected\. Correct --out"),
        ("absent/file", r"absent is no folder\. A file in a folder that exists is expected\. Correct --out"),
        ("/proc/file", r"/proc/file cannot be written \(.*\)\. .* Correct --out"),
    ],
)
def test_others_are_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        check_file(tmp_path / name, "--out")


def test_the_folder_of_a_report_is_made(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    check_report(None, "--report")
    check_report(tmp_path / "new" / "report", "--report")
    assert (tmp_path / "new" / "report").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file cannot be written \(File exists\)\. .* Correct --report"):
        check_report(tmp_path / "file", "--report")


def test_figures_are_written_or_the_option_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "out.json", {"e_tot": -1.5}, "--json")
    assert json.loads((tmp_path / "out.json").read_text()) == {"e_tot": -1.5}
    with pytest.raises(InputError, match=r"cannot be written \(Is a directory\)\. .* Correct --json"):
        write_json(tmp_path, {}, "--json")
