"""Compiled loops: the only code that touches elements one by one."""

from __future__ import annotations
