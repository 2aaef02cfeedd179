"""Experts on the model of the editor that runs the host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from editor import argv, structure
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    SamplingCapability,
    SamplingToolsCapability,
    TextContent,
    ToolResultContent,
    ToolUseContent,
)
from terminal import SECONDS, TEAM, Terminal

Model = Callable[[CreateMessageRequestParams], CreateMessageResult | CreateMessageResultWithTools]
ALL = SamplingCapability(tools=SamplingToolsCapability())


def ask(terminal: Terminal, model: Model | None, *, era: str = "legacy", capability: SamplingCapability = ALL) -> dict:
    """What comes of a call of the Expert `helper` by an editor with this model."""
    terminal.project(TEAM)

    async def sample(context: object, params: CreateMessageRequestParams):
        assert model is not None
        return model(params)

    async def call() -> dict:
        command, *rest = argv("--provider", "mcp-sampling")
        server = StdioServerParameters(command=command, args=rest, cwd=terminal.workspace, env=terminal.env)
        offered = {"sampling_callback": sample, "sampling_capabilities": capability} if model else {}
        async with asyncio.timeout(SECONDS), Client(server, mode=era, **offered) as client:
            return structure(await client.call_tool("helper", {"query": "Say hello"}))

    return asyncio.run(call())


def test_an_expert_works_on_the_editors_model_with_tools(terminal: Terminal) -> None:
    seen: list[CreateMessageRequestParams] = []

    def model(params: CreateMessageRequestParams) -> CreateMessageResultWithTools:
        seen.append(params)
        if len(seen) == 1:
            use = ToolUseContent(id="u1", name="think", input={"thought": "hm"})
            return CreateMessageResultWithTools(role="assistant", content=[use], model="m", stop_reason="toolUse")
        return CreateMessageResultWithTools(
            role="assistant", content=[TextContent(text="Hello.")], model="m", stop_reason="endTurn"
        )

    job = ask(terminal, model)
    assert (job["status"], job["text"]) == ("completed", "Hello.")
    assert "readTextFile" in {tool.name for tool in seen[0].tools or ()}
    assert seen[0].system_prompt
    roles = [message.role for message in seen[1].messages]
    assert roles == ["user", "assistant", "user"]
    assert isinstance(seen[1].messages[2].content_as_list[0], ToolResultContent)


def test_a_reply_that_was_cut_is_told_as_such(terminal: Terminal) -> None:
    def model(params: CreateMessageRequestParams) -> CreateMessageResultWithTools:
        return CreateMessageResultWithTools(
            role="assistant", content=[TextContent(text="Hel")], model="m", stop_reason="maxTokens"
        )

    job = ask(terminal, model)
    assert job["status"] == "stoppedByError"
    assert "maxTokens" in job["error"]


def test_without_sampling_the_error_says_what_is_missing(terminal: Terminal) -> None:
    def never(params: CreateMessageRequestParams) -> CreateMessageResult:
        raise AssertionError(params)

    assert "the client offers no sampling: choose another provider" in ask(terminal, None)["error"]
    assert "takes no tools" in ask(terminal, never, capability=SamplingCapability())["error"]
    assert "a revision without sampling" in ask(terminal, never, era="auto")["error"]


def test_from_the_command_line_there_is_no_such_model(terminal: Terminal) -> None:
    terminal.project(TEAM)
    shown = terminal.call("run", "helper", "Say hello", "--provider", "mcp-sampling")
    assert shown.code == 2
    assert "only while that runs `perstack mcp`" in shown.err
