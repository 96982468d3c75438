"""What the tests of ``tilewise energy`` run, and what they look at."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from chemistry.molecules import mean_field
from tilewise.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WATER = EXAMPLES / "water.xyz"
TIGHT = ["--conv-tol", "1e-10", "--conv-tol-normt", "1e-8"]


def atoms() -> str:
    return "; ".join(WATER.read_text().splitlines()[2:])


def closed(mf: Any) -> Any:
    """A mean field without PySCF's temporary file: the garbage collector would complain."""
    mf._chkfile.close()
    return mf


def water() -> Any:
    return closed(mean_field(atoms(), "6-31g"))


def run(*arguments: object, code: int = 0, file: Path | None = None) -> dict[str, Any]:
    """The figures that a command writes."""
    target = Path(os.environ["TILEWISE_TEST_JSON"]) if file is None else file
    assert main(["energy", *map(str, arguments), "--json", str(target), "--workers", "1"]) == code
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def least_memory(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The smallest budget in bytes, as the refusal of one that is too small names it."""
    assert main(["energy", *map(str, arguments), "--memory", "1kB", "--workers", "1"]) == 2
    named = re.search(r"Give --memory=(\d+) or more", capsys.readouterr().err)
    assert named is not None
    return named[1]


def check_line(capsys: pytest.CaptureFixture[str], message: str, *, alone: bool = False) -> str:
    """The last line on the standard error, which says what is wrong; nothing else is there that early."""
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert message in lines[-1]
    assert lines[-1].startswith("tilewise: ")
    assert "Traceback" not in err
    assert len(lines) == 1 or not alone
    return lines[-1]
