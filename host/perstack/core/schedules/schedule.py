"""How a fact changes a schedule."""

from __future__ import annotations

from typing import TypedDict, assert_never

from perstack.core.schedules.events import (
    BeginOccurrence,
    FinishOccurrence,
    QueueOccurrence,
    SetSchedule,
    SkipOccurrence,
    StartOccurrence,
    StoredScheduleEvent,
)
from perstack.core.schedules.state import TRANSITIONS, Occurrence, ScheduleState, is_job_of
from perstack.core.transitions import IllegalFact, check_follows


class _Changes(TypedDict, total=False):
    version: int
    lines: dict[str, int]
    current: Occurrence | None
    waiting: int | None
    last: Occurrence | None
    skipped: int
    updated_at: int


def evolve_schedule(state: ScheduleState | None, event: StoredScheduleEvent) -> ScheduleState:
    """The state after one more fact; None is before the first. Raises IllegalFact for one that cannot follow."""
    if state is None:
        if not isinstance(event, SetSchedule):
            raise IllegalFact("the first is not setSchedule")
        lines = {event.line: event.timestamp}
        return ScheduleState(name=event.schedule, version=1, lines=lines, updated_at=event.timestamp)
    if event.schedule != state.name:
        raise IllegalFact(f"{event.type} is of schedule {event.schedule}, in the log of {state.name}")
    if not isinstance(event, SetSchedule):
        check_follows(TRANSITIONS, event.type, f"schedule {state.name}", state.place)
    common = _Changes(version=state.version + 1, updated_at=event.timestamp)
    return state.model_copy(update=_changes(state, event) | common)


def _changes(state: ScheduleState, event: StoredScheduleEvent) -> _Changes:
    match event:
        case SetSchedule():
            if event.line in state.lines:
                raise IllegalFact(f"a second setSchedule of {event.line}")
            # a clock that has gone back must not bring back what was decided by another line
            return _Changes(lines={**state.lines, event.line: max(event.timestamp, *state.lines.values())})
        case StartOccurrence():
            return _started(state, event)
        case SkipOccurrence():
            _own(state, event)
            return _Changes(skipped=event.at, lines=_decided(state, event))
        case QueueOccurrence():
            _own(state, event)
            return _Changes(waiting=event.at, lines=_decided(state, event))
        case BeginOccurrence():
            return _Changes(current=_own(state, event).model_copy(update={"begun": True}))
        case FinishOccurrence():
            ended = _own(state, event).model_copy(update={"begun": True, "outcome": event.outcome})
            return _Changes(current=None, last=ended)
    assert_never(event)


def _started(state: ScheduleState, event: StartOccurrence) -> _Changes:
    if not is_job_of(state.name, event.job_id):
        raise IllegalFact(f"startOccurrence names Job {event.job_id}, which cannot be one of this schedule")
    begun = Occurrence(at=event.at, job_id=event.job_id, decided_at=event.timestamp)
    before = state.current or state.last
    if event.at == state.waiting:
        return _Changes(current=begun, waiting=None, last=before)
    if state.waiting is not None:
        raise IllegalFact(f"startOccurrence is of {event.at}, and {state.waiting} waits")
    return _Changes(current=begun, last=before, lines=_decided(state, event))


def _decided(state: ScheduleState, event: StartOccurrence | SkipOccurrence | QueueOccurrence) -> dict[str, int]:
    """All up to this one is decided, whichever line names it. What was decided cannot be decided once more."""
    if event.at <= min(state.lines.values()):
        raise IllegalFact(f"{event.type} is of {event.at}, which was decided before")
    return {line: max(through, event.at) for line, through in state.lines.items()}


def _own(
    state: ScheduleState, event: SkipOccurrence | QueueOccurrence | BeginOccurrence | FinishOccurrence
) -> Occurrence:
    """The occurrence at work, which the fact must be about."""
    if state.current is None or state.current.job_id != event.job_id:
        raise IllegalFact(f"{event.type} is about Job {event.job_id}, which is not at work")
    return state.current
