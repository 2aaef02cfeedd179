"""Selecting events of a Job without parsing the others, and printing them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast, get_args

from perstack.compaction.visibility import visibility_of
from perstack.core.base.ids import event_id_of
from perstack.core.base.records import JsonObject
from perstack.core.base.text import count, duration, suggestion
from perstack.core.definitions.job_status import JobStatus
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.tool_calls import CallDelegate
from perstack.core.runs.facts import WITHOUT_EFFECT
from perstack.core.runs.log_rows import EventContext, LogRow, run_label, tokens
from perstack.dataclass import dataclass
from perstack.doors.cli.live import RowPrinter
from perstack.doors.cli.terminal import print_err, print_out
from perstack.doors.shared.event_filter import FIELDS, Condition, parse_filter, types_named, unknown_fields
from perstack.doors.shared.log_view import (
    LogEntry,
    calls_of_last_reply,
    expert_of,
    fits,
    is_delegate,
    json_of,
    parse_line,
    rows_of,
)
from perstack.doors.shared.next_step_phrases import command
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.status_phrases import models_of, next_step_of_job, status_of
from perstack.doors.shared.text import age_text, local_time, minute
from perstack.engine.log.run_log import RunLog
from perstack.errors import UsageError
from perstack.host import Host
from perstack.system.clock import SYSTEM

# Signs next to events that the model no longer sees.

Marks = Mapping[tuple[str, int], str]  # signs by Run and index in its log

_MEANINGS = {
    "·": "· the model no longer sees this; its tool recallHistory finds it",
    "~": "~ the model sees only the beginning and end of this result",
    ">": "> matches the filter; the other events are its context",
}
_SHORTENED = (b'{"type":"compactHistory"', b'{"type":"shrinkResults"')


async def marks_of(host: Host, logs: Sequence[RunLog]) -> Marks:
    """Return the signs for these logs. Runs whose model sees everything are not folded."""
    marks: dict[tuple[str, int], str] = {}
    for log in logs:
        if not any(line.startswith(_SHORTENED) for line in log.lines):
            continue
        visibility = await visibility_of(host.jobs.storage, log.run_id)
        signs = dict.fromkeys(visibility.shortened, "~") | dict.fromkeys(visibility.hidden, "·")
        for index in range(len(log.lines)):
            sign = signs.get(event_id_of(log.run_id, index + 1))
            if sign is not None:
                marks[log.run_id, index] = sign
    return marks


def _legend(marks: Marks) -> Iterator[str]:
    used_signs = set(marks.values())
    return (meaning for sign, meaning in _MEANINGS.items() if sign in used_signs)


_T = TypeVar("_T")

_TOOL_CALL_ID = re.compile(rb'"toolCallId":"([^"\\]*)"')
_STEPS = re.compile(r"(?P<sign>>=|<=|>|<|)(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?")

TYPES: tuple[str, ...] = tuple(kind.model_fields["type"].default for kind in get_args(StoredEvent))

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
        selected = [entry for entry in selected if fits(entry, event_filter.condition)]
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
    """Return the event types named in comma-separated lists, also by the original's names.

    Raises UsageError for an unknown one.
    """
    try:
        return types_named(texts, TYPES)
    except ValueError as error:
        raise UsageError(f"--type {error}: no such event; there are: {', '.join(TYPES)}") from error


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


# The log for people: a summary, and one or more rows for each event.

_STATUS_COLOURS: dict[JobStatus, str] = {
    "running": "cyan",
    "completed": "green",
    "stoppedByInteractiveTool": "magenta",
    "stoppedByMaxSteps": "yellow",
    "stoppedByBudget": "yellow",
    "stoppedByInterrupt": "yellow",
    "stoppedByError": "red",
    "queued": "cyan",
}

_MAX_LISTED_RUNS = 6


class _PlacedRow(NamedTuple):
    entry: LogEntry
    label: str
    row: LogRow


def print_summary(screen: Screen, summary: JobSummary) -> None:
    """Print a Job's status and what to do next."""
    word, colour = status_of(summary), _STATUS_COLOURS[summary.status]
    took = "" if summary.status == "running" else f" {duration(summary.updated_at - summary.started_at)}"
    print_out(
        screen.styled(f"Job {summary.id}", bold=True),
        f"  {summary.expert_key or '?'}  ",
        screen.styled(word, fg=colour, bold=True),
        took and f" after{took}",
    )
    steps = f"{summary.total_steps:,} of at most {count(summary.max_steps, 'step')}" if summary.max_steps else ""
    for name, text in (
        ("query", summary.query),
        ("began", f"{local_time(summary.started_at):%Y-%m-%d %H:%M:%S}, {age_text(summary.started_at, SYSTEM.now())}"),
        ("model", models_of(summary)),
        ("spent", f"{steps or count(summary.total_steps, 'step')}, {tokens(summary.usage, summary.unpriced_tokens)}"),
        ("Runs", _runs(summary) if len(summary.runs) > 1 else ""),
        ("asks", summary.asks or ""),
        ("closed", _closing_line(summary)),
        ("budget", summary.exceeded or ""),
        ("error", summary.error or ""),
        ("result", summary.text or ""),
        ("check", WITHOUT_EFFECT if summary.without_effect else ""),
        ("next", _next_command(summary)),
    ):
        if text:
            print_out("  ", screen.styled(f"{name:<6}", dim=True), "  ", screen.fit(text, 10))


def _closing_line(summary: JobSummary) -> str:
    if summary.closed is None:
        return ""
    reason = f": {summary.closed.reason}" if summary.closed.reason else ""
    return f"for good by {summary.closed.by}, {local_time(summary.closed.at):%Y-%m-%d %H:%M}{reason}"


def print_events(
    rows: RowPrinter,
    entries: Sequence[LogEntry],
    every: Sequence[LogEntry],
    event_filter: EventFilter,
    full: bool,
    marks: Marks | None = None,
) -> None:
    """Print the events with their time, Run and step. `every` holds all events, to look up when a step began."""
    lines = [
        _PlacedRow(entry, run_label(expert_of(entry.log), entry.log.run_id), row)
        for entry, context in _with_contexts(entries, every, event_filter, full)
        for row in rows_of(entry, context)
    ]
    for run_id in sorted({entry.log.run_id for entry in every}, key=lambda run: (len(run), run)):
        rows.colour(run_id)
    rows.widen(line.label for line in lines)
    for line in lines:
        mark = (marks or {}).get((line.entry.log.run_id, line.entry.place), " ")
        rows.print(line.entry.timestamp, line.entry.log.run_id, line.label, line.entry.step, line.row, mark)
    for meaning in _legend(marks or {}):
        print_out(rows.screen.styled(meaning, dim=True))


def _with_contexts(
    entries: Sequence[LogEntry], every: Sequence[LogEntry], event_filter: EventFilter, full: bool
) -> list[tuple[LogEntry, EventContext]]:
    began = {
        (entry.log.run_id, entry.step): entry.timestamp for entry in reversed(every) if entry.type == "startGeneration"
    }
    result: list[tuple[LogEntry, EventContext]] = []
    for entry in entries:
        calls = calls_of_last_reply(entry) if entry.type == "callTools" else {}
        start = began.get((entry.log.run_id, entry.step))
        step_ms = entry.timestamp - start if start is not None and entry.type == "finishStep" else None
        # a quiet event has rows only in full
        is_found = event_filter.condition is not None and entry.type in _QUIET_TYPES
        result.append(
            (entry, EventContext(calls, minute, step_ms, full or is_found or entry.type in event_filter.types))
        )
    return result


_QUIET_TYPES = frozenset(kind.model_fields["type"].default for kind in get_args(StoredEvent) if kind.is_quiet)


def visible_events(entries: Sequence[LogEntry], event_filter: EventFilter, full: bool) -> list[LogEntry]:
    """Return the events, without position marks unless these were requested."""
    if full or not event_filter.names_no_kind or event_filter.condition is not None:
        return list(entries)
    return [entry for entry in entries if entry.type not in _QUIET_TYPES or _lacks_skills(entry)]


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


def print_counts(screen: Screen, counts: JsonObject) -> None:
    types = cast("dict[str, int]", counts["types"])
    names = (("errorCount", "error"), ("toolCallCount", "tool call"), ("delegationCount", "delegation"))
    totals = (count(cast("int", counts[name]), noun) for name, noun in names)
    print_out(screen.styled(f"{count(sum(types.values()), 'event')}: {', '.join(totals)}", bold=True))
    for kind, number in types.items():
        print_out(f"  {number:>6,}  {kind}")


def print_damage(logs: Sequence[RunLog]) -> bool:
    """Report damaged logs on stderr, and return whether any is damaged."""
    for log in logs:
        if log.damage is not None:
            print_err(f"damaged: {log.damage}")
    return any(log.damage is not None for log in logs)


def _runs(summary: JobSummary) -> str:
    if len(summary.runs) > _MAX_LISTED_RUNS:
        experts = Counter(run_summary.expert_key for run_summary in summary.runs)
        return f"{len(summary.runs)}: " + ", ".join(f"{number} {key}" for key, number in experts.items())
    return ", ".join(
        f"{run_label(run_summary.expert_key, run_summary.id)} {count(run_summary.steps, 'step')}"
        for run_summary in summary.runs
    )


def _next_command(summary: JobSummary) -> str:
    step = next_step_of_job(summary)
    return command(step) if step is not None and summary.status != "completed" else ""
