"""Running four-index transforms: schedules of `tilewise.plans.transform` on workers and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tilewise.engines.threads import hosting
from tilewise.engines.transform.run import Outcome, run_transform
from tilewise.engines.transform.sources import ArraySource, Source
from tilewise.engines.transform.team import Alone, Team
from tilewise.plans.transform import Problem
from tilewise.tensors import Engine

if TYPE_CHECKING:
    from tilewise.engines.mpi import MpiEngine

__all__ = ["ArraySource", "Outcome", "Source", "Team", "make_team", "run_transform"]


def make_team(problem: Problem, engine: Engine) -> Team:
    """Those who run a transform together under an engine."""
    if engine.ranks == 1:
        return Alone(problem, engine, hosting(engine).memory)
    from tilewise.engines.mpi.transform import RankTeam

    return RankTeam(problem, cast("MpiEngine", engine))
