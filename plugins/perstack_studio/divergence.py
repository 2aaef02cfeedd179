"""Find the place where two courses of work stop being equal. Pure.

A course is what one Job, Run or branch did: the events of its Runs in order, from the first one on. Two events are
equal if their kind and content are, apart from ids, times, usage, and who acted. Events that only say how the work was
carried out (attempts, snapshots, takeovers) are not compared: they differ between any two courses. Nor are the settings
that a Run started with, which `start_differences` lists: a comparison of two models would end at the first event.

Results of calls that ran side by side are compared in the order of the calls. A delegate's Run is compared where its
result is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import zip_longest
from typing import cast

from pydantic import JsonValue

from perstack.core.base.ids import is_place, place_of
from perstack.core.base.records import JsonObject
from perstack.core.files.line_diff import Effort, line_diff, split_lines
from perstack.core.messages.messages import ProviderToolPart, ToolCallPart
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.generations import FinishGeneration
from perstack.core.runs.events.tool_calls import CallTools, FinishToolCall
from perstack.core.runs.start import StartRun
from perstack.dataclass import dataclass

MAX_LINES = 400  # maximum lines of one diff
_MAX_LINE_CHARS = 500
_EFFORT_STEPS = 2_000_000  # steps for comparing two texts: less than a second
_MAX_DEPTH = 20  # maximum nesting of delegates

# Fields that differ between any two courses: ids, times, digests of them, usage and authors.
_IGNORED = frozenset(
    (
        *("id", "timestamp", "jobId", "runId", "stepNumber", "checkpointId", "callDigest", "delegate", "first"),
        *("by", "durationMs", "usage", "totalUsage", "assumed", "contextWindow", "unreported", "overReserved"),
        *("uncharged", "secrets", "through", "tokensBefore", "tokensAfter", "spent", "needed", "at"),
    )
)
_START_FIELDS = ("expertKey", "query", "attachments")  # fields of `startRun` that are part of the course


@dataclass(frozen=True, slots=True)
class Course:
    """The events of one side."""

    job_id: str
    events: Sequence[StoredEvent]  # events of the Run and of the Runs that it continues, in order
    delegates: Mapping[str, Sequence[StoredEvent]] = field(default_factory=dict[str, Sequence[StoredEvent]])
    is_cut: bool = False  # True if later events or delegates were not read


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first events that are not equal; None where one side has ended."""

    a: StoredEvent | None
    b: StoredEvent | None
    lines: tuple[tuple[str, str], ...]  # CSS class and text of each line of the difference

    @property
    def events(self) -> tuple[StoredEvent | None, StoredEvent | None]:
        return self.a, self.b


def first_divergence(a: Course, b: Course) -> Divergence | None:
    """Return the first place where two courses are not equal; None if they are."""
    return _divergence_in(a, b, a.events, b.events, 0)


def _divergence_in(
    a: Course, b: Course, events_a: Sequence[StoredEvent], events_b: Sequence[StoredEvent], depth: int
) -> Divergence | None:
    names_a, names_b = _IdNames(a.job_id), _IdNames(b.job_id)
    for event_a, event_b in zip_longest(_comparable_events(events_a), _comparable_events(events_b)):
        if depth < _MAX_DEPTH:
            delegate_runs = [_delegate_events(course, event) for course, event in ((a, event_a), (b, event_b))]
            if delegate_runs[0] is not None and delegate_runs[1] is not None:
                inner_divergence = _divergence_in(a, b, delegate_runs[0], delegate_runs[1], depth + 1)
                if inner_divergence is not None:
                    return inner_divergence
        if (event_a is None and a.is_cut) or (event_b is None and b.is_cut):
            return None  # more events may follow that were not read
        content_a, content_b = names_a.content(event_a), names_b.content(event_b)
        if content_a != content_b:
            return Divergence(event_a, event_b, diff_of_texts(_value_text(content_a), _value_text(content_b)))
    return None


def _delegate_events(course: Course, event: StoredEvent | None) -> Sequence[StoredEvent] | None:
    if not isinstance(event, FinishToolCall) or event.delegate is None:
        return None
    return course.delegates.get(event.delegate.run_id)


def _comparable_events(events: Iterable[StoredEvent]) -> Iterator[StoredEvent]:
    """Yield the events that are compared; those of calls that ran side by side in the order of the calls."""
    order: dict[str, int] = {}
    side_by_side: list[StoredEvent] = []
    for event in events:
        if not event.is_progress or event.is_quiet or (isinstance(event, StartRun) and not event.query):
            continue
        if isinstance(event, CallTools):
            order = {decided.id: number for number, decided in enumerate(event.calls)}
        elif getattr(event, "tool_call_id", "") in order:
            side_by_side.append(event)
            continue
        yield from sorted(side_by_side, key=lambda waiting: order[getattr(waiting, "tool_call_id", "")])
        side_by_side.clear()
        yield event
    yield from sorted(side_by_side, key=lambda waiting: order[getattr(waiting, "tool_call_id", "")])


class _IdNames:
    """Names that replace the ids of one side: ids in the same order have the same name on both sides."""

    def __init__(self, job_id: str) -> None:
        self._id_pattern = re.compile(rf"({re.escape(job_id)}-\d+)(-\d+[a-z-]*)?")
        self._names: dict[str, str] = {}

    def content(self, event: StoredEvent | None) -> JsonObject | None:
        """Return the fields of an event that are compared, with names in place of ids; None without an event."""
        if event is None:
            return None
        if isinstance(event, FinishGeneration):
            for part in event.reply:
                if isinstance(part, ToolCallPart):
                    self._name_id(part.tool_call_id, "call")
                elif isinstance(part, ProviderToolPart) and part.id:
                    self._name_id(part.id, "call")
        fields = cast("JsonObject", json.loads(event.to_json()))
        compared = {
            name: value
            for name, value in fields.items()
            if name not in _IGNORED and (name in (*_START_FIELDS, "type") or not isinstance(event, StartRun))
        }
        return {name: self._replace_ids(value) for name, value in compared.items()}

    def _replace_ids(self, value: JsonValue) -> JsonValue:
        match value:
            case str():
                match = self._id_pattern.fullmatch(value)
                if match is not None:
                    return "an event" if match[2] else self._name_id(match[1], "Run")
                return self._names.get(value, value)
            case list():
                return [self._replace_ids(item) for item in value]
            case dict():
                is_part = "type" in value  # `opaque` of a part is only for its vendor
                return {
                    self._names.get(name, name): self._replace_ids(item)
                    for name, item in value.items()
                    if not (is_part and name == "opaque")
                }
            case _:
                return value

    def _name_id(self, own_id: str, kind: str) -> str:
        return self._names.setdefault(own_id, f"{kind} {len(self._names) + 1}")


# The settings that two courses started with.


def start_differences(starts: tuple[StartRun, StartRun]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Return the name of each setting that differs, with class and text of each line of the difference."""
    ignored = {*_IGNORED, *_START_FIELDS, "type", "instruction", "continuedFrom", "delegatedBy", "format"}
    settings_a, settings_b = (_settings(start, ignored) for start in starts)
    return tuple(
        (name, diff_of_texts(_value_text(settings_a.get(name)), _value_text(settings_b.get(name))))
        for name in sorted({*settings_a, *settings_b})
        if settings_a.get(name) != settings_b.get(name)
    )


def _settings(start: StartRun, ignored: set[str]) -> JsonObject:
    fields = cast("JsonObject", json.loads(start.to_json()))
    expert = fields.pop("expert", None)
    expert_fields: JsonObject = expert if isinstance(expert, dict) else {}
    return {
        **{name: value for name, value in fields.items() if name not in ignored},
        **{f"Expert: {name}": value for name, value in expert_fields.items()},
    }


# Texts and their differences.


def _value_text(value: JsonValue) -> str:
    """Return a value as lines for people: a text as it is written, any other leaf on one line."""
    return "\n".join(_value_lines(value, "")) + "\n" if value is not None else ""


def _value_lines(value: JsonValue, indent: str) -> Iterator[str]:
    match value:
        case dict():
            for name, item in value.items():
                yield from _item_lines(f"{indent}{name}:", item, indent)
        case list():
            for item in value:
                yield from _item_lines(f"{indent}-", item, indent)
        case str():
            yield from (f"{indent}{line}" for line in value.split("\n"))
        case _:
            yield f"{indent}{json.dumps(value)}"


def _item_lines(head: str, item: JsonValue, indent: str) -> Iterator[str]:
    if isinstance(item, dict | list) or (isinstance(item, str) and "\n" in item):
        yield head
        yield from _value_lines(item, f"{indent}  ")
    else:
        yield f"{head} {item if isinstance(item, str) else json.dumps(item)}"


def diff_of_texts(old: str, new: str) -> tuple[tuple[str, str], ...]:
    """Return class and text of each line of the difference of two texts, at most about `MAX_LINES`."""
    sides = [split_lines(text.encode(errors="replace")) for text in (old, new)]
    rows: list[tuple[str, str]] = []
    for hunk in line_diff(sides[0], sides[1], Effort(_EFFORT_STEPS)).hunks:
        rows.append(("place", hunk.head))
        for sign, line in hunk.lines:
            text = line.decode(errors="replace").rstrip("\n")
            shown = text if len(text) <= _MAX_LINE_CHARS else f"{text[:_MAX_LINE_CHARS]} …"
            rows.append(({"+": "add", "-": "remove"}.get(sign, ""), f"{sign}{shown}"))
        if len(rows) > MAX_LINES:
            return (*rows[:MAX_LINES], ("place", "… more lines differ"))
    return tuple(rows)


def place_in_log(event: StoredEvent) -> int:
    """Return the place of an event in the log of its Run; 0 if its id does not name one."""
    return place_of(event.id)[2] if is_place(event.id) else 0
