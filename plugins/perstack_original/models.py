"""Data of the original Perstack as pydantic models: one file per event, with messages inline.

Only fields that are read or written here are declared; other keys are ignored.
"""

from __future__ import annotations

from pydantic import Field

from perstack.core.base.records import JsonObject, Record, falsy
from perstack.core.base.usage import NO_USAGE, Usage


class OriginalPart(Record):
    """Part of a message; its fields depend on its type."""

    type: str
    id: str = ""
    text: str | None = None
    thinking: str | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    args: JsonObject | None = None
    contents: tuple[OriginalPart, ...] | None = None
    is_error: bool | None = None
    encoded_data: str | None = None
    mime_type: str | None = None
    url: str | None = None


class Message(Record):
    """Message of any role."""

    type: str
    contents: tuple[OriginalPart, ...] = ()
    id: str = ""


class ExpertName(Record):
    """Expert reference."""

    key: str
    name: str = ""
    version: str = "1.0.0"


class Caller(Record):
    """Call of a Run that a delegate works for."""

    expert: ExpertName
    tool_call_id: str
    tool_name: str
    checkpoint_id: str = ""
    run_id: str = ""


class Callee(Record):
    """Delegate that a Run waits for."""

    expert: ExpertName
    tool_call_id: str
    tool_name: str
    query: str = ""


class OriginalToolCall(Record):
    """Tool call, with its skill."""

    id: str
    skill_name: str = ""
    tool_name: str
    args: JsonObject = Field(default_factory=dict)


class OriginalToolResult(Record):
    """Result of a call that is not in a message yet."""

    id: str
    skill_name: str = ""
    tool_name: str = ""
    result: tuple[OriginalPart, ...] = ()


class OriginalCheckpoint(Record):
    """Checkpoint: in checkpoints/{id}.json and inside events."""

    id: str
    job_id: str
    run_id: str
    status: str = ""
    step_number: int = 0
    messages: tuple[Message, ...] = ()
    expert: ExpertName
    delegated_by: Caller | None = None
    delegate_to: tuple[Callee, ...] = Field(default=(), exclude_if=falsy)
    usage: Usage = NO_USAGE
    partial_tool_results: tuple[OriginalToolResult, ...] = Field(default=(), exclude_if=falsy)


class Event(Record):
    """Event of any type: event-{timestamp}-{step}-{type}.json."""

    type: str
    id: str
    expert_key: str = ""
    timestamp: int
    job_id: str
    run_id: str
    step_number: int = 0
    initial_checkpoint: OriginalCheckpoint | None = None
    input_messages: tuple[Message, ...] | None = None
    messages: tuple[Message, ...] | None = None
    new_message: Message | None = None
    new_messages: tuple[Message, ...] | None = None
    tool_calls: tuple[OriginalToolCall, ...] | None = None
    tool_call: OriginalToolCall | None = None
    tool_result: OriginalToolResult | None = None
    text: str | None = None
    reason: str | None = None
    error: JsonObject | None = None
    usage: Usage | None = None
    checkpoint: OriginalCheckpoint | None = None

    @property
    def file_name(self) -> str:
        return f"event-{self.timestamp}-{self.step_number}-{self.type}.json"


class OriginalRunSetting(Record):
    """Model settings of a run: run-setting.json."""

    model: str = ""
    provider_config: JsonObject = Field(default_factory=dict)
