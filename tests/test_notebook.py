"""The notebook of the documentation: its cells run in order, and print the energies that it was saved with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "coupled_cluster.ipynb"
ENERGY = re.compile(r"-?\d+\.\d{8,}\b(?!e)")
"""Numbers with so many digits are energies in hartree, and no times."""


def code_cells() -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def outputs() -> list[dict[str, Any]]:
    return [output for cell in code_cells() for output in cell["outputs"]]


def test_cells_run_and_print_the_saved_energies(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in code_cells()), encoding="utf-8")
    # A process of its own: PySCF prints to the standard output that there was when it was imported.
    command, backend = [sys.executable, str(script)], {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run(command, cwd=tmp_path, env=backend, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = [float(number) for number in ENERGY.findall(done.stdout)]
    saved = [float(number) for output in outputs() for number in ENERGY.findall("".join(output.get("text", [])))]
    assert len(saved) > 10
    assert printed == pytest.approx(saved, abs=1e-7)


def test_it_was_saved_after_a_run_from_top_to_bottom() -> None:
    assert [cell["execution_count"] for cell in code_cells()] == list(range(1, len(code_cells()) + 1))
    assert all(output["output_type"] != "error" for output in outputs())
    assert sum("image/png" in output.get("data", {}) for output in outputs()) == 1
    assert sum("text/html" in output.get("data", {}) for output in outputs()) == 1
