"""Events that are shown while they happen and never stored; `events/__init__.py` has the union of all events."""

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from perstack.core.runs.runtime_start import DisplayEvent
from perstack.core.runs.runtime_start import InitializeRuntime as InitializeRuntime
from perstack.next_steps import NextStep, Note

WaitReason = Literal["rateLimit", "concurrency", "requestsPerMinute", "tokensPerMinute", "circuit"]


class SkillStarting(DisplayEvent):
    """The start of, or connection to, a skill's server."""

    type: Literal["skillStarting"] = "skillStarting"
    skill_name: str
    detail: str = ""


class SkillConnected(DisplayEvent):
    """The availability of a skill's tools."""

    type: Literal["skillConnected"] = "skillConnected"
    skill_name: str
    tools: int = 0
    duration_ms: int = 0


class SkillStderr(DisplayEvent):
    """A line that a skill's server wrote to stderr."""

    type: Literal["skillStderr"] = "skillStderr"
    skill_name: str
    message: str


class SkillDisconnected(DisplayEvent):
    """The end of a skill's server."""

    type: Literal["skillDisconnected"] = "skillDisconnected"
    skill_name: str
    reason: str = ""
    note: Note | None = Field(default=None, exclude=True)

    def text_for(self, say: Callable[[NextStep], str]) -> str:
        """Return the reason; `say` words the next steps for a door."""
        return self.reason if self.note is None else self.note.text_for(say)


class ToolProgress(DisplayEvent):
    """A progress message of a running tool."""

    type: Literal["toolProgress"] = "toolProgress"
    expert_key: str
    step_number: int
    tool_call_id: str
    tool_name: str
    message: str


class WaitForEndpoint(DisplayEvent):
    """A generation's wait in the queue of its endpoint."""

    type: Literal["waitForEndpoint"] = "waitForEndpoint"
    expert_key: str
    step_number: int
    provider: str
    reason: WaitReason
    ahead: int
    delay_ms: int | None = None  # time until the queue advances; None if unknown


class StreamReasoning(DisplayEvent):
    """A part of the model's reasoning, as it arrives."""

    type: Literal["streamReasoning"] = "streamReasoning"
    expert_key: str
    step_number: int
    delta: str


class StreamText(DisplayEvent):
    """A part of the model's text, as it arrives."""

    original_types = ("streamRunResult",)
    type: Literal["streamText"] = "streamText"
    expert_key: str
    step_number: int
    delta: str
