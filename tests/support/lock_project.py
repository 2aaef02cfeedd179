"""A project with an MCP server whose tools are defined in a file, for tests of perstack.lock."""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from pathlib import Path

from terminal import Terminal

from perstack.core.definitions.skills import PluginSkill, ToolSpec
from perstack.errors import SkillError
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillFactory, SkillSession, ToolCall, ToolResult, Toolset

SERVER = Path(__file__).parents[1] / "plugins" / "mcp" / "servers" / "from_file.py"


ONE = '[experts.a]\ninstruction = "[[a]] works."\n'
PLUGIN = ONE + '[experts.a.skills.mine]\ntype = "pluginSkill"\nplugin = "late"\n'


class Late(SkillFactory, SkillSession):
    """A skill whose tools may change, and which may be unavailable."""

    name = "late"

    def __init__(self, *names: str) -> None:
        self.toolset = Toolset(tuple(ToolSpec(name=name) for name in names))
        self.asked = 0
        self.closed = 0
        self.problem = ""

    def handles(self, definition) -> bool:
        return isinstance(definition, PluginSkill)

    async def open(self, definition, context):
        return self

    async def tools(self) -> Toolset:
        self.asked += 1
        await asyncio.sleep(0)
        if self.problem:
            raise SkillError(self.problem)
        return self.toolset

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult.text(f"did {call.tool_name}")

    async def close(self) -> None:
        self.closed += 1

    @hookimpl
    def perstack_skills(self):
        return [self]


def tool_entry(name: str, **properties: str) -> dict:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"name": name, "description": f"It can {name}.", "inputSchema": schema}


def offer(folder: Path, *tools: dict) -> None:
    """Set the tools that the server lists from its next start on."""
    (folder / "tools.json").write_text(json.dumps(tools))


def did(folder: Path) -> list[str]:
    """Return the server's notes: its starts, and the calls."""
    notes = folder / "notes"
    return notes.read_text().splitlines() if notes.exists() else []


def skill(expert: str, name: str, folder: Path, *more: str, **fields: object) -> str:
    """Return the TOML of the server as a skill."""
    args = [str(SERVER), str(folder / "tools.json"), str(folder / "notes"), *more]
    rest = "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
    head = f'[experts.{expert}.skills.{name}]\ntype = "mcpStdioSkill"\n'
    return f"{head}command = {json.dumps(sys.executable)}\nargs = {json.dumps(args)}\n{rest}"


def lock_of(folder: Path) -> dict:
    return tomllib.loads((folder / "perstack.lock").read_text())


def events_of(terminal: Terminal, *args: str) -> list[dict]:
    """Run a command and return its events."""
    done = terminal.call("run", *args, "--provider", "scripted")
    assert done.code == 0, done.err
    return done.events
