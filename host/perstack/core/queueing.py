"""A Run that waits for a worker: the fact, and what it comes to."""

from typing import Literal, TypedDict

from pydantic import Field, field_validator

from perstack.core.base import Fact, falsy
from perstack.core.by import By
from perstack.core.run_event import RunEvent


class QueueRun(RunEvent):
    """A Run waits for a worker, which takes it up: a Coordinator's, or a delegate's that others may drive."""

    type: Literal["queueRun"] = "queueRun"
    by: By
    definition: str | None = None
    """The sha256 (hex) of a blob of the Job: the Experts and settings that it is driven with, whoever drives it."""
    due: int = Field(default=0, exclude_if=falsy)
    """Not before this time, in milliseconds since 1970."""
    priority: int = Field(default=0, exclude_if=falsy)
    """Higher first."""

    @field_validator("definition")
    @classmethod
    def _is_digest(cls, value: str | None) -> str | None:
        if value is not None and (len(value) != 64 or not set(value) <= set("0123456789abcdef")):
            raise ValueError("the definition is named by no sha256")
        return value


class QueueFields(TypedDict):
    """What a `queueRun` says, besides where it stands."""

    by: By
    definition: str | None
    due: int
    priority: int


class Queued(Fact):
    """That a Job was queued, and how."""

    since: int
    due: int = Field(default=0, exclude_if=falsy)
    priority: int = Field(default=0, exclude_if=falsy)
    by: By

    @classmethod
    def of(cls, event: QueueRun) -> "Queued":
        """What a list shows of the event."""
        return cls(since=event.timestamp, due=event.due, priority=event.priority, by=event.by)
