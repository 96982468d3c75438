"""Einsum strings: parsed, checked against spaces, lowered to pairwise contractions, and put in order."""

from __future__ import annotations

from tilewise.expressions.contraction import Contraction, Pair, Reduction, lower_pair, lower_single
from tilewise.expressions.order import PairStep, find_order
from tilewise.expressions.parse import Expression, check_spaces, check_text, parse_expression

__all__ = [
    "Contraction",
    "Expression",
    "Pair",
    "PairStep",
    "Reduction",
    "check_spaces",
    "check_text",
    "find_order",
    "lower_pair",
    "lower_single",
    "parse_expression",
]
