"""A prompt for each Expert, which editors show as a command."""

from __future__ import annotations

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    GetPromptRequestParams,
    GetPromptResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
)

from perstack.frontends.mcp_server.state import ServerState


def listed(state: ServerState) -> list[Prompt]:
    """One for each Expert, of the name that its tool has."""
    argument = PromptArgument(name="query", description="what the Expert is to do", required=True)
    return [
        Prompt(
            name=name,
            title=expert.key,
            description=expert.description or f"Asks the Expert {expert.key}.",
            arguments=[argument],
        )
        for name, expert in state.definitions.experts.items()
    ]


def filled(state: ServerState, params: GetPromptRequestParams) -> GetPromptResult:
    """What the editor's model is told. Raises MCPError for a prompt that is not there, or has no query."""
    expert = state.definitions.experts.get(params.name)
    if expert is None:
        raise MCPError(INVALID_PARAMS, f"Unknown prompt {params.name!r}")
    query = (params.arguments or {}).get("query", "").strip()
    if not query:
        raise MCPError(INVALID_PARAMS, f"Prompt {params.name!r} needs a query")
    text = (
        f"Call the tool {params.name} with this query, word for word, and give me its result. If it asks something, ask"
        f" me.\n\n{query}"
    )
    return GetPromptResult(
        description=expert.description or None,
        messages=[PromptMessage(role="user", content=TextContent(text=text))],
    )
