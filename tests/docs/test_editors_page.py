"""docs/editors.md: its tools, clients and times are the code's, and its examples are commands that exist."""

from __future__ import annotations

import re

import click
import pytest
from pages import page

from perstack.doors.cli.main import perstack
from perstack_server.mcp.client_config import CLIENTS

PAGE = page("docs/editors.md")
WORDS = " ".join(PAGE.split())


def test_the_tools_are_those_of_the_server_with_their_descriptions() -> None:
    tools = pytest.importorskip("perstack_server.mcp.tools", reason="the MCP SDK is not there")
    table = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert table == [(tool.name, tool.description) for tool in tools.JOB_TOOLS.values()]


def test_the_arguments_of_an_experts_tool_are_named() -> None:
    from perstack.doors.operations.driving import ExpertArguments
    from perstack_server.mcp.tools import input_schema

    described = WORDS.partition("Each Expert is a tool")[2].partition("Besides:")[0]
    properties = input_schema(ExpertArguments)["properties"]
    assert isinstance(properties, dict)
    assert [name for name in properties if f"`{name}`" not in described] == []


def test_every_client_that_settings_are_printed_for_is_named() -> None:
    *most, last = CLIENTS
    assert f"It knows {', '.join(most)} and {last}." in WORDS


def test_the_longest_silence_is_that_of_the_code() -> None:
    from perstack_server.mcp.driving import MAX_SILENCE_S

    assert f"at least every {MAX_SILENCE_S:g} s" in WORDS


@pytest.mark.parametrize("line", re.findall(r"perstack mcp (--[^\n`]+)", PAGE))
def test_every_example_is_a_command_with_options_that_exist(line: str) -> None:
    command = perstack.get_command(click.Context(perstack), "mcp")
    assert command is not None
    command.make_context("mcp", line.split())
