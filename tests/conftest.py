"""Hypothesis profiles for all tests; `pytest --hypothesis-profile=NAME` picks one."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

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
