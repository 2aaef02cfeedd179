"""The log of a Job: the events of all its Runs in order, page by page, and those that an expression selects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.base.text import suggestion
from perstack.core.jobs.summary import JobSummary, RunSummary
from perstack.core.runs.log_rows import LogRow, run_label
from perstack.dataclass import dataclass
from perstack.doors.shared.filter_expression import FIELDS, Condition, parse_filter, unknown_fields
from perstack.doors.shared.log_view import LogEntry, in_order, meets_condition
from perstack.engine.log.event_log import read_intact, run_ids
from perstack.engine.log.run_log import RunLog
from perstack.ports.storage import RunRef
from perstack_studio.run_lines import RunLines, StoredEntry, find_job
from perstack_studio.studio import Studio, render_page, studio_of
from perstack_studio.views.step import rows_at

PAGE_SIZE = 300
_LINES_PER_READ = 2_000  # lines that are read and checked between two turns of the event loop
_MAX_ROW_CHARS = 600  # maximum shown characters of a row; the event's page has all
MAX_EVENTS = 300_000  # maximum events that one request reads for a page of several Runs or for a filter


def pages() -> Iterable[BaseRoute]:
    yield Route("/jobs/{job}/log", _show_log, methods=["GET"])


@dataclass(frozen=True, slots=True)
class ListedEvent:
    """An event in a page of the log."""

    run_id: str
    label: str
    stored: StoredEntry
    rows: tuple[LogRow, ...]


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of the log: the events from `first` (counted from 0) up to `last`, of `total` that are selected."""

    lines: tuple[ListedEvent, ...]
    first: int
    last: int
    total: int
    damage: tuple[str, ...] = ()  # damage of each log that cannot be read to its end
    note: str = ""


def filter_of(text: str) -> tuple[Condition | None, str]:
    """Return the condition of a filter, None for an empty or invalid one, and what is wrong with it."""
    if not text:
        return None, ""
    try:
        condition = parse_filter(text)
    except ValueError as error:
        return None, str(error)
    name = next(unknown_fields(condition), None)
    if name is None:
        return condition, ""
    return None, f"no event has a field .{name}{suggestion(f'.{name}', (f'.{field}' for field in FIELDS))}"


async def _show_log(request: Request) -> Response:
    studio, job_id = studio_of(request), request.path_params["job"]
    summary = await find_job(studio, job_id)
    text, run_id = request.query_params.get("filter", "").strip(), request.query_params.get("run", "")
    condition, problem = filter_of(text)
    until = request.query_params.get("until", "")
    limit = int(until) if until.isascii() and until.isdigit() and len(until) < 10 else None
    ids = await run_ids(studio.host.jobs.storage, job_id)
    shown_ids = [run_id] if run_id in ids else ids
    if len(shown_ids) == 1 and condition is None:
        log_page = await _page_of_run(studio, summary, shown_ids[0], limit)
    else:
        log_page = await _page_of_runs(studio, summary, shown_ids, condition, limit)
    return await render_page(
        request,
        "log.html",
        summary=summary,
        log_page=log_page,
        filter=text,
        problem=problem,
        run=run_id if run_id in ids else "",
        runs=[(shown_id, _label(summary, shown_id)) for shown_id in ids[:MAX_LISTED_RUNS]],
        tab="log",
        job_id=job_id,
    )


MAX_LISTED_RUNS = 500  # maximum Runs that the form offers


def _label(summary: JobSummary, run_id: str) -> str:
    run_summary: RunSummary | None = next((run for run in summary.runs if run.id == run_id), None)
    return run_label("" if run_summary is None else run_summary.expert_key, run_id)


async def _page_of_run(studio: Studio, summary: JobSummary, run_id: str, until: int | None) -> LogPage:
    """Return a page of one Run, reading only the lines of that page."""
    run_lines = RunLines.of(studio, summary.id, run_id)
    total = await _count_events(run_lines, next((run.head_seq for run in summary.runs if run.id == run_id), 0))
    last = total if until is None else min(until, total)
    first = max(0, last - PAGE_SIZE)
    log = RunLog(run_id, *await read_intact(studio.host.jobs.storage, run_lines.ref, first, last - first))
    entries = in_order([log])
    damage = () if log.damage is None else (str(log.damage),)
    return LogPage(_list_events(summary, entries, {run_id: first}), first, last, total, damage)


async def _count_events(run_lines: RunLines, known: int) -> int:
    """Return the number of readable events of a log, which has at least `known` ones."""
    while True:
        lines, damage = await read_intact(run_lines.storage, run_lines.ref, known, _LINES_PER_READ)
        if damage is not None:
            return int(damage.readable)
        known += len(lines)
        if len(lines) < _LINES_PER_READ:
            return known


async def _page_of_runs(
    studio: Studio, summary: JobSummary, ids: list[str], condition: Condition | None, until: int | None
) -> LogPage:
    """Return a page of the events of several Runs in order of time, or of those that a condition selects."""
    logs: list[RunLog] = []
    events_left = MAX_EVENTS
    for run_id in ids:
        log = RunLog(run_id, [])
        while events_left > 0:
            ref = RunRef(summary.id, run_id)
            lines, damage = await read_intact(
                studio.host.jobs.storage, ref, len(log.lines), min(events_left, _LINES_PER_READ)
            )
            log, events_left = RunLog(run_id, [*log.lines, *lines], damage), events_left - len(lines)
            if damage is not None or len(lines) < _LINES_PER_READ:
                break
            await asyncio.sleep(0)
        logs.append(log)
    entries = await asyncio.to_thread(_select_entries, logs, condition)
    last = len(entries) if until is None else min(until, len(entries))
    first = max(0, last - PAGE_SIZE)
    note = "" if events_left > 0 else f"Only the first {MAX_EVENTS:,} events were read: choose a Run."
    damage_texts = tuple(str(log.damage) for log in logs if log.damage is not None)
    return LogPage(_list_events(summary, entries[first:last], {}), first, last, len(entries), damage_texts, note)


def _select_entries(logs: list[RunLog], condition: Condition | None) -> list[LogEntry]:
    entries = in_order(logs)
    return entries if condition is None else [entry for entry in entries if meets_condition(entry, condition)]


def _list_events(summary: JobSummary, entries: Iterable[LogEntry], offsets: dict[str, int]) -> tuple[ListedEvent, ...]:
    labels = {run.id: run_label(run.expert_key, run.id) for run in summary.runs}
    lines: list[ListedEvent] = []
    for entry in entries:
        run_id = entry.log.run_id
        stored = StoredEntry(offsets.get(run_id, 0) + entry.place + 1, entry)
        rows = tuple(row._replace(text=_cut(row.text)) for row in rows_at(stored))
        lines.append(ListedEvent(run_id, labels.get(run_id, run_id), stored, rows))
    return tuple(lines)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_ROW_CHARS else f"{text[:_MAX_ROW_CHARS]} …"
