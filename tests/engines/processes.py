"""Processes of their own for tests that end badly when they fail."""

from __future__ import annotations

import os
from pathlib import Path


def source_environment() -> dict[str, str]:
    """The environment of this process, with the package found where the tests find it."""
    paths = [str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
