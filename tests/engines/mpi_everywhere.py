"""A plugin for pytest under ``mpiexec``: every test runs on the MPI engine, with all tensors spread over the ranks."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tilewise.engines.current import using
from tilewise.engines.mpi import MpiEngine
from tilewise.plans import sharing as module

PER_NODE = "TILEWISE_TEST_RANKS_PER_NODE"
"""Environment variable with how many ranks are taken for a node; all of them by default."""

# All ranks must draw the same examples.
settings.register_profile(
    "ranks",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=10,
    suppress_health_check=list(HealthCheck),
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the MPI engine the one that is in use."""
    settings.load_profile("ranks")
    per_node = os.environ.get(PER_NODE)
    module.LEAST_BYTES = module.LEAST_FLOPS = 0
    using(MpiEngine(workers=1, ranks_per_node=None if per_node is None else int(per_node))).__enter__()
