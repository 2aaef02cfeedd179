"""The base skill on a workspace of its own: real files, real processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from perstack.core.definitions.skills import BASE_SKILL, McpStdioSkill
from perstack.core.messages.messages import BlobPart, text_of
from perstack.errors import NotFound
from perstack.ports.skill import SkillContext, SkillSession, ToolCall, ToolResult
from perstack_base.plugin import perstack_skills
from perstack_base.tools import SPECS

SCHEMAS = {spec.name: spec.input_schema for spec in SPECS}


@dataclass
class Blobs:
    kept: dict[str, bytes] = field(default_factory=dict)

    async def put(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        self.kept[name] = data
        return name

    async def get(self, sha256: str) -> bytes:
        try:
            return self.kept[sha256]
        except KeyError:
            raise NotFound(sha256) from None


@dataclass(frozen=True)
class Answer:
    result: ToolResult

    @property
    def is_error(self) -> bool:
        return self.result.is_error

    @property
    def text(self) -> str:
        return text_of(part for part in self.result.contents if part.type == "textPart")

    @property
    def json(self) -> dict[str, Any]:
        value = json.loads(self.text)
        assert isinstance(value, dict)
        return value

    @property
    def blob(self) -> BlobPart:
        (part,) = (part for part in self.result.contents if isinstance(part, BlobPart))
        return part

    @property
    def error(self) -> str:
        assert self.is_error, self.text
        assert "\n" not in self.text
        return self.text


@dataclass
class Tools:
    """Calls tools as the host does: with arguments that fit the schema."""

    workspace: Path
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    state_dir: str | None = "perstack"
    protected: tuple[Path, ...] = ()
    patterns: tuple[str, ...] = ()
    read_only: tuple[Path, ...] = ()
    opens: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    blobs: Blobs = field(default_factory=Blobs)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[SkillSession]:
        factory, *_ = perstack_skills()
        context = SkillContext(
            workspace=self.workspace,
            job_id="job",
            env=self.env,
            state_dir=self.state_dir,
            protected=self.protected,
            protected_patterns=self.patterns,
            read_only=self.read_only,
            writable=self.writable,
            readable=self.readable,
        )
        session = await factory.open(McpStdioSkill(name=BASE_SKILL), context)
        try:
            yield session
        finally:
            await session.close()

    async def ask(self, session: SkillSession, tool: str, args: dict[str, Any]) -> Answer:
        jsonschema.validate(args, SCHEMAS[tool])
        call = ToolCall(tool, args, "job-1-1-call", "job-1", "expert", self.blobs, lambda line: None, opens=self.opens)
        return Answer(await session.call(call))

    def __call__(self, tool: str, path: str | None = None, **args: Any) -> Answer:
        async def once() -> Answer:
            async with self.session() as session:
                return await self.ask(session, tool, args if path is None else {"path": path, **args})

        return asyncio.run(once())


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    where = tmp_path / "workspace"
    where.mkdir()
    return where


@pytest.fixture
def tools(workspace: Path) -> Tools:
    return Tools(workspace)
