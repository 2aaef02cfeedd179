"""The skill port: where tools come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from perstack.core.base import JsonObject
from perstack.core.definitions import Skill as SkillDefinition
from perstack.core.messages import ResultContent, TextPart
from perstack.core.tools import ToolSpec


class BlobStore(Protocol):
    """The Job's blobs: big results, images, documents."""

    async def put(self, data: bytes) -> str:
        """Keep bytes; returns their sha256 in hex."""
        ...

    async def get(self, sha256: str) -> bytes:
        """Raises NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call for a skill to answer. Arguments have been checked against the tool's schema."""

    tool_name: str
    args: JsonObject
    key: str
    """The same for the same call after a resume: MCP servers get it in `_meta`, processes as PERSTACK_CALL_ID."""
    run_id: str
    expert_key: str
    blobs: BlobStore
    on_progress: Callable[[str], None]
    """Tell a person what is going on, in a line."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is given back."""

    contents: tuple[ResultContent, ...]
    is_error: bool = False

    @classmethod
    def text(cls, text: str, *, is_error: bool = False) -> ToolResult:
        return cls((TextPart(text=text),), is_error)


@dataclass(frozen=True, slots=True)
class SkillContext:
    """What a skill is given when it is made, once for a Job."""

    workspace: Path
    """The directory that file tools are confined to, absolute."""
    job_id: str
    env: Mapping[str, str]
    """The host's environment with `.env` files; a child gets only what its definition asks for."""
    state_dir: str | None = "perstack"
    """A name in the workspace that tools keep off, if the Job's state is there."""
    on_stderr: Callable[[str], None] = lambda line: None
    """Show a line that the skill's server wrote to stderr."""


class SkillSession(Protocol):
    """A skill that is up. Shared by all Runs of a Job that declare the same one; calls may come concurrently."""

    async def tools(self) -> Sequence[ToolSpec]:
        """All its tools; the host applies pick and omit. Raises SkillError if it cannot be reached: the Run goes on
        without it, and `close` is called.
        """
        ...

    async def call(self, call: ToolCall) -> ToolResult:
        """Answer a call. What goes wrong for the model to know is an error result; raising SkillError is the same."""
        ...

    async def close(self) -> None:
        """End it, with every process it started."""
        ...


class SkillFactory(Protocol):
    """What a skill plugin registers. Creating one must import nothing heavy."""

    @property
    def name(self) -> str:
        """For `perstack plugins`, and `plugin = "…"` of a pluginSkill."""
        ...

    def handles(self, definition: SkillDefinition) -> bool:
        """Whether this plugin provides the skill that is declared so."""
        ...

    async def open(self, definition: SkillDefinition, context: SkillContext) -> SkillSession:
        """May return before it is connected. Raises SkillError, which ends the Run, for what its author must change.

        All skills of a Run are opened at the same time.
        """
        ...
