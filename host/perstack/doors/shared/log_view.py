"""Events of a Job's logs, selected without parsing each; its checkpoints; and the drawn tree of its Runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from heapq import merge
from typing import NamedTuple, cast, get_args

from pydantic import JsonValue
from pydantic_core import from_json

from perstack.core.base.chain import BrokenSeal, open_line, read_remains
from perstack.core.base.ids import event_id_of
from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import DecidedCall
from perstack.core.jobs.summary import PlacedRun, RunOrigin
from perstack.core.messages.messages import ToolCallPart
from perstack.core.runs.commands import Call, with_arguments
from perstack.core.runs.events import StoredEvent, parse_event
from perstack.core.runs.events.changed_calls import ChangeCall, DecideChangedCall
from perstack.core.runs.events.files import StartRewind
from perstack.core.runs.events.generations import FinishGeneration
from perstack.core.runs.events.lifecycle import ResumeRun
from perstack.core.runs.events.questions import CallInteractiveTool, RequestApproval
from perstack.core.runs.events.tool_calls import CallTools
from perstack.core.runs.log_rows import EventContext, LogRow
from perstack.core.runs.open_questions import OpenQuestion
from perstack.core.runs.start import StartRun
from perstack.doors.shared.filter_expression import Condition, matches
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
        return self.log.lines[self.place]


class CheckpointRef(NamedTuple):
    """A checkpoint, found without parsing the event that makes it."""

    id: str
    expert: str
    entry: LogEntry

    @property
    def run_id(self) -> str:
        return self.entry.log.run_id

    @property
    def type(self) -> str:
        return self.entry.type

    @property
    def asks(self) -> bool:
        """True if the user was asked something at this checkpoint."""
        return self.type == "stopRunByInteractiveTool"


class StepCheckpoints(NamedTuple):
    """The checkpoints that a Run made in one step, in order: where it asked or waited, and where the step ended."""

    places: tuple[CheckpointRef, ...]

    @property
    def latest(self) -> CheckpointRef:
        return self.places[-1]

    @property
    def asked(self) -> CheckpointRef | None:
        """The last checkpoint at which the user was asked something; None without one."""
        return next((checkpoint_ref for checkpoint_ref in reversed(self.places) if checkpoint_ref.asks), None)

    @property
    def is_of_delegate(self) -> bool:
        """True if another Run started the Run."""
        return is_delegate(self.latest.entry.log)


def entries_of(log: RunLog) -> list[LogEntry]:
    """Return all events of one Run. A redacted event takes the time and step of its neighbour."""
    entries: list[LogEntry] = []
    unknown_count = 0
    for index, line in enumerate(log.lines):
        entry = _read_entry(log, index, line)
        if not entry.timestamp:
            entry = entry._replace(timestamp=entries[-1].timestamp, step=entries[-1].step) if entries else entry
        elif unknown_count == index:
            entries = [other._replace(timestamp=entry.timestamp, step=entry.step) for other in entries]
        unknown_count += not entry.timestamp
        entries.append(entry)
    return entries


def in_order(logs: Iterable[RunLog]) -> list[LogEntry]:
    """Return the events of several Runs by time. Events of one Run keep their order even if the clock was set back."""
    by_log = [entries_of(log) for log in logs]
    return by_log[0] if len(by_log) == 1 else list(merge(*by_log, key=lambda entry: entry.timestamp))


def places_in(log: RunLog) -> list[CheckpointRef]:
    """Return the checkpoints of one Run in order."""
    expert = expert_of(log)
    return [
        CheckpointRef(_place_id(entry), expert, entry) for entry in entries_of(log) if entry.type in CHECKPOINT_TYPES
    ]


def places_of(logs: Iterable[RunLog]) -> list[CheckpointRef]:
    """Return the checkpoints of several Runs, Run by Run."""
    return [checkpoint_ref for log in logs for checkpoint_ref in places_in(log)]


def steps_of(logs: Iterable[RunLog]) -> list[StepCheckpoints]:
    """Return the checkpoints of several Runs, Run by Run, those of a step together. A rewind stands alone."""
    steps: list[StepCheckpoints] = []
    for checkpoint_ref in places_of(logs):
        previous = steps[-1].latest if steps else None
        is_same = previous is not None and (previous.run_id, previous.entry.step) == (
            checkpoint_ref.run_id,
            checkpoint_ref.entry.step,
        )
        if previous is not None and is_same and "startRewind" not in (previous.type, checkpoint_ref.type):
            steps[-1] = StepCheckpoints((*steps[-1].places, checkpoint_ref))
        else:
            steps.append(StepCheckpoints((checkpoint_ref,)))
    return steps


def _place_id(entry: LogEntry) -> str:
    # event types in which no text from outside precedes the id, so that it can be found without parsing
    match = None if entry.type == "startRewind" else _CHECKPOINT.search(entry.line)
    return match[1].decode() if match else event_id_of(entry.log.run_id, entry.place + 1)


def parse_line(line: bytes) -> StoredEvent:
    """Return the event of a line. Raises ValueError if this version does not know its shape."""
    return parse_event(open_line(line).payload)


def expert_of(log: RunLog) -> str:
    """Return the key of the Run's Expert; empty if unknown."""
    match = _BEGINNING.match(log.lines[0]) if log.lines else None
    return (match[3] or b"").decode() if match else ""


def is_delegate(log: RunLog) -> bool:
    """Return whether another Run started this one."""
    return bool(log.lines) and b',"delegatedBy":{"expertKey":' in log.lines[0]


def _read_entry(log: RunLog, index: int, line: bytes) -> LogEntry:
    match = _BEGINNING.match(line)
    if match is None:
        return _parse_entry(log, index, line)
    return LogEntry(int(match[2]), match[1].decode(), int(match[4] or 0), index, log)


def _parse_entry(log: RunLog, index: int, line: bytes) -> LogEntry:
    """Return the entry of a line that this version did not write, with the fields that the line has."""
    try:
        parsed: JsonValue = json.loads(line)
    except ValueError:
        parsed = None
    fields = parsed if isinstance(parsed, dict) else {}

    def number(name: str) -> int:
        value = fields.get(name)
        return value if isinstance(value, int) else 0

    return LogEntry(number("timestamp"), str(fields.get("type", "")), number("stepNumber"), index, log)


# Rows of an event's line, even if this version cannot parse it.

_QUESTIONS = (b'{"type":"callInteractiveTool"', b'{"type":"requestApproval"')
_CALLS = tuple(
    b'{"type":"' + kind for kind in (b'callTools"', b'finishGeneration"', b'changeCall"', b'decideChangedCall"')
)
_MAX_EVENTS_BETWEEN = 5  # maximum events between a question and the stop it causes


def rows_of(entry: LogEntry, context: EventContext) -> list[LogRow]:
    try:
        return parse_line(entry.line).describe(context)
    except ValueError:
        if _is_redacted(entry.line):
            return [LogRow("redacted", f"{entry.type}: its content was redacted", "dim")]
        # an event of a newer version: show its bytes rather than nothing
        return [LogRow(entry.type or "?", entry.line.decode(errors="replace"), "dim")]


def _is_redacted(line: bytes) -> bool:
    try:
        return read_remains(open_line(line).payload) is not None
    except BrokenSeal:
        return False


def question_at(checkpoint_ref: CheckpointRef) -> str:
    """Return the question to the user at a checkpoint; empty if it cannot be parsed or a delegate asked it."""
    event = _question_event_at(checkpoint_ref)
    rows = [] if event is None else event.describe(EventContext({}, minute))
    return rows[0].text if rows else ""


def open_question_at(checkpoint_ref: CheckpointRef) -> OpenQuestion | None:
    """Return the open question at a checkpoint, with its author and the form of its answer; None without one."""
    match _question_event_at(checkpoint_ref):
        case CallInteractiveTool() as event:
            return event.open_question
        case RequestApproval() as event:
            call, start = _call_before(checkpoint_ref.entry, event.tool_call_id), _first_event(checkpoint_ref.entry.log)
            return event.question(call, start.expert) if call is not None and isinstance(start, StartRun) else None
        case _:
            return None


def _first_event(log: RunLog) -> StoredEvent | None:
    try:
        return parse_line(log.lines[0])
    except ValueError:
        return None


def _call_before(entry: LogEntry, call_id: str) -> Call | None:
    """Return a call of the reply before this event, with its decision; None if the Run's log does not have it."""
    decision: DecidedCall | None = None
    args: JsonObject | None = None
    for index in range(entry.place - 1, -1, -1):
        line = entry.log.lines[index]
        if not line.startswith(_CALLS):
            continue
        event = parse_line(line)
        if isinstance(event, DecideChangedCall) and event.tool_call_id == call_id:
            decision = decision or event.decided
        elif isinstance(event, ChangeCall) and event.tool_call_id == call_id:
            args = event.args if args is None and decision is not None else args
        elif isinstance(event, CallTools):
            decision = decision or next(
                (decided_call for decided_call in event.calls if decided_call.id == call_id), None
            )
        elif isinstance(event, FinishGeneration):
            part = next((part for part in event.message.tool_calls if part.tool_call_id == call_id), None)
            if part is None or decision is None:
                return None
            return Call(part if args is None else with_arguments(part, args), decision)
    return None


def _question_event_at(checkpoint_ref: CheckpointRef) -> StoredEvent | None:
    log = checkpoint_ref.entry.log
    for index in range(checkpoint_ref.entry.place - 1, max(-1, checkpoint_ref.entry.place - _MAX_EVENTS_BETWEEN), -1):
        if log.lines[index].startswith(_QUESTIONS):
            try:
                return parse_line(log.lines[index])
            except ValueError:
                return None
    return None


def calls_of_last_reply(entry: LogEntry) -> dict[str, ToolCallPart]:
    """Return the calls of the last reply before this event."""
    for index in range(entry.place - 1, max(-1, entry.place - 5), -1):
        try:
            event = parse_line(entry.log.lines[index])
        except ValueError:
            continue
        if isinstance(event, FinishGeneration):
            return {part.tool_call_id: part for part in event.message.tool_calls}
    return {}


# Events that an expression selects.


def meets_condition(entry: LogEntry, condition: Condition) -> bool:
    """Return whether the condition holds for an event."""
    args = {}
    if entry.type == "callTools":
        args = {call_id: part.args for call_id, part in calls_of_last_reply(entry).items()}
    return matches(condition, json_of(entry), args)


def json_of(entry: LogEntry) -> JsonObject:
    """Return the fields of an event, even if this version does not know it."""
    try:
        fields: object = from_json(entry.line)
    except ValueError:
        fields = None
    return cast("JsonObject", fields) if isinstance(fields, dict) else {"type": entry.type}


# The tree of a Job's Runs as it is drawn.

_MAX_LEVELS = 8  # maximum levels of the drawn tree; deeper Runs are drawn at the last level

_ORIGIN_PHRASES: dict[RunOrigin, str] = {
    "begun": "",
    "delegate": "called by {parent}",
    "continuation": "continues {at}",
    "branch": "branches at {at}",
    "answer": "answers again at {at}",
    "uncompacted": "goes back to {at}",
}


def origin_text(placed: PlacedRun) -> str:
    """Return how the Run was started; empty if the user started it."""
    return _ORIGIN_PHRASES[placed.how].format(parent=placed.parent or "a deleted Run", at=placed.at)


def branches(tree: Sequence[PlacedRun]) -> list[str]:
    """Return the line prefix of each Run."""
    prefixes: list[str] = []
    open_below: list[bool] = []  # for each level, True if another sibling follows further down
    for placed in reversed(tree):
        depth = min(placed.depth, _MAX_LEVELS)
        open_below += [False] * (depth + 1 - len(open_below))
        lines = "".join("│  " if open_below[level] else "   " for level in range(1, depth))
        prefixes.append(lines + ("├─ " if open_below[depth] else "└─ ") if depth else "")
        open_below = [*open_below[:depth], True]
    return prefixes[::-1]
