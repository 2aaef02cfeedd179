"""Events and state of a schedule. Times are milliseconds since 1970."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict, assert_never

from pydantic import Field, TypeAdapter

from perstack.core.base.ids import check_job_id
from perstack.core.base.records import EventParser, IllegalEvent, Record, falsy
from perstack.core.definitions.job_status import JobStatus
from perstack.core.definitions.project import MAX_SCHEDULE_NAME_CHARS, schedule_name_problem
from perstack.core.jobs.due import SCHEDULE_LABEL
from perstack.errors import UsageError
from perstack.feature_logs.transitions import Transition, check_follows, transition

# Events of a schedule's log. An occurrence is identified by its time `at`, the minute that the cron line names.

Outcome = JobStatus | Literal["deleted"]  # final status of an occurrence's Job; `deleted` if the Job is gone


class ScheduleEvent(Record):
    """Fields that all events of a schedule have."""

    schedule: str
    timestamp: int


class SetSchedule(ScheduleEvent):
    """A cron line is in force for the first time; its occurrences count from now on."""

    type: Literal["setSchedule"] = "setSchedule"
    line: str  # time zone and cron line


class StartOccurrence(ScheduleEvent):
    """The Job of an occurrence is started under this id, by the process that appended the event."""

    type: Literal["startOccurrence"] = "startOccurrence"
    at: int
    job_id: str


class SkipOccurrence(ScheduleEvent):
    """An occurrence is skipped, because the Job of another one is running."""

    type: Literal["skipOccurrence"] = "skipOccurrence"
    at: int
    job_id: str


class QueueOccurrence(ScheduleEvent):
    """An occurrence waits for the end of the running Job."""

    type: Literal["queueOccurrence"] = "queueOccurrence"
    at: int
    job_id: str


class BeginOccurrence(ScheduleEvent):
    """The started Job was observed to exist."""

    type: Literal["beginOccurrence"] = "beginOccurrence"
    job_id: str


class FinishOccurrence(ScheduleEvent):
    """The Job was observed to have ended."""

    type: Literal["finishOccurrence"] = "finishOccurrence"
    job_id: str
    outcome: Outcome


StoredScheduleEvent = (
    SetSchedule | StartOccurrence | SkipOccurrence | QueueOccurrence | BeginOccurrence | FinishOccurrence
)

parse_schedule_event = EventParser[StoredScheduleEvent](
    lambda: TypeAdapter(Annotated[StoredScheduleEvent, Field(discriminator="type")])
)


LABEL = SCHEDULE_LABEL

Place = Literal["idle", "working", "queued", "next"]
"""`idle`: no Job runs. `working`: one runs. `queued`: an occurrence waits for its end. `next`: that one starts next."""

TRANSITIONS: dict[str, Transition[Place]] = {
    # the previous Job may be waiting for a person
    "startOccurrence": transition("idle", "working", "queued", "next", to=("working",)),
    "skipOccurrence": transition("working", "queued"),
    "queueOccurrence": transition("working", to=("queued",)),
    "beginOccurrence": transition("working", "queued"),
    "finishOccurrence": transition("working", "queued", to=("idle", "next")),
}
"""Transitions by the type of the event. `setSchedule` is missing: it creates the schedule, and is allowed in any
state."""


class Occurrence(Record):
    """Started occurrence of a schedule."""

    at: int  # time that the cron line names
    job_id: str
    decided_at: int  # time of the decision to start it
    begun: bool = Field(default=False, exclude_if=falsy)  # True once its Job was observed
    outcome: Outcome | None = None  # last observed outcome of its Job; None while it runs


class ScheduleState(Record):
    """State of one schedule; its definition is in perstack.toml."""

    name: str
    version: int
    lines: dict[str, int]  # cron lines that were ever in force, each with the time up to which it is decided
    current: Occurrence | None = None  # occurrence whose Job is running, as last observed
    waiting: int | None = None  # time of the occurrence that waits for its end
    last: Occurrence | None = None
    skipped: int | None = None  # time of the last skipped occurrence
    updated_at: int
    damaged: bool = Field(default=False, exclude_if=falsy)  # True if its log cannot be read: `error` says where
    error: str | None = None

    @property
    def place(self) -> Place:
        """The state in terms of `TRANSITIONS`."""
        if self.current is None:
            return "idle" if self.waiting is None else "next"
        return "working" if self.waiting is None else "queued"


def check_schedule_name(name: str) -> str:
    """Return the name. Raises UsageError if it is not a valid name of a schedule."""
    if len(name) <= MAX_SCHEDULE_NAME_CHARS and (problem := schedule_name_problem(name)) is not None:
        raise UsageError(f"{name!r} {problem}")
    return check_job_id(name)


def occurrence_job_id(name: str, stamp: str) -> str:
    """Return the id of an occurrence's Job, equal on all machines; `stamp` is its minute in UTC, `20261201T0200Z`."""
    return f"{_prefix(name)}{stamp}"


def is_job_of(name: str, job_id: str) -> bool:
    """Return whether a Job belongs to a schedule, judging by its id."""
    return job_id.startswith(_prefix(name))


def _prefix(name: str) -> str:
    return f"schedule-{name}-"


def damaged_schedule(name: str, schedule_state: ScheduleState | None, damage: str) -> ScheduleState:
    """Return the state of a schedule with an unreadable log: its last readable state, marked as damaged."""
    state = schedule_state or ScheduleState(name=name, version=0, lines={}, updated_at=0)
    return state.model_copy(update={"damaged": True, "error": damage})


class _Changes(TypedDict, total=False):
    version: int
    lines: dict[str, int]
    current: Occurrence | None
    waiting: int | None
    last: Occurrence | None
    skipped: int
    updated_at: int


def evolve_schedule(schedule_state: ScheduleState | None, event: StoredScheduleEvent) -> ScheduleState:
    """Return the state after one more event (None before the first). Raises IllegalEvent if it cannot follow."""
    if schedule_state is None:
        if not isinstance(event, SetSchedule):
            raise IllegalEvent("the first event is not setSchedule")
        lines = {event.line: event.timestamp}
        return ScheduleState(name=event.schedule, version=1, lines=lines, updated_at=event.timestamp)
    if event.schedule != schedule_state.name:
        raise IllegalEvent(f"{event.type} is of schedule {event.schedule}, in the log of {schedule_state.name}")
    if not isinstance(event, SetSchedule):
        check_follows(TRANSITIONS, event.type, f"schedule {schedule_state.name}", schedule_state.place)
    common = _Changes(version=schedule_state.version + 1, updated_at=event.timestamp)
    return schedule_state.model_copy(update=_changes(schedule_state, event) | common)


def _changes(schedule_state: ScheduleState, event: StoredScheduleEvent) -> _Changes:
    match event:
        case SetSchedule():
            if event.line in schedule_state.lines:
                raise IllegalEvent(f"a second setSchedule of {event.line}")
            # a clock that was set back must not reopen what another line's occurrences decided
            return _Changes(
                lines={**schedule_state.lines, event.line: max(event.timestamp, *schedule_state.lines.values())}
            )
        case StartOccurrence():
            return _apply_start(schedule_state, event)
        case SkipOccurrence():
            _require_current(schedule_state, event)
            return _Changes(skipped=event.at, lines=_mark_decided(schedule_state, event))
        case QueueOccurrence():
            _require_current(schedule_state, event)
            return _Changes(waiting=event.at, lines=_mark_decided(schedule_state, event))
        case BeginOccurrence():
            return _Changes(current=_require_current(schedule_state, event).model_copy(update={"begun": True}))
        case FinishOccurrence():
            finished = _require_current(schedule_state, event).model_copy(
                update={"begun": True, "outcome": event.outcome}
            )
            return _Changes(current=None, last=finished)
    assert_never(event)


def _apply_start(schedule_state: ScheduleState, start_occurrence: StartOccurrence) -> _Changes:
    if not is_job_of(schedule_state.name, start_occurrence.job_id):
        raise IllegalEvent(f"startOccurrence names Job {start_occurrence.job_id}, which cannot be one of this schedule")
    started = Occurrence(at=start_occurrence.at, job_id=start_occurrence.job_id, decided_at=start_occurrence.timestamp)
    previous = schedule_state.current or schedule_state.last
    if start_occurrence.at == schedule_state.waiting:
        return _Changes(current=started, waiting=None, last=previous)
    if schedule_state.waiting is not None:
        raise IllegalEvent(f"startOccurrence is of {start_occurrence.at}, but {schedule_state.waiting} waits")
    return _Changes(current=started, last=previous, lines=_mark_decided(schedule_state, start_occurrence))


def _mark_decided(
    schedule_state: ScheduleState, event: StartOccurrence | SkipOccurrence | QueueOccurrence
) -> dict[str, int]:
    """Mark everything up to this occurrence as decided, for every line. Raises IllegalEvent if it was already."""
    if event.at <= min(schedule_state.lines.values()):
        raise IllegalEvent(f"{event.type} is of {event.at}, which was decided before")
    return {line: max(decided_until, event.at) for line, decided_until in schedule_state.lines.items()}


def _require_current(
    schedule_state: ScheduleState, event: SkipOccurrence | QueueOccurrence | BeginOccurrence | FinishOccurrence
) -> Occurrence:
    """Return the current occurrence. Raises IllegalEvent if the event names another one."""
    if schedule_state.current is None or schedule_state.current.job_id != event.job_id:
        raise IllegalEvent(f"{event.type} is about Job {event.job_id}, which is not the current one")
    return schedule_state.current
