"""The events of a Job's logs, as far as they are known without parsing them; and the checkpoints among them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from heapq import merge
from typing import NamedTuple, get_args

from pydantic import JsonValue

from perstack.core.chain import open_line
from perstack.core.events import ResumeRun, StartRewind, StoredEvent, parse_event
from perstack.core.ids import event_id_of
from perstack.engine.read import RunLog

# every event's JSON begins with these keys in this order, so most lines need not be parsed to be chosen from
_BEGINNING = re.compile(
    rb'\{"type":"(\w+)","id":"[^"\\]*","timestamp":(\d+),"jobId":"[^"\\]*","runId":"[^"\\]*"'
    rb'(?:,"expertKey":"([^"\\]*)","stepNumber":(\d+))?'
)
_CHECKPOINT = re.compile(rb'"checkpointId":"([A-Za-z0-9_-]+)"')

CHECKPOINT_TYPES: frozenset[str] = frozenset(
    kind.model_fields["type"].default
    for kind in get_args(StoredEvent)
    if kind is StartRewind or ("checkpoint_id" in kind.model_fields and kind is not ResumeRun)
)
"""The kinds of events that one can go back to: those that make a checkpoint, and the beginning of a rewind."""


class Entry(NamedTuple):
    """One event's line, and what is known of it without parsing it."""

    timestamp: int
    type: str
    step: int
    place: int
    """Its index in the log of its Run."""
    log: RunLog

    @property
    def line(self) -> bytes:
        return self.log.lines[self.place]


class Place(NamedTuple):
    """A checkpoint, found without parsing the event that makes it."""

    id: str
    expert: str
    entry: Entry

    @property
    def run_id(self) -> str:
        """The Run that it is of."""
        return self.entry.log.run_id

    @property
    def type(self) -> str:
        """The kind of event that makes it: why the Run stands there."""
        return self.entry.type

    @property
    def asks(self) -> bool:
        """Whether a person was asked something there."""
        return self.type == "stopRunByInteractiveTool"


def entries_of(log: RunLog) -> list[Entry]:
    """All events of one Run. One whose content was taken out has the time and the step of its neighbour."""
    found: list[Entry] = []
    unknown = 0
    for place, line in enumerate(log.lines):
        entry = _entry(log, place, line)
        if not entry.timestamp:
            entry = entry._replace(timestamp=found[-1].timestamp, step=found[-1].step) if found else entry
        elif unknown == place:
            found = [one._replace(timestamp=entry.timestamp, step=entry.step) for one in found]
        unknown += not entry.timestamp
        found.append(entry)
    return found


def in_order(logs: Iterable[RunLog]) -> list[Entry]:
    """The events of several Runs by time; each Run's keep their order even if the clock was set back."""
    each = [entries_of(log) for log in logs]
    return each[0] if len(each) == 1 else list(merge(*each, key=lambda entry: entry.timestamp))


def places_in(log: RunLog) -> list[Place]:
    """The checkpoints of one Run, in its order."""
    expert = expert_of(log)
    return [Place(_place_id(entry), expert, entry) for entry in entries_of(log) if entry.type in CHECKPOINT_TYPES]


def places_of(logs: Iterable[RunLog]) -> list[Place]:
    """The checkpoints of several Runs, Run by Run."""
    return [place for log in logs for place in places_in(log)]


def _place_id(entry: Entry) -> str:
    # in these kinds of events nothing that others write stands before it
    found = None if entry.type == "startRewind" else _CHECKPOINT.search(entry.line)
    return found[1].decode() if found else event_id_of(entry.log.run_id, entry.place + 1)


def parse_line(line: bytes) -> StoredEvent:
    """The event of a line. Raises ValueError if this version does not know its shape."""
    return parse_event(open_line(line).payload)


def expert_of(log: RunLog) -> str:
    """The key of the Expert whose Run this is."""
    found = _BEGINNING.match(log.lines[0]) if log.lines else None
    return (found[3] or b"").decode() if found else ""


def is_delegate(log: RunLog) -> bool:
    """Whether another Run started this one."""
    return bool(log.lines) and b',"delegatedBy":{"expertKey":' in log.lines[0]


def _entry(log: RunLog, place: int, line: bytes) -> Entry:
    found = _BEGINNING.match(line)
    if found is None:
        return _parsed_entry(log, place, line)
    return Entry(int(found[2]), found[1].decode(), int(found[4] or 0), place, log)


def _parsed_entry(log: RunLog, place: int, line: bytes) -> Entry:
    """For a line that this version would have written otherwise: what can be had of it."""
    try:
        found: JsonValue = json.loads(line)
    except ValueError:
        found = None
    fields = found if isinstance(found, dict) else {}

    def number(name: str) -> int:
        value = fields.get(name)
        return value if isinstance(value, int) else 0

    return Entry(number("timestamp"), str(fields.get("type", "")), number("stepNumber"), place, log)
