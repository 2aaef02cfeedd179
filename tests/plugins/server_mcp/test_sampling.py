"""Experts on the model of the editor that runs the host."""

from __future__ import annotations

import asyncio
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import tomli_w
from editor import argv, structure
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ImageContent,
    SamplingCapability,
    SamplingToolsCapability,
    TextContent,
    ToolResultContent,
    ToolUseContent,
)
from terminal import SECONDS, TEAM, Terminal

Model = Callable[[CreateMessageRequestParams], CreateMessageResult | CreateMessageResultWithTools]
ASKING_SERVER = Path(__file__).parents[2] / "plugins" / "mcp" / "servers" / "asking.py"
ALL = SamplingCapability(tools=SamplingToolsCapability())


def ask(
    terminal: Terminal,
    model: Model | None,
    *,
    era: str = "legacy",
    capability: SamplingCapability = ALL,
    toml: str = TEAM,
    **arguments: object,
) -> dict:
    """Return the result of a call of the Expert `helper` by an editor with this model."""
    terminal.project(toml)

    async def sample(context: object, params: CreateMessageRequestParams):
        assert model is not None
        return model(params)

    async def call() -> dict:
        command, *rest = argv("--provider", "mcp-sampling")
        server = StdioServerParameters(command=command, args=rest, cwd=terminal.workspace, env=terminal.env)
        offered = {"sampling_callback": sample, "sampling_capabilities": capability} if model else {}
        async with asyncio.timeout(SECONDS), Client(server, mode=era, **offered) as client:
            return structure(await client.call_tool("helper", {"query": "Say hello", **arguments}))

    return asyncio.run(call())


def _uses(name: str, **args: str) -> CreateMessageResultWithTools:
    use = ToolUseContent(id=name, name=name, input=dict(args))
    return CreateMessageResultWithTools(role="assistant", content=[use], model="m", stop_reason="toolUse")


def _says(text: str) -> CreateMessageResultWithTools:
    return CreateMessageResultWithTools(
        role="assistant", content=[TextContent(text=text)], model="m", stop_reason="endTurn"
    )


def test_an_expert_works_on_the_editors_model_with_tools(terminal: Terminal) -> None:
    seen: list[CreateMessageRequestParams] = []

    def model(params: CreateMessageRequestParams) -> CreateMessageResultWithTools:
        seen.append(params)
        return _uses("think", thought="hm") if len(seen) == 1 else _says("Hello.")

    job = ask(terminal, model)
    assert (job["status"], job["text"]) == ("completed", "Hello.")
    assert "readTextFile" in {tool.name for tool in seen[0].tools or ()}
    assert seen[0].system_prompt
    roles = [message.role for message in seen[1].messages]
    assert roles == ["user", "assistant", "user"]
    assert isinstance(seen[1].messages[2].content_as_list[0], ToolResultContent)


def test_an_image_that_a_tool_reads_is_shown_to_the_editors_model_and_a_pdf_is_told_of(terminal: Terminal) -> None:
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    (terminal.workspace / "a.png").write_bytes(b64decode(dot))
    (terminal.workspace / "a.pdf").write_bytes(b"%PDF-1.7\n" + bytes(64))
    seen: list[CreateMessageRequestParams] = []
    script = [_uses("readImageFile", path="a.png"), _uses("readPdfFile", path="a.pdf"), _says("Seen.")]

    def model(params: CreateMessageRequestParams) -> CreateMessageResultWithTools:
        seen.append(params)
        return script[len(seen) - 1]

    assert ask(terminal, model)["text"] == "Seen."
    image, document = (seen[2].messages[place].content_as_list[0] for place in (2, 4))
    assert isinstance(image, ToolResultContent)
    assert isinstance(document, ToolResultContent)
    assert [part.mime_type for part in image.content if isinstance(part, ImageContent)] == ["image/png"]
    told = [part.text for part in document.content if isinstance(part, TextContent)]
    assert any("application/pdf" in text for text in told)


def test_an_attached_image_is_shown_to_the_editors_model_byte_for_byte(terminal: Terminal) -> None:
    data = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    (terminal.workspace / "a.png").write_bytes(data)
    seen: list[CreateMessageRequestParams] = []

    def model(params: CreateMessageRequestParams) -> CreateMessageResultWithTools:
        seen.append(params)
        return _says("Seen.")

    assert ask(terminal, model, attachments=["a.png"])["text"] == "Seen."
    query, image = seen[0].messages[0].content_as_list
    assert isinstance(query, TextContent)
    assert isinstance(image, ImageContent)
    assert b64decode(image.data) == data


def test_what_an_experts_server_asks_of_the_model_is_asked_of_the_editors(terminal: Terminal) -> None:
    skill = {
        "type": "mcpStdioSkill", "sampling": True, "command": sys.executable, "args": [str(ASKING_SERVER), "handshake"],
    }  # fmt: skip
    toml = TEAM + tomli_w.dumps({"experts": {"helper": {"skills": {"asking": skill}}}})
    seen: list[CreateMessageRequestParams] = []

    def model(params: CreateMessageRequestParams) -> CreateMessageResultWithTools:
        seen.append(params)
        return [_uses("sum"), _says("4"), _says("It is 4.")][len(seen) - 1]

    assert ask(terminal, model, toml=toml)["text"] == "It is 4."
    asked = seen[1]
    assert (asked.system_prompt, asked.max_tokens, asked.temperature) == ("[[calculator]]", 10, 0.5)
    assert isinstance(asked.messages[-1].content_as_list[0], ImageContent)


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
    assert "does not take tools" in ask(terminal, never, capability=SamplingCapability())["error"]
    assert "a revision without sampling" in ask(terminal, never, era="auto")["error"]


def test_from_the_command_line_there_is_no_such_model(terminal: Terminal) -> None:
    terminal.project(TEAM)
    result = terminal.call("run", "helper", "Say hello", "--provider", "mcp-sampling")
    assert result.code == 2
    assert "only while perstack serves that editor over MCP" in result.err
