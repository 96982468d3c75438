"""What the suites under ``mpiexec`` are asked to do, from the environment."""

from __future__ import annotations

import os

import pytest

WORKERS = int(os.environ.get("TILEWISE_TEST_WORKERS", "1"))
QUICK = bool(os.environ.get("TILEWISE_TEST_QUICK"))
NODES = [
    pytest.param(None if size == "all" else int(size), id=f"nodes-of-{size}")
    for size in os.environ.get("TILEWISE_TEST_NODES", "all 1 2").split()
]
