"""The skill port: where tools come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from perstack.core.base import JsonObject
from perstack.core.definitions import Skill as SkillDefinition
from perstack.core.events import FinishReason
from perstack.core.messages import ExpertMessage, Message, ResultContent, TextPart
from perstack.core.questions import Answer, Question
from perstack.core.tools import ToolSpec
from perstack.dataclass import dataclass
from perstack.ports.runtime import LOCAL_RUNTIME, Runtime

if TYPE_CHECKING:
    from perstack.ports.tasks import TaskMemory


class BlobStore(Protocol):
    """The Job's blobs: big results, images, documents."""

    async def put(self, data: bytes) -> str:
        """Keep bytes; returns their sha256 in hex."""
        ...

    async def get(self, sha256: str) -> bytes:
        """Raises NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A generation that a tool asks the Run's own model for. It sees these messages and nothing of the Run."""

    messages: Sequence[Message]
    instruction: str = ""
    max_tokens: int | None = None
    """At most so many tokens of reply; what the user has set for the provider holds as well."""
    temperature: float | None = None
    """None: what the user has set. A model that takes none is not sent any."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What came of it."""

    reply: ExpertMessage
    model: str
    finish_reason: FinishReason


Sampler = Callable[[SampleRequest], Awaitable[Sample]]
"""Raises ProviderError. What it costs is counted with the call."""


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
    answers: tuple[Answer, ...] = ()
    """What a person has said to the questions that this same call asked before."""
    may_ask: bool = False
    """Whether somebody will answer a question; if not, it is to be taken as declined."""
    sample: Sampler | None = None
    """The Run's own model, if the skill's definition allows it."""
    opens: tuple[str, ...] = ()
    """Protected paths, relative to the workspace, that a permission rule names and this call may use."""


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
    programs: Path | None = None
    """Where the programs that it starts are recorded while they run: the `records` of `ports.processes.start.launch`.
    None where nobody continues its work."""
    tasks: Callable[[], TaskMemory] | None = None
    """The tasks that agents pause and resume, for a skill that keeps some; None where there is no host."""
    off_limits: tuple[Path, ...] = ()
    """Files and folders that tools keep off besides, absolute: where the state really is."""
    protected: tuple[Path, ...] = ()
    """Files that tools neither read nor write, absolute; their names may be shown. It is what the host reads itself."""
    protected_patterns: tuple[str, ...] = ()
    """The same of files that may come to be: absolute patterns of `include`."""
    writable: tuple[str, ...] = ()
    """Files and folders besides the workspace that file tools may change, absolute: `writable` of `[sandbox]`."""
    readable: tuple[str, ...] = ()
    """The same of those that they may read, and of files of variables that they may."""
    runtime: Runtime = LOCAL_RUNTIME
    """Where its programs are started: every skill that starts one starts it by this."""
    variables: tuple[str, ...] = ()
    """The names of those of `env` that every program is given besides."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """What a skill offers."""

    specs: tuple[ToolSpec, ...] = ()
    """All its tools; the host applies pick and omit."""
    instructions: str = ""
    """What the skill itself has to say to a model about them."""


class SkillSession(Protocol):
    """A skill that is up. Shared by all Runs of a Job that declare the same one; calls may come concurrently."""

    async def tools(self) -> Toolset:
        """What it offers now: asked before each generation, the same object while nothing has changed.

        Raises SkillError, the first time only, if it cannot be reached: the Run continues without it, and `close` is
        called.
        """
        ...

    async def call(self, call: ToolCall) -> ToolResult | Question:
        """Answer a call. What goes wrong for the model to know is an error result; raising SkillError is the same.

        A Question stops the Run until a person has answered it; then the same call is made again, with the same key,
        and with the answer among its `answers`.
        """
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


@runtime_checkable
class KnownTools(SkillFactory, Protocol):
    """A skill plugin that can tell the tools of a skill without opening it, so that `perstack validate` knows them."""

    def known_tools(self, definition: SkillDefinition) -> tuple[ToolSpec, ...]:
        """All that it offers, before pick and omit. Starts nothing, and raises nothing."""
        ...


@runtime_checkable
class LoginFactory(SkillFactory, Protocol):
    """A skill plugin whose servers a person may have to log in to."""

    async def login(
        self, definition: SkillDefinition, context: SkillContext, present: Callable[[str], Awaitable[None]]
    ) -> None:
        """Log in, and keep what that gives for later Jobs. `present` shows a person the address to go to.

        Raises SkillError if it does not come about, in bounded time, or if the server asks for no login.
        """
        ...

    async def logout(self, definition: SkillDefinition, context: SkillContext) -> bool:
        """Forget the login. False if there was none."""
        ...
