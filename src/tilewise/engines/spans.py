"""Stretches of time: what they cover, and what two kinds of them cover together."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[float, float]
"""Begin and end, in seconds."""


def covered(spans: Iterable[Span]) -> float:
    """Seconds that spans cover, those that several cover counted once."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


def shared(left: Iterable[Span], right: Iterable[Span]) -> float:
    """Seconds that both kinds cover."""
    first, second = list(left), list(right)
    return max(covered(first) + covered(second) - covered(first + second), 0.0)
