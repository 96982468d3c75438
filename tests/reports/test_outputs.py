"""Files that a command was asked to write."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tilewise.errors import InputError, StorageError
from tilewise.reports import write_page
from tilewise.reports.energy_page import EnergyPage, write_energy_page
from tilewise.reports.outputs import check_apart, check_file, check_report, write_json

PAGE = EnergyPage("MP2 of H2", "tilewise energy h2.xyz", "done", True, [("E(HF)", -1.1)], [])


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
        ("/dev/null", r"/dev/null is a device or a pipe\. The name of a file is expected\. Correct --out"),
        ("x" * 300, r"x cannot be written \(File name too long\)\. .* Correct --out"),
    ],
)
def test_others_are_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        check_file(tmp_path / name, "--out")


def test_a_link_is_looked_at_where_it_leads(tmp_path: Path) -> None:
    for name, target in (("away", tmp_path / "absent" / "file"), ("loop", tmp_path / "loop")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(InputError, match=r"Correct --out"):
            check_file(tmp_path / name, "--out")
    (tmp_path / "near").symlink_to(tmp_path / "new")
    check_file(tmp_path / "near", "--out")


def test_a_file_that_only_another_user_may_replace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    theirs = folder / "out.json"
    theirs.write_text("theirs")
    check_file(theirs, "--json")
    monkeypatch.setattr(os, "geteuid", lambda: theirs.stat().st_uid + 1)
    with pytest.raises(InputError, match=r"out\.json cannot be written \(it is of another user\)\. .* Correct --json"):
        check_file(theirs, "--json")
    check_file(folder / "new.json", "--json")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"INPUT": "a", "--json": "b/../a"}, r"a is the file of INPUT, and --json would be written over it"),
        ({"INPUT": "a", "--json": "second"}, r"second is the file of INPUT, and --json would be written over it"),
        (
            {"--checkpoint": "a", "--json": "a.previous"},
            r"a\.previous of --json has the name of a file .* --checkpoint a\.",
        ),
        (
            {"--checkpoint": "a", "--report": "a.000001.t2.h5/y"},
            r"t2\.h5/y of --report has the name of a file that is kept",
        ),
        ({"--checkpoint": "link", "--json": "b/a.orbitals"}, r"b/a\.orbitals of --json has the name of a file that is"),
        ({"--report": "b", "--json": "b/index.html"}, r"b/index\.html of --json is a file of --report"),
        ({"--report": "b", "--checkpoint": "b/memory.svg"}, r"b/memory\.svg of --checkpoint is a file of --report"),
        ({"--report": "a/b/c", "--json": "a"}, r"a/b/c of --report lies below a, the file of --json"),
    ],
)
def test_files_are_apart(files: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("")
    Path("second").hardlink_to("a")
    Path("b").mkdir()
    Path("link").symlink_to("b/a")
    with pytest.raises(InputError, match=message):
        check_apart({name: Path(path) for name, path in files.items()})


def test_names_that_are_alike_are_no_clash(tmp_path: Path) -> None:
    names = {"INPUT": "run.xyz", "--checkpoint": "run.h5", "--json": "run.json", "--report": "run"}
    check_apart({name: tmp_path / path for name, path in names.items()})
    names = {"INPUT": "run.xyz", "--checkpoint": "run", "--json": "run.json", "--report": "run.report"}
    check_apart({name: tmp_path / path for name, path in names.items()})
    names = {"INPUT": "out/a.xyz", "--checkpoint": "out/a.h5", "--json": "b/a.h5.json", "--report": "out"}
    check_apart({name: tmp_path / path for name, path in names.items()} | {"--out": None})


def test_the_folder_of_a_report_is_not_made_yet(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    check_report(None, "--report")
    check_report(tmp_path / "new" / "report", "--report")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file", r"file is no folder\. One, or a name for a new one, is expected\. Correct --report"),
        ("file/new/report", r"file is no folder\. One, or a name for a new one, is expected\. Correct --report"),
        ("link", r"link is no folder\. One, or a name for a new one, is expected\. Correct --report"),
        ("/proc/new/report", r"/proc/new/report cannot be written \(.*\)\. .* Correct --report"),
        ("x" * 300, r"x cannot be written \(File name too long\)\. .* Correct --report"),
    ],
)
def test_a_report_without_a_place_is_refused(name: str, message: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    with pytest.raises(InputError, match=message):
        check_report(tmp_path / name, "--report")


def test_a_report_is_written_over_an_earlier_one_only(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_energy_page(tmp_path, PAGE)
    check_report(tmp_path, "--report")
    write_page(tmp_path / "index.html", "Plans")
    with pytest.raises(
        InputError,
        match=r"index\.html is not a report of tilewise\. Expected a folder without it, or with an earlier report\. "
        r"Name another folder with --report\.",
    ):
        check_report(tmp_path, "--report")


@pytest.mark.parametrize("name", ["memory.png", "convergence.svg", "sparsity-2.png"])
def test_a_report_is_not_written_over_pictures_of_others(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    own = tmp_path / "own"
    own.mkdir()
    (own / f"my-{name}").touch()
    check_report(own, "--report")
    (own / name).touch()
    with pytest.raises(InputError, match=rf"{name} has the name of a picture of a report\..* folder with --report"):
        check_report(own, "--report")
    write_energy_page(own, PAGE)
    check_report(own, "--report")


def test_figures_are_written_or_the_option_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "out.json", {"e_tot": -1.5}, "--json")
    assert json.loads((tmp_path / "out.json").read_text()) == {"e_tot": -1.5}
    with pytest.raises(StorageError, match=r"is a folder\. Expected the name of a file\. .* --json"):
        write_json(tmp_path, {}, "--json")


def test_what_was_there_is_replaced_not_written_into(tmp_path: Path) -> None:
    """So nothing is lost if the disk is full, and a file that must not be written to is no hindrance."""
    old, kept = tmp_path / "index.html", tmp_path / "kept"
    for write in (lambda: write_json(old, {}, "--json"), lambda: write_energy_page(tmp_path, PAGE)):
        kept.unlink(missing_ok=True)
        old.write_text("before")
        old.chmod(0o444)
        kept.hardlink_to(old)
        write()
        assert kept.read_text() == "before"
        assert old.read_text() != "before"


def test_a_picture_is_not_written_through_a_link(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    mine, folder = tmp_path / "mine.svg", tmp_path / "report"
    mine.write_text("mine")
    folder.mkdir()
    (folder / "convergence.svg").symlink_to(mine)
    write_energy_page(folder, replace(PAGE, cycles=[(1, -0.02, 0.3), (2, 1e-3, 0.02)]))
    assert mine.read_text() == "mine"
    assert "<svg" in (folder / "convergence.svg").read_text()
