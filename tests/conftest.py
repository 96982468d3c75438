"""Hypothesis profiles for all tests; `pytest --hypothesis-profile=NAME` picks one.  Fixtures of several modules."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tilewise.plans import inspector

# No deadline: the first example of a test may compile kernels. `print_blob` prints what replays a failure.
settings.register_profile("default", deadline=None, print_blob=True, max_examples=50)
# Continuous integration must give the same verdict twice for the same commit.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.register_profile(
    "slow",
    settings.get_profile("default"),
    max_examples=1000,
    suppress_health_check=[HealthCheck.too_slow],
)

settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="module")
def blas_for_few_cells() -> Iterator[None]:
    """Large blocks go to BLAS although there are few of them: tests need not be long to reach it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspector, "GEMM_CELLS", 0)
        yield


@pytest.fixture(scope="module")
def short_segments() -> Iterator[None]:
    """Segments of k so short that small products can be cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspector, "SEGMENT_DEPTH", 6)
        yield
