"""The environment in which tests open MCP servers."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import McpStdioSkill, Skill
from perstack.core.messages.messages import BlobPart, TextPart
from perstack.ports.skill import SkillContext, SkillSession, ToolCall, ToolResult
from perstack_mcp.plugin import McpSkillFactory

MARK = "LC_PERSTACK_TEST"
"""An inherited variable that marks every server, to find its processes."""

MISBEHAVING = Path(__file__).parents[1] / "plugins" / "mcp" / "servers" / "misbehaving.py"


@dataclass
class Blobs:
    """The Job's blobs, in memory."""

    kept: dict[str, bytes] = field(default_factory=dict)

    async def put(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        self.kept[name] = data
        return name

    async def get(self, sha256: str) -> bytes:
        return self.kept[sha256]


@dataclass
class Bed:
    """Opens skills in a workspace and records what they show."""

    workspace: Path
    env: dict[str, str]
    mark: str
    shown: list[str] = field(default_factory=list)
    progress: list[str] = field(default_factory=list)
    blobs: Blobs = field(default_factory=Blobs)

    def context(self) -> SkillContext:
        return SkillContext(self.workspace, "job", self.env, on_stderr=self.shown.append)

    async def open(self, definition: Skill) -> SkillSession:
        return await McpSkillFactory().open(definition, self.context())

    @asynccontextmanager
    async def session(self, definition: Skill) -> AsyncIterator[SkillSession]:
        session = await self.open(definition)
        try:
            yield session
        finally:
            await session.close()

    async def call(self, session: SkillSession, name: str, /, **args) -> ToolResult:
        return await session.call(self.request(name, args))

    def request(self, name: str, args: JsonObject) -> ToolCall:
        return ToolCall(name, args, "run-1-call", "run", "expert", self.blobs, self.progress.append)

    def misbehaving(self, fault: str = "none", *args: str, **fields) -> McpStdioSkill:
        return McpStdioSkill(name="bad", command=sys.executable, args=(str(MISBEHAVING), fault, *args), **fields)

    def processes(self) -> list[int]:
        """Return the ids of processes with this test's mark, and of their guards."""
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if self._is_ours(entry)]

    def _is_ours(self, entry: Path) -> bool:
        try:
            marked = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            guards = int(parent) == os.getpid() and b"\0guard\0" in (entry / "cmdline").read_bytes()
        except OSError:
            return False
        return state not in "ZX" and (marked or guards)


def words(result: ToolResult) -> str:
    return "".join(part.text for part in result.contents if isinstance(part, TextPart))


def blob_parts(result: ToolResult) -> list[BlobPart]:
    return [part for part in result.contents if isinstance(part, BlobPart)]
