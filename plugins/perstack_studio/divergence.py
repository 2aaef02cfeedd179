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

MAX_LINES = 400  # lines of one diff
_MAX_LINE_CHARS = 500
_EFFORT_STEPS = 2_000_000  # steps for comparing two texts: less than a second
_MAX_DEPTH = 20  # nesting of delegates

# fields of events that differ between any two courses: ids, times, digests of both, usage, and who acted
_ASIDE = frozenset(
    (
        *("id", "timestamp", "jobId", "runId", "stepNumber", "checkpointId", "callDigest", "delegate", "first"),
        *("by", "durationMs", "usage", "totalUsage", "assumed", "contextWindow", "unreported", "overReserved"),
        *("uncharged", "secrets", "through", "tokensBefore", "tokensAfter", "spent", "needed", "at"),
    )
)
_START = ("expertKey", "query", "attachments")  # fields of `startRun` that are part of the course


@dataclass(frozen=True, slots=True)
class Course:
    """The events of one side."""

    job_id: str
    events: Sequence[StoredEvent]  # of the Run and of those that it continues, in order
    delegates: Mapping[str, Sequence[StoredEvent]] = field(default_factory=dict[str, Sequence[StoredEvent]])
    is_cut: bool = False  # True if later events, or delegates, are left out


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first events that are not equal; None where one side has ended."""

    a: StoredEvent | None
    b: StoredEvent | None
    lines: tuple[tuple[str, str], ...]  # the difference of their contents, each line with its class

    @property
    def events(self) -> tuple[StoredEvent | None, StoredEvent | None]:
        return self.a, self.b


def first_divergence(a: Course, b: Course) -> Divergence | None:
    """Return the first place where two courses are not equal; None if they are."""
    return _divergence_in(a, b, a.events, b.events, 0)


def _divergence_in(
    a: Course, b: Course, events_a: Sequence[StoredEvent], events_b: Sequence[StoredEvent], depth: int
) -> Divergence | None:
    names_a, names_b = _Names(a.job_id), _Names(b.job_id)
    for event_a, event_b in zip_longest(_compared(events_a), _compared(events_b)):
        if depth < _MAX_DEPTH:
            below = [_delegate_of(course, event) for course, event in ((a, event_a), (b, event_b))]
            if below[0] is not None and below[1] is not None:
                deeper = _divergence_in(a, b, below[0], below[1], depth + 1)
                if deeper is not None:
                    return deeper
        if (event_a is None and a.is_cut) or (event_b is None and b.is_cut):
            return None  # it goes on after what is compared
        content_a, content_b = names_a.content(event_a), names_b.content(event_b)
        if content_a != content_b:
            return Divergence(event_a, event_b, diff_of_texts(_as_text(content_a), _as_text(content_b)))
    return None


def _delegate_of(course: Course, event: StoredEvent | None) -> Sequence[StoredEvent] | None:
    if not isinstance(event, FinishToolCall) or event.delegate is None:
        return None
    return course.delegates.get(event.delegate.run_id)


def _compared(events: Iterable[StoredEvent]) -> Iterator[StoredEvent]:
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
        yield from sorted(side_by_side, key=lambda one: order[getattr(one, "tool_call_id", "")])
        side_by_side.clear()
        yield event
    yield from sorted(side_by_side, key=lambda one: order[getattr(one, "tool_call_id", "")])


class _Names:
    """Names for the ids of one side, equal for ids that appear in the same order on the other."""

    def __init__(self, job_id: str) -> None:
        self._own = re.compile(rf"({re.escape(job_id)}-\d+)(-\d+[a-z-]*)?")
        self._names: dict[str, str] = {}

    def content(self, event: StoredEvent | None) -> JsonObject | None:
        """Return what is compared of an event."""
        if event is None:
            return None
        if isinstance(event, FinishGeneration):
            for part in event.reply:
                if isinstance(part, ToolCallPart):
                    self._name(part.tool_call_id, "call")
                elif isinstance(part, ProviderToolPart) and part.id:
                    self._name(part.id, "call")
        fields = cast("JsonObject", json.loads(event.to_json()))
        kept = {
            name: value
            for name, value in fields.items()
            if name not in _ASIDE and (name in (*_START, "type") or not isinstance(event, StartRun))
        }
        return {name: self._plain(value) for name, value in kept.items()}

    def _plain(self, value: JsonValue) -> JsonValue:
        match value:
            case str():
                own = self._own.fullmatch(value)
                if own is not None:
                    return "an event" if own[2] else self._name(own[1], "Run")
                return self._names.get(value, value)
            case list():
                return [self._plain(item) for item in value]
            case dict():
                is_part = "type" in value  # `opaque` of a part is only for its vendor
                return {
                    self._names.get(name, name): self._plain(item)
                    for name, item in value.items()
                    if not (is_part and name == "opaque")
                }
            case _:
                return value

    def _name(self, own_id: str, kind: str) -> str:
        return self._names.setdefault(own_id, f"{kind} {len(self._names) + 1}")


# The settings that two courses started with.


def start_differences(starts: tuple[StartRun, StartRun]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Return the name of each setting that differs, and the difference as lines with their classes."""
    aside = {*_ASIDE, *_START, "type", "instruction", "continuedFrom", "delegatedBy", "format"}
    settings_a, settings_b = (_settings(start, aside) for start in starts)
    return tuple(
        (name, diff_of_texts(_as_text(settings_a.get(name)), _as_text(settings_b.get(name))))
        for name in sorted({*settings_a, *settings_b})
        if settings_a.get(name) != settings_b.get(name)
    )


def _settings(start: StartRun, aside: set[str]) -> JsonObject:
    fields = cast("JsonObject", json.loads(start.to_json()))
    expert = fields.pop("expert", None)
    inner: JsonObject = expert if isinstance(expert, dict) else {}
    return {
        **{name: value for name, value in fields.items() if name not in aside},
        **{f"Expert: {name}": value for name, value in inner.items()},
    }


# Texts and their differences.


def _as_text(value: JsonValue) -> str:
    """Return a value as lines for people: texts as they are written, one line for each other leaf."""
    return "\n".join(_lines(value, "")) + "\n" if value is not None else ""


def _lines(value: JsonValue, indent: str) -> Iterator[str]:
    match value:
        case dict():
            for name, item in value.items():
                yield from _lines_of_item(f"{indent}{name}:", item, indent)
        case list():
            for item in value:
                yield from _lines_of_item(f"{indent}-", item, indent)
        case str():
            yield from (f"{indent}{line}" for line in value.split("\n"))
        case _:
            yield f"{indent}{json.dumps(value)}"


def _lines_of_item(head: str, item: JsonValue, indent: str) -> Iterator[str]:
    if isinstance(item, dict | list) or (isinstance(item, str) and "\n" in item):
        yield head
        yield from _lines(item, f"{indent}  ")
    else:
        yield f"{head} {item if isinstance(item, str) else json.dumps(item)}"


def diff_of_texts(old: str, new: str) -> tuple[tuple[str, str], ...]:
    """Return the difference of two texts as lines with their classes, up to a limit."""
    sides = [split_lines(text.encode(errors="replace")) for text in (old, new)]
    found: list[tuple[str, str]] = []
    for hunk in line_diff(sides[0], sides[1], Effort(_EFFORT_STEPS)).hunks:
        found.append(("place", hunk.head))
        for sign, line in hunk.lines:
            text = line.decode(errors="replace").rstrip("\n")
            shown = text if len(text) <= _MAX_LINE_CHARS else f"{text[:_MAX_LINE_CHARS]} …"
            found.append(({"+": "add", "-": "remove"}.get(sign, ""), f"{sign}{shown}"))
        if len(found) > MAX_LINES:
            return (*found[:MAX_LINES], ("place", "… more lines differ"))
    return tuple(found)


def place_in_log(event: StoredEvent) -> int:
    """Return the place of an event in the log of its Run; 0 if its id does not name one."""
    return place_of(event.id)[2] if is_place(event.id) else 0
