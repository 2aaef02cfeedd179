"""What a server says of its tools' results, and whether it keeps to that.

The SDK never sees these schemas: it would check against them on the event loop, for as long as that takes.
"""

from __future__ import annotations

from typing import cast

from mcp_types import CallToolResult
from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.checking import Checker
from perstack.ports.checking import violation_of


class OutputSchemas:
    """Of the tools that one server lists."""

    def __init__(self) -> None:
        self._checkers: dict[str, Checker] = {}

    def take(self, tool: JsonObject) -> JsonObject:
        """The tool as listed, without its output schema, which is kept here."""
        name, schema = str(tool.get("name")), tool.get("outputSchema")
        if isinstance(schema, dict):
            self._checkers[name] = Checker(schema)
        else:
            self._checkers.pop(name, None)
        return {key: value for key, value in tool.items() if key != "outputSchema"}

    async def problem(self, name: str, result: CallToolResult) -> str | None:
        """Why a result is not what its tool promises, for the model; None if it is."""
        checker = self._checkers.get(name)
        if checker is None or result.is_error:
            return None
        if "structured_content" not in result.model_fields_set:
            return "the tool has an output schema, and the server's answer has no structured content"
        found = await violation_of(checker, cast("JsonValue", result.structured_content))
        if found is None:
            return None
        place = f" at {found.place}" if found.place else ""
        return f"the server's structured output breaks the tool's own output schema{place}: {found.message[:200]}"
