"""The Python code on the pages of the documentation runs, page by page, in the order it is read."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt

import tilewise as tw
from tilewise.chemistry import CCSD, amplitudes
from tilewise.chemistry.energy import prepare
from tilewise.cli import main
from tilewise.machine import Machine
from tilewise.plans import Plan
from tilewise.plans.explain import bytes_text

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
    (block,) = (each for each in code_blocks(readme) if "plan = tw.plan(" in each.code)
    with tw.engine("threads", workers=2):
        run_script(readme, block, namespace)
    plan = namespace["plan"]
    assert isinstance(plan, Plan)
    shown = plan.on(replace(Machine.default(), cache_bytes=(1 << 15, 1 << 19, 1 << 25))).explain()
    assert (ROOT / "docs/pictures/explain.txt").read_text(encoding="utf-8").rstrip("\n") == shown
    assert f"```text\n{shown}\n```" in readme.read_text(encoding="utf-8")


def text_blocks(page: Path) -> list[str]:
    """Return what a page shows as plain text."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    return [token.content for token in tokens if token.type == "fence" and token.info.split()[:1] == ["text"]]


@pytest.mark.parametrize("name", ["CCSD_EQUATIONS", "DIRECT_LADDER", "DRCCD_EQUATIONS"])
def test_the_equations_on_the_page_are_those_that_run(name: str) -> None:
    assert getattr(amplitudes, name).lstrip("\n") in text_blocks(ROOT / "docs/methods.md")


def energies(text: str) -> dict[str, float]:
    """Energies by name, of what the command prints."""
    return {name: float(value) for name, value in re.findall(r"^(E\S+) += +(\S+) Eh$", text, re.MULTILINE)}


def shown_energies(page: Path) -> str:
    """What a page says that ``make energy`` prints."""
    (shown,) = (text for text in text_blocks(page) if text.startswith("ethene.xyz: "))
    return shown


def test_pages_show_what_make_energy_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (options,) = re.findall(r"^ENERGY_ARGS \?= (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert main(["energy", *shlex.split(options), "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    for page in (ROOT / "README.md", ROOT / "docs/quickstart.md"):
        shown = shown_energies(page)
        assert energies(shown) == pytest.approx(energies(printed), abs=1e-8)
        assert set(shown.splitlines()) - set(printed.splitlines()) <= {
            line for line in shown.splitlines() if "Eh" in line
        }


BUDGETS = re.compile(r"^\| ([\d.]+ [MG]B) \| ([\d.]+ [MG]B) \| (.*) \|$", re.MULTILINE)
"""A budget, the peak that was planned for it, and what is on disk."""


def parts(explanation: str, *titles: str) -> list[str]:
    """Some of the tables of an explained plan: those that have no times in them."""
    return [part for part in explanation.split("\n\n") if part.startswith(titles)]


@pytest.mark.slow
def test_the_figures_of_benzene_are_those_of_its_plans() -> None:
    page = ROOT / "docs/choosing.md"
    with tw.engine("threads", workers=2):
        job = prepare(ROOT / "examples/benzene.xyz", method="ccsd", symmetry=False)
        method = job.method
        rows = BUDGETS.findall(page.read_text(encoding="utf-8"))
        assert len(rows) > 4
        for budget, peak, on_disk in rows:
            plan = CCSD(job.source.mean_field, memory=budget.replace(" ", ""), verbose=0).plan()
            assert bytes_text(plan.peak_bytes) == peak
            if "all integrals" not in on_disk:
                gone = [*(["DIIS"] if plan.diis_on_disk else []), *(f"`{name}`" for name in plan.elsewhere)]
                assert ", ".join(gone) == on_disk
        method.set(memory="400MB")
        (shown,) = (text for text in text_blocks(page) if text.startswith("CCSD: "))
        tables = parts(job.explanation, "Integrals", "Memory", "The peak")
        assert tables == parts(shown.rstrip("\n"), "Integrals", "Memory", "The peak")
        assert len(tables) == 3


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
