"""The log for people: a summary, and a line or a few for each event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from perstack.core.job import JobStatus, JobSummary
from perstack.engine.clock import SYSTEM
from perstack.engine.read import RunLog
from perstack.frontends.cli.log_marks import Marks, meanings
from perstack.frontends.cli.log_select import Wanted, lacks_skills
from perstack.frontends.cli.next_steps import command
from perstack.frontends.cli.row_printer import RowPrinter
from perstack.frontends.cli.terminal import Screen, err, out
from perstack.frontends.shared.entry_rows import calls_before, rows_of
from perstack.frontends.shared.following import after_job
from perstack.frontends.shared.log_entries import Entry, expert_of
from perstack.frontends.shared.log_rows import QUIET_TYPES, Around, Row, run_label, tokens
from perstack.frontends.shared.words import WITHOUT_EFFECT, ago, count, duration, local_time, status_of

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

_MOST_RUNS = 6


class _Line(NamedTuple):
    entry: Entry
    label: str
    row: Row


def print_summary(screen: Screen, job: JobSummary) -> None:
    """Where a Job stands, and what to do next."""
    word, colour = status_of(job), _STATUS_COLOURS[job.status]
    took = "" if job.status == "running" else f" {duration(job.updated_at - job.started_at)}"
    out(
        screen.paint(f"Job {job.id}", bold=True),
        f"  {job.expert_key or '?'}  ",
        screen.paint(word, fg=colour, bold=True),
        took and f" after{took}",
    )
    steps = f"{job.total_steps:,} of at most {count(job.max_steps, 'step')}" if job.max_steps else ""
    for name, text in (
        ("query", job.query),
        ("began", f"{local_time(job.started_at):%Y-%m-%d %H:%M:%S}, {ago(job.started_at, SYSTEM.now())}"),
        ("spent", f"{steps or count(job.total_steps, 'step')}, {tokens(job.usage, job.unpriced_tokens)}"),
        ("Runs", _runs(job) if len(job.runs) > 1 else ""),
        ("asks", job.asks or ""),
        ("closed", _closed(job)),
        ("budget", job.exceeded or ""),
        ("error", job.error or ""),
        ("result", job.text or ""),
        ("check", WITHOUT_EFFECT if job.without_effect else ""),
        ("next", _next(job)),
    ):
        if text:
            out("  ", screen.paint(f"{name:<6}", dim=True), "  ", screen.fit(text, 10))


def _closed(job: JobSummary) -> str:
    if job.closed is None:
        return ""
    why = f": {job.closed.reason}" if job.closed.reason else ""
    return f"for good by {job.closed.by}, {local_time(job.closed.at):%Y-%m-%d %H:%M}{why}"


def print_events(
    rows: RowPrinter,
    entries: Sequence[Entry],
    every: Sequence[Entry],
    wanted: Wanted,
    full: bool,
    marks: Marks | None = None,
) -> None:
    """The events, each with its time, Run and step. `every` is all of them, to look up when a step began."""
    lines = [
        _Line(entry, run_label(expert_of(entry.log), entry.log.run_id), row)
        for entry, around in _surrounded(entries, every, wanted, full)
        for row in rows_of(entry, around)
    ]
    for run_id in sorted({entry.log.run_id for entry in every}, key=lambda run: (len(run), run)):
        rows.colour(run_id)
    rows.widen(line.label for line in lines)
    for line in lines:
        mark = (marks or {}).get((line.entry.log.run_id, line.entry.place), " ")
        rows.print(line.entry.timestamp, line.entry.log.run_id, line.label, line.entry.step, line.row, mark)
    for meaning in meanings(marks or {}):
        out(rows.screen.paint(meaning, dim=True))


def _surrounded(
    entries: Sequence[Entry], every: Sequence[Entry], wanted: Wanted, full: bool
) -> list[tuple[Entry, Around]]:
    began = {
        (entry.log.run_id, entry.step): entry.timestamp for entry in reversed(every) if entry.type == "startGeneration"
    }
    found: list[tuple[Entry, Around]] = []
    for entry in entries:
        calls = calls_before(entry) if entry.type == "callTools" else {}
        start = began.get((entry.log.run_id, entry.step))
        step_ms = entry.timestamp - start if start is not None and entry.type == "finishStep" else None
        found.append((entry, Around(calls, step_ms, full or entry.type in wanted.types)))
    return found


def visible(entries: Sequence[Entry], wanted: Wanted, full: bool) -> list[Entry]:
    """Without the events that only mark a place, unless they were asked for."""
    if full or not wanted.any_kind:
        return list(entries)
    return [entry for entry in entries if entry.type not in QUIET_TYPES or lacks_skills(entry)]


def print_damage(logs: Sequence[RunLog]) -> bool:
    """Name what is damaged, on stderr; returns whether anything is."""
    for log in logs:
        if log.damage is not None:
            err(f"damaged: {log.damage}")
    return any(log.damage is not None for log in logs)


def _runs(job: JobSummary) -> str:
    if len(job.runs) > _MOST_RUNS:
        experts = Counter(run.expert_key for run in job.runs)
        return f"{len(job.runs)}: " + ", ".join(f"{number} {key}" for key, number in experts.items())
    return ", ".join(f"{run_label(run.expert_key, run.id)} {count(run.steps, 'step')}" for run in job.runs)


def _next(job: JobSummary) -> str:
    step = after_job(job)
    return command(step) if step is not None and job.status != "completed" else ""
