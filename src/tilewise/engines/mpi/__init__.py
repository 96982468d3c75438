"""Runs on several ranks under ``mpiexec``: every rank runs the same script, and they share the work of products."""

from __future__ import annotations

from tilewise.engines.mpi.engine import MpiEngine

__all__ = ["MpiEngine"]
