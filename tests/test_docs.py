"""The Python code on the pages of the documentation runs, page by page, in the order it is read."""

from __future__ import annotations

import doctest
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt

import tilewise as tw
from tilewise.machine import Machine
from tilewise.plans import Plan

ROOT = Path(__file__).resolve().parent.parent


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    """First word after the fence: ``python`` runs as a script, ``pycon`` is compared with what it prints."""
    line: int
    """Line of the page on which the code starts, counted from one."""
    code: str


def code_blocks(page: Path) -> list[Block]:
    """Return the fenced Python blocks of a Markdown page, those inside lists and notes too."""
    blocks = []
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        words = token.info.split()
        if token.type == "fence" and token.map and words and words[0] in ("python", "pycon"):
            blocks.append(Block(words[0], token.map[0] + 2, token.content))
    return blocks


def run_script(page: Path, block: Block, namespace: dict[str, object]) -> None:
    """Run a block as if it stood alone in a file shaped like its page, so that line numbers agree."""
    try:
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
    except Exception as error:
        if isinstance(error, SyntaxError):
            line = error.lineno
        else:
            frames = traceback.extract_tb(error.__traceback__)
            line = next(frame.lineno for frame in reversed(frames) if frame.filename == str(page))
        pytest.fail(f"{page}:{line}: {''.join(traceback.format_exception(error))}", pytrace=False)


def run_session(page: Path, block: Block, namespace: dict[str, object]) -> None:
    """Run a block of ``>>>`` lines and compare what it prints."""
    report: list[str] = []
    session = doctest.DocTestParser().get_doctest(block.code, namespace, page.name, str(page), block.line - 1)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(verbose=False, optionflags=options)
    runner.run(session, out=report.append, clear_globs=False)
    namespace.update(session.globs)
    if report:
        pytest.fail("".join(report).replace(f'File "{page}", line ', f"{page}:"), pytrace=False)


def run_page(page: Path) -> None:
    """Run all Python blocks of a page in one namespace, top to bottom."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in code_blocks(page):
        run = run_script if block.language == "python" else run_session
        run(page, block, namespace)


def pages() -> list[Path]:
    """Return the README and the pages of docs/ that hold Python code."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if page.exists() and "_build" not in page.parts and code_blocks(page)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Temporary files of mean fields that nobody closes would be warnings, which are errors here.
    monkeypatch.setattr("pyscf.scf.hf.MUTE_CHKFILE", True)
    run_page(page)


def test_the_readme_and_the_first_page_show_what_explain_prints() -> None:
    """For two workers, default rates and common caches; what else the table says comes from the patterns alone."""
    readme = ROOT / "README.md"
    namespace: dict[str, object] = {}
    with tw.engine("threads", workers=2):
        run_script(readme, code_blocks(readme)[0], namespace)
    plan = namespace["plan"]
    assert isinstance(plan, Plan)
    shown = plan.on(replace(Machine.default(), cache_bytes=(1 << 15, 1 << 19, 1 << 25))).explain()
    assert (ROOT / "docs/pictures/explain.txt").read_text(encoding="utf-8").rstrip("\n") == shown
    assert f"```text\n{shown}\n```" in readme.read_text(encoding="utf-8")


def test_the_documentation_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-b", "html"]
    done = subprocess.run([*command, "-d", tmp_path / "trees", ROOT / "docs", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


GOOD_PAGE = """\
# Title

```python
x = 20
```

```sh
not python
```

* in a list

  ```pycon
  >>> x += 1
  >>> x
  21
  ```

```python
assert x == 21
```
"""


def write_page(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_blocks_share_a_namespace_in_reading_order(tmp_path: Path) -> None:
    page = write_page(tmp_path, GOOD_PAGE)
    assert [block.line for block in code_blocks(page)] == [4, 14, 20]
    run_page(page)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("x == 21", "x == 22", 20, "AssertionError"),
        ("x = 20", "x = ", 4, "SyntaxError"),
        ("  21\n", "  23\n", 15, "Got:\n    21"),
        (">>> x += 1", ">>> y += 1", 14, "NameError"),
    ],
)
def test_failure_names_page_and_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    page = write_page(tmp_path, GOOD_PAGE.replace(old, new))
    with pytest.raises(pytest.fail.Exception) as failure:
        run_page(page)
    assert f"{page}:{line}" in str(failure.value)
    assert message in str(failure.value)
