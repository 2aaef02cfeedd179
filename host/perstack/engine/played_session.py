"""A skill that is not opened, because a recording answers for its tools."""

from __future__ import annotations

from perstack.ports.skill import ToolCall, ToolResult, Toolset


class PlayedSession:
    """Offers what the skill offered when the Job was recorded."""

    def __init__(self, toolset: Toolset) -> None:
        self._toolset = toolset

    async def tools(self) -> Toolset:
        return self._toolset

    async def call(self, call: ToolCall) -> ToolResult:
        """Its calls are answered before they come here."""
        return ToolResult.text(f"{call.tool_name} is not in the recording.", is_error=True)

    async def close(self) -> None:
        """Nothing was opened."""
