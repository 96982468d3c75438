"""Devices with memory of their own, driven through the array API."""

from __future__ import annotations

from tilewise.engines.device.engine import DeviceEngine

__all__ = ["DeviceEngine"]
