"""Events of a Job's logs, selected without parsing each; its checkpoints; and the tree of its Runs as it is drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from heapq import merge
from typing import NamedTuple, get_args

from pydantic import JsonValue

from perstack.core.base.chain import BrokenSeal, open_line, read_remains
from perstack.core.base.ids import event_id_of
from perstack.core.jobs.summary import PlacedRun, RunOrigin
from perstack.core.runs.events import (
    CallInteractiveTool,
    FinishGeneration,
    RequestApproval,
    ResumeRun,
    StartRewind,
    StoredEvent,
    parse_event,
)
from perstack.core.runs.log_rows import EventContext, LogRow
from perstack.core.runs.messages import ToolCallPart
from perstack.core.runs.questions import OpenQuestion
from perstack.doors.shared.text import minute
from perstack.engine.log.run_log import RunLog

# Every event's JSON begins with these keys in this order, so most lines can be selected without parsing.
_BEGINNING = re.compile(
    rb'\{"type":"(\w+)","id":"[^"\\]*","timestamp":(\d+),"jobId":"[^"\\]*","runId":"[^"\\]*"'
    rb'(?:,"expertKey":"([^"\\]*)","stepNumber":(\d+))?'
)
_CHECKPOINT = re.compile(rb'"checkpointId":"([A-Za-z0-9_-]+)"')

# Event types that a Run can return to: events that make a checkpoint, and the start of a rewind.
CHECKPOINT_TYPES: frozenset[str] = frozenset(
    kind.model_fields["type"].default
    for kind in get_args(StoredEvent)
    if kind is StartRewind or ("checkpoint_id" in kind.model_fields and kind is not ResumeRun)
)


class LogEntry(NamedTuple):
    """An event's line and the fields known without parsing it."""

    timestamp: int
    type: str
    step: int
    place: int  # its index in the log of its Run
    log: RunLog

    @property
    def line(self) -> bytes:
        """The event's line."""
        return self.log.lines[self.place]


class CheckpointRef(NamedTuple):
    """A checkpoint, found without parsing the event that makes it."""

    id: str
    expert: str
    entry: LogEntry

    @property
    def run_id(self) -> str:
        """The Run of the checkpoint."""
        return self.entry.log.run_id

    @property
    def type(self) -> str:
        """The type of the event that made it."""
        return self.entry.type

    @property
    def asks(self) -> bool:
        """True if the user was asked something there."""
        return self.type == "stopRunByInteractiveTool"


class StepCheckpoints(NamedTuple):
    """The checkpoints that a Run made in one step, in order: where it asked or waited, and where the step ended."""

    places: tuple[CheckpointRef, ...]

    @property
    def latest(self) -> CheckpointRef:
        """The checkpoint that the step left."""
        return self.places[-1]

    @property
    def asked(self) -> CheckpointRef | None:
        """The last one at which the user was asked something; None without one."""
        return next((place for place in reversed(self.places) if place.asks), None)

    @property
    def is_of_delegate(self) -> bool:
        """True if another Run started the Run."""
        return is_delegate(self.latest.entry.log)


def entries_of(log: RunLog) -> list[LogEntry]:
    """Return all events of one Run. A redacted event takes the time and step of its neighbour."""
    found: list[LogEntry] = []
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


def in_order(logs: Iterable[RunLog]) -> list[LogEntry]:
    """Return the events of several Runs by time. Events of one Run keep their order even if the clock was set back."""
    each = [entries_of(log) for log in logs]
    return each[0] if len(each) == 1 else list(merge(*each, key=lambda entry: entry.timestamp))


def places_in(log: RunLog) -> list[CheckpointRef]:
    """Return the checkpoints of one Run in order."""
    expert = expert_of(log)
    return [
        CheckpointRef(_place_id(entry), expert, entry) for entry in entries_of(log) if entry.type in CHECKPOINT_TYPES
    ]


def places_of(logs: Iterable[RunLog]) -> list[CheckpointRef]:
    """Return the checkpoints of several Runs, Run by Run."""
    return [place for log in logs for place in places_in(log)]


def steps_of(logs: Iterable[RunLog]) -> list[StepCheckpoints]:
    """Return the checkpoints of several Runs, Run by Run, those of a step together. A rewind stands alone."""
    found: list[StepCheckpoints] = []
    for place in places_of(logs):
        before = found[-1].latest if found else None
        is_same = before is not None and (before.run_id, before.entry.step) == (place.run_id, place.entry.step)
        if before is not None and is_same and "startRewind" not in (before.type, place.type):
            found[-1] = StepCheckpoints((*found[-1].places, place))
        else:
            found.append(StepCheckpoints((place,)))
    return found


def _place_id(entry: LogEntry) -> str:
    # in these event types, no text from outside precedes the id
    found = None if entry.type == "startRewind" else _CHECKPOINT.search(entry.line)
    return found[1].decode() if found else event_id_of(entry.log.run_id, entry.place + 1)


def parse_line(line: bytes) -> StoredEvent:
    """Return the event of a line. Raises ValueError if this version does not know its shape."""
    return parse_event(open_line(line).payload)


def expert_of(log: RunLog) -> str:
    """Return the key of the Run's Expert; empty if unknown."""
    found = _BEGINNING.match(log.lines[0]) if log.lines else None
    return (found[3] or b"").decode() if found else ""


def is_delegate(log: RunLog) -> bool:
    """Return whether another Run started this one."""
    return bool(log.lines) and b',"delegatedBy":{"expertKey":' in log.lines[0]


def _entry(log: RunLog, place: int, line: bytes) -> LogEntry:
    found = _BEGINNING.match(line)
    if found is None:
        return _parsed_entry(log, place, line)
    return LogEntry(int(found[2]), found[1].decode(), int(found[4] or 0), place, log)


def _parsed_entry(log: RunLog, place: int, line: bytes) -> LogEntry:
    """Return the entry of a line that does not begin as this version writes it, with the fields it has."""
    try:
        found: JsonValue = json.loads(line)
    except ValueError:
        found = None
    fields = found if isinstance(found, dict) else {}

    def number(name: str) -> int:
        value = fields.get(name)
        return value if isinstance(value, int) else 0

    return LogEntry(number("timestamp"), str(fields.get("type", "")), number("stepNumber"), place, log)


# Rows of an event's line, also if this version cannot parse it.

_QUESTIONS = (b'{"type":"callInteractiveTool"', b'{"type":"requestApproval"')
_MAX_EVENTS_BETWEEN = 5  # maximum events between a question and the stop it causes


def rows_of(entry: LogEntry, context: EventContext) -> list[LogRow]:
    """Return the rows of one event."""
    try:
        return parse_line(entry.line).describe(context)
    except ValueError:
        if _is_taken_out(entry.line):
            return [LogRow("redacted", f"{entry.type}: its content was taken out", "dim")]
        # an event of a newer version: show its bytes rather than nothing
        return [LogRow(entry.type or "?", entry.line.decode(errors="replace"), "dim")]


def _is_taken_out(line: bytes) -> bool:
    try:
        return read_remains(open_line(line).payload) is not None
    except BrokenSeal:
        return False


def question_at(checkpoint: CheckpointRef) -> str:
    """Return the question to the user at a checkpoint; empty if it cannot be parsed or a delegate asked it."""
    event = _asks_at(checkpoint)
    rows = [] if event is None else event.describe(EventContext({}, minute))
    return rows[0].text if rows else ""


def open_question_at(checkpoint: CheckpointRef) -> OpenQuestion | None:
    """Return the open question at a checkpoint, with who asked it and the form of its answer; None without one."""
    match _asks_at(checkpoint):
        case (CallInteractiveTool() | RequestApproval()) as event:
            return event.open_question
        case _:
            return None


def _asks_at(checkpoint: CheckpointRef) -> StoredEvent | None:
    log = checkpoint.entry.log
    for at in range(checkpoint.entry.place - 1, max(-1, checkpoint.entry.place - _MAX_EVENTS_BETWEEN), -1):
        if log.lines[at].startswith(_QUESTIONS):
            try:
                return parse_line(log.lines[at])
            except ValueError:
                return None
    return None


def calls_of_last_reply(entry: LogEntry) -> dict[str, ToolCallPart]:
    """Return the calls of the last reply before this event."""
    for place in range(entry.place - 1, max(-1, entry.place - 5), -1):
        try:
            event = parse_line(entry.log.lines[place])
        except ValueError:
            continue
        if isinstance(event, FinishGeneration):
            return {part.tool_call_id: part for part in event.message.tool_calls}
    return {}


# The tree of a Job's Runs as it is drawn.

_MAX_LEVELS = 8  # number of levels that are drawn; deeper Runs are drawn at the last

_WORDS: dict[RunOrigin, str] = {
    "begun": "",
    "delegate": "called by {parent}",
    "continuation": "continues {at}",
    "branch": "branches at {at}",
    "answer": "answers again at {at}",
    "uncompacted": "goes back to {at}",
}


def origin_text(one: PlacedRun) -> str:
    """Return how the Run was started; empty if the user started it."""
    return _WORDS[one.how].format(parent=one.parent or "a Run that is gone", at=one.at)


def branches(tree: Sequence[PlacedRun]) -> list[str]:
    """Return the line prefix of each Run."""
    found: list[str] = []
    open_below: list[bool] = []  # by level: whether a sibling follows further down
    for one in reversed(tree):
        depth = min(one.depth, _MAX_LEVELS)
        open_below += [False] * (depth + 1 - len(open_below))
        lines = "".join("│  " if open_below[level] else "   " for level in range(1, depth))
        found.append(lines + ("├─ " if open_below[depth] else "└─ ") if depth else "")
        open_below = [*open_below[:depth], True]
    return found[::-1]
