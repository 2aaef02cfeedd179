"""Whether the ids in an event say the place that it was read from. What is read is checked like what is typed."""

from __future__ import annotations

from collections.abc import Iterator

from perstack.core.events import CallDelegate, FinishToolCall, StartRun, StoredEvent
from perstack.core.ids import event_id_of


def is_at_home(event: StoredEvent, job_id: str, run_id: str, seq: int) -> bool:
    """Whether an event is that of place `seq` in the log of this Run, and names only Runs of this Job."""
    if event.id != event_id_of(run_id, seq) or event.run_id != run_id or event.job_id != job_id:
        return False
    return all(_is_run_of(other, job_id) for other in _named(event))


def _named(event: StoredEvent) -> Iterator[str]:
    """The other Runs that an event names."""
    if isinstance(event, StartRun):
        for place in (event.delegated_by, event.continued_from):
            if place is not None:
                yield place.run_id
    elif isinstance(event, CallDelegate):
        for delegation in event.delegates:
            yield delegation.run_id
    elif isinstance(event, FinishToolCall) and event.delegate is not None:
        yield event.delegate.run_id


def _is_run_of(run_id: str, job_id: str) -> bool:
    owner, separator, number = run_id.rpartition("-")
    return bool(separator) and owner == job_id and number.isdecimal() and number.isascii()
