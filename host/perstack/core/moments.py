"""Moments, in milliseconds since 1970."""

from __future__ import annotations

LATEST = 253_402_000_000_000
"""The last that can be shown everywhere: days before the year 10000."""
