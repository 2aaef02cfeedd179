"""The facts of a schedule: what its log is made of. Times are milliseconds since 1970.

An occurrence is called by its time, `at`: the minute that the cron line names.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from perstack.core.base import Fact
from perstack.core.statuses import JobStatus

Outcome = JobStatus | Literal["deleted"]
"""How the Job of an occurrence stood when nothing more was to be done about it; `deleted`: it is gone."""


class ScheduleEvent(Fact):
    """What all facts of a schedule have."""

    schedule: str
    """Its name."""
    timestamp: int


class SetSchedule(ScheduleEvent):
    """A line is in force for the first time: it counts from now on."""

    type: Literal["setSchedule"] = "setSchedule"
    line: str
    """Time zone and cron line."""


class StartOccurrence(ScheduleEvent):
    """The Job of an occurrence is started, under this id, by whoever has appended this."""

    type: Literal["startOccurrence"] = "startOccurrence"
    at: int
    job_id: str


class SkipOccurrence(ScheduleEvent):
    """An occurrence is passed over: another was at work."""

    type: Literal["skipOccurrence"] = "skipOccurrence"
    at: int
    job_id: str
    """The Job that was at work."""


class QueueOccurrence(ScheduleEvent):
    """An occurrence waits for the end of the one that is at work."""

    type: Literal["queueOccurrence"] = "queueOccurrence"
    at: int
    job_id: str
    """The Job that is at work."""


class BeginOccurrence(ScheduleEvent):
    """The Job that was to be started was seen: it is there."""

    type: Literal["beginOccurrence"] = "beginOccurrence"
    job_id: str


class FinishOccurrence(ScheduleEvent):
    """The Job was seen to have ended."""

    type: Literal["finishOccurrence"] = "finishOccurrence"
    job_id: str
    outcome: Outcome


StoredScheduleEvent = (
    SetSchedule | StartOccurrence | SkipOccurrence | QueueOccurrence | BeginOccurrence | FinishOccurrence
)

_stored: TypeAdapter[StoredScheduleEvent] | None = None


def parse_schedule_event(payload: bytes) -> StoredScheduleEvent:
    """A fact from its JSON. Raises pydantic's ValidationError if it is none."""
    global _stored
    if _stored is None:
        _stored = TypeAdapter(Annotated[StoredScheduleEvent, Field(discriminator="type")])
    return _stored.validate_json(payload)
