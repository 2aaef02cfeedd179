"""The skill port: the source of tools.

A skill plugin registers a `SkillFactory`. The host opens each declared skill once per Job, asks its session for tools
before each generation, and sends it the model's calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import Skill as SkillDefinition
from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.messages import ExpertMessage, FinishReason, Message, ResultContent, TextPart
from perstack.core.runs.facts import Answer, Question
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack.ports.parts import NO_PARTS, Parts
from perstack.ports.runtime import LOCAL_RUNTIME, Runtime


class BlobStore(Protocol):
    """The Job's blobs: large results, images, documents."""

    async def put(self, data: bytes) -> str:
        """Store bytes and return their hex sha256."""
        ...

    async def get(self, sha256: str) -> bytes:
        """Return the bytes of a blob. Raises NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A generation that a tool requests from the Run's own model. The model sees only these messages."""

    messages: Sequence[Message]
    instruction: str = ""
    max_tokens: int | None = None  # maximum reply tokens; the user's setting for the provider applies as well
    temperature: float | None = None  # not sent to a model that does not support it. None: the user's setting


@dataclass(frozen=True, slots=True)
class Sample:
    """Result of a SampleRequest."""

    reply: ExpertMessage
    model: str
    finish_reason: FinishReason


Sampler = Callable[
    [SampleRequest], Awaitable[Sample]
]  # function that generates once; raises ProviderError. Its cost counts towards the tool call


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call for a skill to answer. Its arguments have been validated against the tool's schema."""

    tool_name: str
    args: JsonObject
    key: str
    """Idempotency key: a call keeps its key after a resume. MCP servers receive it in `_meta`, processes
    as PERSTACK_CALL_ID."""
    run_id: str
    expert_key: str
    blobs: BlobStore
    on_progress: Callable[[str], None]  # shows a line of progress to the user
    answers: tuple[Answer, ...] = ()  # answers to the questions that this call has asked
    may_ask: bool = False  # False: a question cannot be answered; treat it as declined
    sample: Sampler | None = None  # generates with the Run's own model; None unless the skill's definition allows it
    opens: tuple[str, ...] = ()  # protected paths, relative to the workspace, that a permission rule opens for the call


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's answer to the model."""

    contents: tuple[ResultContent, ...]
    is_error: bool = False

    @classmethod
    def text(cls, text: str, *, is_error: bool = False) -> ToolResult:
        """Return a result with a single text."""
        return cls((TextPart(text=text),), is_error)


@dataclass(frozen=True, slots=True)
class SkillContext:
    """Context of a skill, made once per Job."""

    workspace: Path  # absolute path of the directory that file tools are confined to
    job_id: str
    env: Mapping[str, str]
    """The host's environment, including `.env` files. A child process gets only what the skill's definition
    requests."""
    state_dir: str | None = "perstack"  # name of the state folder in the workspace, which tools must not use; or None
    on_stderr: Callable[[str], None] = lambda line: None  # shows a line that the skill's server wrote to stderr
    programs: Path | None = None
    """Folder in which the skill's programs are recorded while they run: `records` of `system.processes.launch`. None
    if no other process would resume the Job."""
    parts: Parts = NO_PARTS  # services of the host, such as the tasks of agents (`perstack.tasks.memory.TASK_MEMORY`)
    off_limits: tuple[Path, ...] = ()  # absolute paths of the state, which tools must not use either
    protected: tuple[Path, ...] = ()
    """Absolute paths of files that the host itself reads. Tools must neither read nor write them, but may show their
    names."""
    read_only: tuple[Path, ...] = ()
    """Absolute paths of programs that the host or a permission rule runs. Tools may read them, but must neither change
    nor create them."""
    protected_patterns: tuple[str, ...] = ()  # absolute patterns of `include`: files that match are also protected
    writable: tuple[str, ...] = ()  # absolute paths outside the workspace: `writable` of `[sandbox]`
    readable: tuple[str, ...] = ()  # absolute paths outside the workspace, and files of variables
    runtime: Runtime = LOCAL_RUNTIME  # the skill must start all its programs with it
    variables: tuple[str, ...] = ()  # names of variables in `env` that every program gets in addition


@dataclass(frozen=True, slots=True)
class Toolset:
    """Tools and instructions that a skill offers."""

    specs: tuple[ToolSpec, ...] = ()  # all tools, before the host applies pick and omit
    instructions: str = ""  # the skill's own instructions to the model


class SkillSession(ABC):
    """An open skill. All Runs of a Job that declare it share it; calls may be concurrent."""

    @abstractmethod
    async def tools(self) -> Toolset:
        """Return the tools on offer now. Called before each generation; return one object until something changes.

        May raise SkillError on the first call if the skill cannot be reached: the Run continues without it, and `close`
        is called.
        """

    @abstractmethod
    async def call(self, tool_call: ToolCall) -> ToolResult | Question:
        """Answer a call. For a failure that the model should see, return an error result or raise SkillError.

        A Question stops the Run until a person has answered it. Then the call is made again, with its key and
        with the answer in `answers`: in this session, if `has_waiting_call` and the person is present.
        """

    @property
    def has_waiting_call(self) -> bool:
        """True while a call that returned a Question waits, and can use the answer only in this session."""
        return False

    @abstractmethod
    async def close(self) -> None:
        """End the session and every process that it started."""


class SkillFactory(ABC):
    """Factory of skills, registered by a plugin. Creating one must import nothing heavy."""

    name: str  # the name in `perstack plugins` and in `plugin = "…"` of a pluginSkill
    has_login: bool = False  # True if servers of its skills may require a login: override `login`, `logout`

    @abstractmethod
    def handles(self, definition: SkillDefinition) -> bool:
        """Return whether this plugin provides a skill with this definition."""

    @abstractmethod
    async def open(self, definition: SkillDefinition, context: SkillContext) -> SkillSession:
        """Open a skill; it may still be connecting when this returns.

        Raises SkillError, which ends the Run, for what the author of the definition must change. All skills of a Run
        are opened concurrently.
        """

    def known_tools(self, definition: SkillDefinition) -> tuple[ToolSpec, ...] | None:
        """Return all tools before pick and omit, without starting anything; None if unknown. Must not raise."""
        return None

    def check(self, definition: SkillDefinition) -> None:  # noqa: B027 - most factories can tell only by opening
        """Check the definition without starting anything. Raises SkillError for wrong settings."""

    async def login(
        self, definition: SkillDefinition, context: SkillContext, present: Callable[[str], Awaitable[None]]
    ) -> None:
        """Log in and store the credentials for later Jobs. `present` shows the address to open.

        Raises SkillError if the login fails or times out, or if the server requires none.
        """
        raise SkillError(f"skill {definition.name!r} has no login")

    async def logout(self, definition: SkillDefinition, context: SkillContext) -> bool:
        """Delete the stored login. Return False if there was none."""
        return False
