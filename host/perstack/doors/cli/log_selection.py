"""Select events of a Job by the options of `perstack log`, without parsing the others, and count them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, get_args

from perstack.core.base.records import JsonObject
from perstack.core.base.text import suggestion
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.tool_calls import CallDelegate
from perstack.dataclass import dataclass
from perstack.doors.shared.filter_expression import (
    FIELDS,
    Condition,
    parse_filter,
    types_named,
    unknown_fields,
)
from perstack.doors.shared.log_view import LogEntry, is_delegate, json_of, meets_condition, parse_line
from perstack.errors import UsageError

_T = TypeVar("_T")

_TOOL_CALL_ID = re.compile(rb'"toolCallId":"([^"\\]*)"')
_STEPS = re.compile(r"(?P<sign>>=|<=|>|<|)(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?")

TYPES: tuple[str, ...] = tuple(kind.model_fields["type"].default for kind in get_args(StoredEvent))
QUIET_TYPES = frozenset(kind.model_fields["type"].default for kind in get_args(StoredEvent) if kind.is_quiet)
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


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The selection of `perstack log`. Kinds add up; steps and a condition narrow them."""

    types: frozenset[str] = frozenset()
    errors: bool = False
    tools: bool = False
    delegations: bool = False
    steps: Callable[[int], bool] | None = None
    condition: Condition | None = None

    @property
    def names_no_kind(self) -> bool:
        return not (self.types or self.errors or self.tools or self.delegations)

    @property
    def is_empty(self) -> bool:
        """True if all events are selected."""
        return self.names_no_kind and self.steps is None and self.condition is None


def select(entries: Sequence[LogEntry], event_filter: EventFilter) -> list[LogEntry]:
    selected = entries
    if event_filter.steps is not None:
        selected = [entry for entry in selected if event_filter.steps(entry.step)]
    if not event_filter.names_no_kind:
        delegated = _delegated_calls(entries) if event_filter.delegations else frozenset[tuple[str, bytes]]()
        selected = [entry for entry in selected if _is_wanted(entry, event_filter, delegated)]
    if event_filter.condition is not None:
        selected = [entry for entry in selected if meets_condition(entry, event_filter.condition)]
    return list(selected)


def add_context(chosen: Sequence[LogEntry], every: Sequence[LogEntry], context: int, full: bool) -> list[LogEntry]:
    """Return the chosen events, and `context` events before and after each: visible ones, or with `full` any."""
    keys = {_key(entry) for entry in chosen}
    candidates = [entry for entry in every if _key(entry) in keys or visible_events((entry,), EventFilter(), full)]
    indexes: set[int] = set()
    for index, entry in enumerate(candidates):
        if _key(entry) in keys:
            indexes.update(range(max(0, index - context), min(len(candidates), index + context + 1)))
    return [candidates[index] for index in sorted(indexes)]


def _key(entry: LogEntry) -> tuple[str, int]:
    return entry.log.run_id, entry.place


def last_items(items: Sequence[_T], take: int, offset: int) -> list[_T]:
    """Return the last `take` items before the last `offset`; all of them if `take` is 0."""
    end = max(0, len(items) - offset)
    return list(items[max(0, end - take) if take else 0 : end])


def parse_types(texts: Iterable[str]) -> frozenset[str]:
    """Return the event types named in comma-separated lists, where the original's names count too.

    Raises UsageError for an unknown one.
    """
    try:
        return types_named(texts, TYPES)
    except ValueError as error:
        raise UsageError(f"--type {error}: no such event type; available: {', '.join(TYPES)}") from error


def parse_condition(text: str | None) -> Condition | None:
    """Return the condition of --filter; None without text. Raises UsageError."""
    if text is None:
        return None
    try:
        condition = parse_filter(text)
    except ValueError as error:
        raise UsageError(f"""--filter: {error}; write it as '.type == "callTools" && .stepNumber > 5'""") from error
    for name in unknown_fields(condition):
        raise UsageError(
            f"--filter: no event has a field .{name}{suggestion(f'.{name}', (f'.{each}' for each in FIELDS))}"
        )
    return condition


def parse_steps(text: str | None) -> Callable[[int], bool] | None:
    """Return `5`, `>5`, `<5`, `>=5`, `<=5` or `1-10` as a predicate; None without text. Raises UsageError."""
    if text is None:
        return None
    parsed = _STEPS.fullmatch(text.replace(" ", ""))
    if parsed is None or (parsed["sign"] and parsed["last"]):
        raise UsageError(f'--step {text}: write it as 5, ">5", "<5", ">=5", "<=5" or 1-10')
    first = int(parsed["first"])
    match parsed["sign"]:
        case ">":
            return lambda step: step > first
        case ">=":
            return lambda step: step >= first
        case "<":
            return lambda step: step < first
        case "<=":
            return lambda step: step <= first
        case _:
            last = int(parsed["last"] or first)
            return lambda step: first <= step <= last


def _is_wanted(entry: LogEntry, event_filter: EventFilter, delegated: frozenset[tuple[str, bytes]]) -> bool:
    kind = entry.type
    return (
        kind in event_filter.types
        or (event_filter.tools and kind in TOOL_TYPES)
        or (event_filter.errors and _is_error(entry))
        or (event_filter.delegations and _is_delegation(entry, delegated))
    )


def _is_error(entry: LogEntry) -> bool:
    # in a text the quotes would be escaped, so this is the event's own key
    failed = entry.type == "finishToolCall" and b'"isError":true' in entry.line
    refused = entry.type == "adaptRequest" and b'"error":{' in entry.line
    return failed or refused or entry.type in ERROR_TYPES or _lacks_skills(entry)


def _lacks_skills(entry: LogEntry) -> bool:
    return entry.type == "startGeneration" and b'"unreachable":{' in entry.line


def _is_delegation(entry: LogEntry, delegated: frozenset[tuple[str, bytes]]) -> bool:
    if entry.type in DELEGATION_TYPES:
        return True
    if entry.type in ("startRun", "finishRun", "errorRun"):
        return is_delegate(entry.log)
    if entry.type != "finishToolCall":
        return False
    match = _TOOL_CALL_ID.search(entry.line)
    return match is not None and (entry.log.run_id, match[1]) in delegated


def _delegated_calls(entries: Iterable[LogEntry]) -> frozenset[tuple[str, bytes]]:
    """Return the calls that delegates answer, by Run and id: a failed delegate's result looks like a tool's."""
    return frozenset(
        (event.run_id, delegation.tool_call_id.encode())
        for entry in entries
        if entry.type == "callDelegate"
        for event in [_delegations(entry)]
        if event is not None
        for delegation in event.delegates
    )


def _delegations(entry: LogEntry) -> CallDelegate | None:
    try:
        event = parse_line(entry.line)
    except ValueError:
        return None
    return event if isinstance(event, CallDelegate) else None


def visible_events(entries: Sequence[LogEntry], event_filter: EventFilter, full: bool) -> list[LogEntry]:
    """Return the events, without position marks unless these were requested."""
    if full or not event_filter.names_no_kind or event_filter.condition is not None:
        return list(entries)
    return [entry for entry in entries if entry.type not in QUIET_TYPES or _lacks_skills(entry)]


def counts_of(entries: Sequence[LogEntry]) -> JsonObject:
    """Return the numbers of the events, of the errors, tool calls and delegations in them, and of each type."""
    steps = [entry.step for entry in entries if entry.step]
    return {
        "totalEvents": len(entries),
        "errorCount": sum(map(_is_error, entries)),
        "toolCallCount": sum(_length(entry, "calls") for entry in entries if entry.type == "callTools"),
        "delegationCount": sum(_length(entry, "delegates") for entry in entries if entry.type == "callDelegate"),
        **({"stepRange": {"min": min(steps), "max": max(steps)}} if steps else {}),
        "types": dict(Counter(entry.type for entry in entries).most_common()),
    }


def _length(entry: LogEntry, name: str) -> int:
    items = json_of(entry).get(name)
    return len(items) if isinstance(items, list) else 0
