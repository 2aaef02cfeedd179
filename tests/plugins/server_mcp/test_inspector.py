"""The MCP inspector, written by others, lists and calls each tool over stdio and HTTP."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from editor import argv
from http_server import TOKEN, serving
from npm import installed
from terminal import SECONDS, Terminal, reply

pytestmark = [pytest.mark.others, pytest.mark.timeout(350)]  # the first time, packages are installed

PACKAGES = ("node@24.9.0", "@modelcontextprotocol/inspector@2.12.0")
"""npm packages of the inspector, which needs a newer Node.js than many systems have."""


class Inspector:
    """The inspector's command line, with its own server each time, or with the one at an address."""

    def __init__(self, commands: Path, terminal: Terminal, url: str | None) -> None:
        self._commands = commands
        self._terminal = terminal
        self._url = url
        self.called: set[str] = set()

    def run(self, method: str, *args: str) -> dict[str, Any]:
        """Return the result of a method."""
        variables = [part for name, value in self._terminal.env.items() for part in ("-e", f"{name}={value}")]
        remote = ("--transport", "http", "--header", f"Authorization: Bearer {TOKEN}")
        server = ["--", *argv()] if self._url is None else ["--server-url", self._url, *remote]
        done = subprocess.run(
            [
                *(str(self._commands / "mcp-inspector"), "--cli", *variables, "--cwd", str(self._terminal.workspace)),
                *("--method", method, *args, "--quiet", *server),
            ],
            env={
                "PATH": f"{self._commands}:{os.environ['PATH']}",
                "HOME": str(self._terminal.workspace),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        # 5: the tool has said that it is an error
        assert done.returncode in (0, 5), done.stderr or done.stdout
        return json.loads(done.stdout)

    def call(self, tool: str, **arguments: object) -> dict[str, Any]:
        """Return the result of a tool."""
        self.called.add(tool)
        return self.run("tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments))


@pytest.fixture(params=["stdio", "http"])
def inspector(request: pytest.FixtureRequest, terminal: Terminal) -> Iterator[Inspector]:
    commands = installed("inspector", PACKAGES, ("node", "mcp-inspector"))
    if request.param == "stdio":
        yield Inspector(commands, terminal, None)
    else:
        with serving(terminal) as (url, _):
            yield Inspector(commands, terminal, url)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_it_lists_every_tool_and_finds_no_fault_in_the_schemas(inspector: Inspector, era: str) -> None:
    tools = inspector.run("tools/list", "--strict", "--protocol-era", era)["tools"]
    assert [tool["name"] for tool in tools][:4] == ["solo", "team_lead", "researcher", "list_jobs"]


def test_it_calls_every_tool(inspector: Inspector, terminal: Terminal) -> None:
    read = reply("", ("readTextFile", {"path": "notes.txt"}))
    turns = {"[[solo]]": [read, reply("One note."), reply("Two notes.")], "[[researcher]]": [reply("Found.")]}
    terminal.script(**turns, **{"[[lead]]": [reply("", ("researcher", {"query": "look"})), reply("It is known.")]})
    result = inspector.call("solo", query="go")
    assert result["content"][0]["text"] == "One note."
    job = result["structuredContent"]["id"]
    checkpoint = inspector.call("get_job", job=job)["structuredContent"]["checkpoint"]
    assert len(inspector.call("get_checkpoint", checkpoint=checkpoint)["structuredContent"]["messages"]) > 3
    assert [each["id"] for each in inspector.call("list_jobs")["structuredContent"]["jobs"]] == [job]
    for tool, words in (
        ("answer", "has no open question"),
        ("resume_job", "is completed"),
        ("cancel_job", "no process drives it"),
    ):
        refused = inspector.call(tool, job=job, **({"answer": "x"} if tool == "answer" else {}))
        assert refused["isError"]
        assert words in refused["content"][0]["text"]
    for tool, given in (("diff", {}), ("rewind", {"checkpoint": checkpoint})):
        refused = inspector.call(tool, job=job, **given)
        assert refused["isError"]
        assert "snapshot" in refused["content"][0]["text"]
    assert inspector.call("continue_job", job=job, query="again")["content"][0]["text"] == "Two notes."
    assert inspector.call("team_lead", query="go")["content"][0]["text"] == "It is known."
    assert inspector.call("researcher", query="go")["content"][0]["text"] == "Found."
    assert inspector.call("inbox")["structuredContent"]["questions"] == []
    assert inspector.called == {tool["name"] for tool in inspector.run("tools/list")["tools"]}
