"""How a Run comes to its result: the facts of that."""

from typing import Literal

from pydantic import Field

from perstack.core.base import JsonObject, falsy
from perstack.core.run_event import RunEvent
from perstack.core.usage import Usage


class RejectResult(RunEvent):
    """The result does not fit the schema that was asked for. The model sees why, and has one more try."""

    type: Literal["rejectResult"] = "rejectResult"
    problem: str
    """What is wrong with it."""
    text: str
    """What the model is shown."""


class FinishRun(RunEvent):
    """The Run is completed."""

    type: Literal["finishRun"] = "finishRun"
    checkpoint_id: str
    text: str
    total_usage: Usage
    result: JsonObject | None = None
    """The result as JSON that fits the schema, if there was one."""
    without_effect: bool = Field(default=False, exclude_if=falsy)
    """Its Expert declares that its work has an effect, and no call of a tool had one."""
