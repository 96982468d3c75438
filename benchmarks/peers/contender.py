"""What a contender offers to the worker that times it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from problems import Problem


@dataclass(frozen=True, slots=True)
class Contender:
    """Operands in a contender's own format, ready to be multiplied.

    Working out which blocks meet and allocating C belong to the action; storing the operands does not.
    """

    actions: Mapping[str, Callable[[], Any]]
    """What can be timed, by name."""
    flops: int
    """Floating-point operations of one action."""
    checksum: Callable[[Any], float | None] = lambda _: None
    """Checksum of what an action returned; None where it returned no matrix."""
    context: AbstractContextManager[Any] = field(default_factory=nullcontext)
    """Entered before the first action and left after the last."""


class DoesNotApply(Exception):
    """A contender cannot take this problem; the text says why."""


class NotInstalled(Exception):
    """A contender needs something this machine lacks; the text names it."""


def equal_block_size(problem: Problem) -> int:
    """The size of equal square blocks, for contenders that take no others."""
    if problem.uniform is None:
        raise DoesNotApply("blocks of different sizes")
    return problem.uniform
