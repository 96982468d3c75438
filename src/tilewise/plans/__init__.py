"""Plans: what a contraction will do, worked out from patterns alone."""

from __future__ import annotations

from tilewise.plans.inspector import inspect_product
from tilewise.plans.plan import Operand, Plan, Product, Sum
from tilewise.plans.program import Program, Step
from tilewise.plans.reduction import inspect_reduction
from tilewise.plans.steps import plan_steps

__all__ = [
    "Operand",
    "Plan",
    "Product",
    "Program",
    "Step",
    "Sum",
    "inspect_product",
    "inspect_reduction",
    "plan_steps",
]
