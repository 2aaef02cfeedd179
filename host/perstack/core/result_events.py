"""How a Run comes to its result: the facts of that, and what every fact of a Run has."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, computed_field

from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.usage import Usage


class RunEvent(Fact):
    """What every event of a Run has."""

    type: str
    id: str
    timestamp: int
    """Milliseconds since 1970, UTC."""
    job_id: str
    run_id: str
    expert_key: str
    step_number: int

    @computed_field
    def step(self) -> int:
        """`step_number` again, for one-liners."""
        return self.step_number


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
