"""Processes of their own for tests that end badly when they fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
PATIENCE = 900
"""Seconds after which a job on several ranks is taken to hang."""


def source_environment() -> dict[str, str]:
    """The environment of this process, with the package found where the tests find it."""
    paths = [str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def ranks(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with some arguments on so many ranks."""
    environment = source_environment()
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(TESTS)])
    if MPIEXEC is None:
        pytest.skip("there is no mpiexec")
    command = [MPIEXEC, "-n", str(count), sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
