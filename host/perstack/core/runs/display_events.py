"""Events that are shown while they happen, and never stored. `perstack.core.events` has them all."""

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from perstack.core.base import Fact
from perstack.next_steps import NextStep, Note

WaitReason = Literal["rateLimit", "concurrency", "requestsPerMinute", "tokensPerMinute", "circuit"]


class DisplayEvent(Fact):
    """Shown while it happens, never stored."""

    type: str
    id: str
    timestamp: int
    job_id: str
    run_id: str


class InitializeRuntime(DisplayEvent):
    """The host begins to work on a Job."""

    type: Literal["initializeRuntime"] = "initializeRuntime"
    runtime_version: str
    expert_key: str
    model: str
    provider: str
    max_steps: int | None = None
    storage: str = ""


class SkillStarting(DisplayEvent):
    """A skill's server is being started or connected to."""

    type: Literal["skillStarting"] = "skillStarting"
    skill_name: str
    detail: str = ""


class SkillConnected(DisplayEvent):
    """A skill's tools are there."""

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
    """A skill's server has ended."""

    type: Literal["skillDisconnected"] = "skillDisconnected"
    skill_name: str
    reason: str = ""
    note: Note | None = Field(default=None, exclude=True)
    """The reason with what may be done about it, where that is known."""

    def said(self, say: Callable[[NextStep], str]) -> str:
        """The reason in the words of a door."""
        return self.reason if self.note is None else self.note.said(say)


class ToolProgress(DisplayEvent):
    """What a tool says while it works."""

    type: Literal["toolProgress"] = "toolProgress"
    expert_key: str
    step_number: int
    tool_call_id: str
    tool_name: str
    message: str


class WaitForEndpoint(DisplayEvent):
    """A generation waits in the line of its endpoint."""

    type: Literal["waitForEndpoint"] = "waitForEndpoint"
    expert_key: str
    step_number: int
    provider: str
    reason: WaitReason
    ahead: int
    """How many were there before it."""
    delay_ms: int | None = None
    """Until the line moves, where that is known."""


class StreamReasoning(DisplayEvent):
    """A piece of the model's reasoning, as it comes."""

    type: Literal["streamReasoning"] = "streamReasoning"
    expert_key: str
    step_number: int
    delta: str


class StreamText(DisplayEvent):
    """A piece of the model's text, as it comes."""

    type: Literal["streamText"] = "streamText"
    expert_key: str
    step_number: int
    delta: str
