"""Print the summary of a Job, its events, their counts and damaged logs, for `perstack log`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from perstack.compaction.visibility import visibility_of
from perstack.core.base.ids import event_id_of
from perstack.core.base.records import JsonObject
from perstack.core.base.text import count, duration
from perstack.core.definitions.job_status import JobStatus
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.facts import WITHOUT_EFFECT
from perstack.core.runs.log_rows import EventContext, LogRow, run_label, tokens
from perstack.doors.cli.live import RowPrinter
from perstack.doors.cli.log_selection import QUIET_TYPES, EventFilter
from perstack.doors.cli.terminal import print_err, print_out
from perstack.doors.shared.log_view import LogEntry, calls_of_last_reply, expert_of, rows_of
from perstack.doors.shared.next_step_phrases import command
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.status_phrases import models_of, next_step_of_job, status_of
from perstack.doors.shared.text import age_text, local_time, minute
from perstack.engine.log.run_log import RunLog
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
        is_found = event_filter.condition is not None and entry.type in QUIET_TYPES
        result.append(
            (entry, EventContext(calls, minute, step_ms, full or is_found or entry.type in event_filter.types))
        )
    return result


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
