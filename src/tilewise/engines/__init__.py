"""Engines: who runs a plan, and on what."""

from __future__ import annotations
