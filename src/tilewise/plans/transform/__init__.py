"""Plans of four-index transforms: schedules, what they hold, what they cost, and the one that fits."""

from __future__ import annotations

from tilewise.plans.transform.choice import Rates, TransformPlan, plan_transform
from tilewise.plans.transform.problem import Problem, TilePairs
from tilewise.plans.transform.report import Measured
from tilewise.plans.transform.schedules import SCHEDULES, Variant

__all__ = [
    "SCHEDULES",
    "Measured",
    "Problem",
    "Rates",
    "TilePairs",
    "TransformPlan",
    "Variant",
    "plan_transform",
]
