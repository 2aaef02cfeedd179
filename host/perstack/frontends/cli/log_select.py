"""Which events of a Job are wanted, found without parsing those that are not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from typing import NamedTuple, TypeVar, get_args

from pydantic import JsonValue

from perstack.core.chain import open_line
from perstack.core.events import CallDelegate, StoredEvent, parse_event
from perstack.dataclass import dataclass
from perstack.engine.read import RunLog
from perstack.errors import UsageError

_T = TypeVar("_T")

# every event's JSON begins with these keys in this order, so most lines need not be parsed to be chosen from
_BEGINNING = re.compile(
    rb'\{"type":"(\w+)","id":"[^"\\]*","timestamp":(\d+),"jobId":"[^"\\]*","runId":"[^"\\]*"'
    rb'(?:,"expertKey":"([^"\\]*)","stepNumber":(\d+))?'
)
_TOOL_CALL_ID = re.compile(rb'"toolCallId":"([^"\\]*)"')
_STEPS = re.compile(r"(?P<sign>>=|<=|>|<|)(?P<first>\d+)(?:-(?P<last>\d+))?")

TYPES: tuple[str, ...] = tuple(kind.model_fields["type"].default for kind in get_args(StoredEvent))
"""Every kind of event that a log may have."""

TOOL_TYPES = frozenset(
    {
        "callTools",
        "finishToolCall",
        "attemptCompletion",
        "callInteractiveTool",
        "requestApproval",
        "decideApproval",
        "startToolCall",
        "startSample",
    }
)
ERROR_TYPES = frozenset({"errorRun", "retry"})
DELEGATION_TYPES = frozenset({"callDelegate", "stopRunByDelegate"})


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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `perstack log` was asked for. Kinds add up; steps narrow them."""

    types: frozenset[str] = frozenset()
    errors: bool = False
    tools: bool = False
    delegations: bool = False
    steps: Callable[[int], bool] | None = None

    @property
    def any_kind(self) -> bool:
        """Whether no kind of event was named."""
        return not (self.types or self.errors or self.tools or self.delegations)


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


def select(entries: Sequence[Entry], wanted: Wanted) -> list[Entry]:
    """Those that were asked for."""
    found = entries
    if wanted.steps is not None:
        found = [entry for entry in found if wanted.steps(entry.step)]
    if wanted.any_kind:
        return list(found)
    delegated = _delegated_calls(entries) if wanted.delegations else frozenset[tuple[str, bytes]]()
    return [entry for entry in found if _is_wanted(entry, wanted, delegated)]


def newest(items: Sequence[_T], take: int, offset: int) -> list[_T]:
    """The last `take` (0: all) before the last `offset`."""
    end = max(0, len(items) - offset)
    return list(items[max(0, end - take) if take else 0 : end])


def parse_types(texts: Iterable[str]) -> frozenset[str]:
    """The kinds named, separated by commas. Raises UsageError for one that does not exist."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TYPES:
            raise UsageError(f"--type {name}: no such event; there are: {', '.join(TYPES)}")
    return frozenset(names)


def parse_steps(text: str | None) -> Callable[[int], bool] | None:
    """`5`, `>5`, `<5`, `>=5`, `<=5` or `1-10` as a test. Raises UsageError."""
    if text is None:
        return None
    found = _STEPS.fullmatch(text.replace(" ", ""))
    if found is None or (found["sign"] and found["last"]):
        raise UsageError(f'--step {text}: write it as 5, ">5", "<5", ">=5", "<=5" or 1-10')
    first = int(found["first"])
    match found["sign"]:
        case ">":
            return lambda step: step > first
        case ">=":
            return lambda step: step >= first
        case "<":
            return lambda step: step < first
        case "<=":
            return lambda step: step <= first
        case _:
            last = int(found["last"] or first)
            return lambda step: first <= step <= last


def parse_line(line: bytes) -> StoredEvent:
    """The event of a line. Raises ValueError if this version does not know its shape."""
    return parse_event(open_line(line).payload)


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


def _is_wanted(entry: Entry, wanted: Wanted, delegated: frozenset[tuple[str, bytes]]) -> bool:
    kind = entry.type
    return (
        kind in wanted.types
        or (wanted.tools and kind in TOOL_TYPES)
        or (wanted.errors and _is_error(entry))
        or (wanted.delegations and _is_delegation(entry, delegated))
    )


def _is_error(entry: Entry) -> bool:
    # in a text the quotes would be escaped, so this is the event's own key
    failed = entry.type == "finishToolCall" and b'"isError":true' in entry.line
    return failed or entry.type in ERROR_TYPES or lacks_skills(entry)


def lacks_skills(entry: Entry) -> bool:
    """Whether it tells of skills that cannot be reached."""
    return entry.type == "startGeneration" and b'"unreachable":{' in entry.line


def _is_delegation(entry: Entry, delegated: frozenset[tuple[str, bytes]]) -> bool:
    if entry.type in DELEGATION_TYPES:
        return True
    if entry.type in ("startRun", "finishRun", "errorRun"):
        return is_delegate(entry.log)
    if entry.type != "finishToolCall":
        return False
    found = _TOOL_CALL_ID.search(entry.line)
    return found is not None and (entry.log.run_id, found[1]) in delegated


def expert_of(log: RunLog) -> str:
    """The key of the Expert whose Run this is."""
    found = _BEGINNING.match(log.lines[0]) if log.lines else None
    return (found[3] or b"").decode() if found else ""


def is_delegate(log: RunLog) -> bool:
    """Whether another Run started this one."""
    return bool(log.lines) and b',"delegatedBy":{"expertKey":' in log.lines[0]


def _delegated_calls(entries: Iterable[Entry]) -> frozenset[tuple[str, bytes]]:
    """The calls that delegates answer, for a failed one's result looks like any tool's."""
    return frozenset(
        (event.run_id, delegation.tool_call_id.encode())
        for entry in entries
        if entry.type == "callDelegate"
        for event in [_delegations(entry)]
        if event is not None
        for delegation in event.delegates
    )


def _delegations(entry: Entry) -> CallDelegate | None:
    try:
        event = parse_line(entry.line)
    except ValueError:
        return None
    return event if isinstance(event, CallDelegate) else None
