"""Results as JSON text, compact: they are paid for in every later request."""

from __future__ import annotations

import json

from perstack.core.base import JsonObject
from perstack.ports.skill import ToolResult

compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""A value as JSON without spaces."""


def answer(value: JsonObject, *, is_error: bool = False) -> ToolResult:
    """A result that is one JSON object."""
    return ToolResult.text(compact(value), is_error=is_error)
