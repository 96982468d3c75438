"""What work costs on a machine, and what no order of it can go below; plain counts in, seconds and bytes out."""

from __future__ import annotations

from tilewise.costs.bounds import compulsory_bytes, fused_bound_bytes, movement_bound_bytes, product_bound_words
from tilewise.costs.products import product_seconds
from tilewise.costs.transfers import blocked_product_words, copy_seconds, permute_seconds

__all__ = [
    "blocked_product_words",
    "compulsory_bytes",
    "copy_seconds",
    "fused_bound_bytes",
    "movement_bound_bytes",
    "permute_seconds",
    "product_bound_words",
    "product_seconds",
]
