"""Places in the log of a Run, found without reading all of it.

A place is the number of an event in its Run's log, from 1. A jump to a step is a binary search, since the steps of a
log never decrease; so its cost hardly depends on the length of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perstack.core.base.chain import BrokenSeal, Head, open_line, read_remains
from perstack.core.base.ids import place_of
from perstack.doors.shared.log_view import entries_of
from perstack.engine.log.event_log import InvalidEvent, StoredLine
from perstack.engine.log.run_log import RunLog, event_of
from perstack.errors import UsageError
from perstack.ports.storage import RunRef, Storage

if TYPE_CHECKING:
    from perstack.core.runs.events import StoredEvent

_PROBE_LINES = 8  # lines read at once to find a step: a redacted line does not name its step
_MAX_LATER_EVENTS = 200  # maximum events that may have been appended since job.json was written


async def seq_of_step(storage: Storage, ref: RunRef, head_seq: int, step: int) -> int | None:
    """Return the place of the first event of a step, among the first `head_seq`; None if the log has no such step."""
    low, high = 1, head_seq + 1
    while low < high:
        middle = (low + high) // 2
        step_in_middle = await _step_at(storage, ref, middle)
        if step_in_middle is None or step_in_middle >= step:
            high = middle
        else:
            low = middle + 1
    return low if low <= head_seq and await _step_at(storage, ref, low) == step else None


async def _step_at(storage: Storage, ref: RunRef, seq: int) -> int | None:
    """Return the step of the event at a place, or of the next event that names its step; None without one."""
    while lines := await storage.read(ref, after=seq - 1, limit=_PROBE_LINES):
        first = entries_of(RunLog(ref.run_id, lines))[0]
        if first.timestamp:
            return first.step
        seq += len(lines)
    return None


async def last_events(storage: Storage, ref: RunRef, head_seq: int, count: int) -> list[StoredLine[StoredEvent]] | None:
    """Return the last `count` events up to place `head_seq`, read from the end of the log; None if they are not there.

    Earlier events are not verified here: the page then follows the log, which verifies all of it.
    """
    lines = await storage.end(ref, min(count, head_seq) + _MAX_LATER_EVENTS)
    try:
        last = place_of(event_of_line(lines[-1]).id)[2] if lines else 0
        first = last - len(lines) + 1
        wanted = range(max(1, head_seq - count + 1), head_seq + 1)
        if not lines or first > wanted.start or last < head_seq:
            return None
        events: list[StoredLine[StoredEvent]] = []
        for seq in wanted:
            sealed = open_line(lines[seq - first])
            if read_remains(sealed.payload) is not None:
                return None  # a redacted event can only be read together with the events before it
            event = event_of(ref, seq, sealed.payload)
            events.append(StoredLine(Head(seq, sealed.hash), event, lines[seq - first]))
    except (BrokenSeal, InvalidEvent, UsageError, ValueError):
        return None
    return events


def event_of_line(line: bytes) -> StoredEvent:
    """Return the event of a line. Raises ValueError if this version does not know its shape."""
    from perstack.core.runs.events import parse_event

    return parse_event(open_line(line).payload)
