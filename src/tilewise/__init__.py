"""Tilewise: contraction of irregularly tiled, block-sparse tensors, planned before it is run."""

from __future__ import annotations

from tilewise.contract import compare_balancers, dot, einsum, execute, plan, plan_chain
from tilewise.engines.base import engine
from tilewise.errors import (
    GeneratorError,
    InputError,
    MemoryBudgetError,
    MissingPackageError,
    StorageError,
    TilewiseError,
)
from tilewise.factories import from_blocks, from_dense, from_function, load, random, redistribute, zeros
from tilewise.machine import Machine
from tilewise.patterns import Pattern, Symmetry
from tilewise.plans import Plan, Program
from tilewise.reports.timeline import save_timeline
from tilewise.spaces import Space
from tilewise.tensors import BlockTensor
from tilewise.tensors.tilings import retile
from tilewise.trace import Trace

__all__ = [
    "BlockTensor",
    "GeneratorError",
    "InputError",
    "Machine",
    "MemoryBudgetError",
    "MissingPackageError",
    "Pattern",
    "Plan",
    "Program",
    "Space",
    "StorageError",
    "Symmetry",
    "TilewiseError",
    "Trace",
    "compare_balancers",
    "dot",
    "einsum",
    "engine",
    "execute",
    "from_blocks",
    "from_dense",
    "from_function",
    "load",
    "plan",
    "plan_chain",
    "random",
    "redistribute",
    "retile",
    "save_timeline",
    "zeros",
]
