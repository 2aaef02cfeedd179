"""Where a schedule stands. Times are milliseconds since 1970."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.core.ids import check_job_id
from perstack.core.schedules.definition import LONGEST_NAME, wrong_schedule_name
from perstack.core.schedules.events import Outcome
from perstack.core.transitions import Transition, transition
from perstack.errors import UsageError

LABEL = "schedule"
"""The label that the Jobs of a schedule have, with its name."""

Place = Literal["idle", "working", "queued", "next"]
"""Nothing is at work; a Job is; a Job is, and an occurrence waits for its end; that occurrence is to start."""

TRANSITIONS: dict[str, Transition[Place]] = {
    # the Job of the one before may wait for a person
    "startOccurrence": transition("idle", "working", "queued", "next", to=("working",)),
    "skipOccurrence": transition("working", "queued"),
    "queueOccurrence": transition("working", to=("queued",)),
    "beginOccurrence": transition("working", "queued"),
    "finishOccurrence": transition("working", "queued", to=("idle", "next")),
}
"""By the type of the event. `setSchedule` is not in it: it makes the schedule, and may follow anywhere."""


class Occurrence(Fact):
    """One that was started."""

    at: int
    """The time that the cron line names."""
    job_id: str
    decided_at: int
    """When it was."""
    begun: bool = Field(default=False, exclude_if=falsy)
    """Whether its Job was seen."""
    outcome: Outcome | None = None
    """How that ended, as far as anybody has seen."""


class ScheduleState(Fact):
    """Of one schedule: its definition is in perstack.toml, and what has become of it is here."""

    name: str
    version: int
    lines: dict[str, int]
    """Each line that was ever in force, with the time up to which its occurrences are decided."""
    current: Occurrence | None = None
    """The one whose Job is at work, as far as anybody has seen."""
    waiting: int | None = None
    """The one that waits for its end."""
    last: Occurrence | None = None
    """The one that was started last and has ended."""
    skipped: int | None = None
    """The one that was passed over last."""
    updated_at: int
    damaged: bool = Field(default=False, exclude_if=falsy)
    """Whether its log does not read: `error` says where, and the rest is what comes before that."""
    error: str | None = None

    @property
    def place(self) -> Place:
        if self.current is None:
            return "idle" if self.waiting is None else "next"
        return "working" if self.waiting is None else "queued"


def check_schedule_name(name: str) -> str:
    """The name itself. Raises UsageError if no schedule can be called that."""
    if len(name) <= LONGEST_NAME and (wrong := wrong_schedule_name(name)) is not None:
        raise UsageError(f"{name!r} {wrong}")
    return check_job_id(name)


def occurrence_job_id(name: str, stamp: str) -> str:
    """The id of the Job of an occurrence, whoever starts it; `stamp` is its minute in UTC, `20261201T0200Z`."""
    return f"{_prefix(name)}{stamp}"


def is_job_of(name: str, job_id: str) -> bool:
    """Whether a Job is one of a schedule's, by its id."""
    return job_id.startswith(_prefix(name))


def _prefix(name: str) -> str:
    return f"schedule-{name}-"


def damaged_schedule(name: str, readable: ScheduleState | None, damage: str) -> ScheduleState:
    """A schedule whose log does not read, as far as it was readable."""
    known = readable or ScheduleState(name=name, version=0, lines={}, updated_at=0)
    return known.model_copy(update={"damaged": True, "error": damage})
