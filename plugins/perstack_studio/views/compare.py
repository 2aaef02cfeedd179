"""Comparison of two Jobs, Runs or branches: the first difference, and the costs and results of both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.base.ids import is_place, place_of, run_id_of
from perstack.core.base.usage import NO_USAGE, Usage
from perstack.core.jobs.summary import JobSummary, RunSummary, with_descendants
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.lifecycle import ErrorRun, FinishRun
from perstack.core.runs.log_rows import EventContext
from perstack.core.runs.start import StartRun
from perstack.dataclass import dataclass
from perstack.doors.shared.log_view import parse_line
from perstack.doors.shared.status_phrases import run_status_of, status_of
from perstack.doors.shared.text import minute
from perstack.engine.log.run_log import RunLog
from perstack.errors import PerstackError
from perstack_studio.changed_files import ShownFiles, shown_files
from perstack_studio.divergence import (
    Course,
    Divergence,
    diff_of_texts,
    first_divergence,
    place_in_log,
    start_differences,
)
from perstack_studio.studio import Studio, render_page, studio_of
from perstack_studio.views.conversation import run_summary_in

MAX_EVENTS = 20_000  # maximum compared events of each side
_MAX_LISTED_JOBS = 50  # maximum Jobs that the form offers
_SNAPSHOT_PREFIX = b'{"type":"recordSnapshot"'
_MAX_ROWS = 6  # maximum rows that describe an event


def pages() -> Iterable[BaseRoute]:
    yield Route("/compare", _show_comparison, methods=["GET"])


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """A Job or Run that is compared, with its cost and result."""

    name: str  # as typed in the form: `JOB`, or `JOB/RUN`
    summary: JobSummary
    run_summary: RunSummary | None  # None for the whole Job
    status: str
    usage: Usage
    unpriced_tokens: int
    steps: int
    took_ms: int
    model: str
    result: str
    course: Course
    files: ShownFiles
    files_problem: str  # why changed files cannot be listed; empty if they can


@dataclass(frozen=True, slots=True)
class EventView:
    """An event at which two courses diverge."""

    seq: int
    run_id: str
    step: int
    kind: str
    rows: tuple[tuple[str, str], ...]  # pairs of word and text


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between two sides."""

    settings: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    divergence: Divergence | None
    places: tuple[EventView | None, ...]  # the event of the divergence on each side
    results: tuple[tuple[str, str], ...]


async def _show_comparison(request: Request) -> Response:
    studio, params = studio_of(request), request.query_params
    names = [params.get(name, "").strip() for name in ("a", "b")]
    sides = [await read_side(studio, name) for name in names if name]
    differences = None if len(sides) < 2 else await asyncio.to_thread(compare, sides[0], sides[1])
    return await render_page(
        request,
        "compare.html",
        names=names,
        sides=sides,
        differences=differences,
        listed=await _recent_jobs(studio),
        branches=[] if not sides else [run for run in sides[0].summary.runs if run.delegated_by is None],
    )


async def _recent_jobs(studio: Studio) -> Sequence[JobSummary]:
    try:
        return (await studio.served_project.page_of_jobs(limit=_MAX_LISTED_JOBS)).jobs
    except PerstackError:
        return ()  # an id can be typed instead


def compare(a: ComparedSide, b: ComparedSide) -> Differences:
    """Return the differences between two sides."""
    start_a, start_b = _start_of(a.course), _start_of(b.course)
    settings = () if start_a is None or start_b is None else start_differences((start_a, start_b))
    divergence = first_divergence(a.course, b.course)
    diverging = () if divergence is None else divergence.events
    places = tuple(None if event is None else _event_view(event) for event in diverging)
    return Differences(settings, divergence, places, diff_of_texts(f"{a.result}\n", f"{b.result}\n"))


def _start_of(course: Course) -> StartRun | None:
    return next((event for event in course.events if isinstance(event, StartRun)), None)


def _event_view(event: StoredEvent) -> EventView:
    rows = event.describe(EventContext({}, minute, full=True))[:_MAX_ROWS]
    texts = tuple((row.word, row.text) for row in rows)
    return EventView(place_in_log(event), event.run_id, event.step_number, event.type, texts)


async def read_side(studio: Studio, name: str) -> ComparedSide:
    """Return the side that a form names. Raises NotFound, and UsageError for an invalid name."""
    job_id, _, run_id = name.partition("/")
    if run_id.isascii() and run_id.isdigit() and len(run_id) < 10:
        run_id = run_id_of(job_id, int(run_id))
    summary = await studio.served_project.current_job(job_id)
    run = run_summary_in(summary, run_id) if run_id else None
    runs = summary.runs if run is None else with_descendants(summary.runs, run.id)
    logs = await studio.host.jobs.logs(summary.id)
    course = await asyncio.to_thread(course_of, summary, run_id or summary.coordinator_run_id, logs)
    has_snapshots = any(line.startswith(_SNAPSHOT_PREFIX) for log in logs for line in log.lines)
    files, files_problem = ShownFiles((), ""), "no snapshots"
    if has_snapshots:
        files, files_problem = await _changed_files(studio, summary.id, run_id or None)
    timed = run or summary
    return ComparedSide(
        name,
        summary,
        run,
        status_of(summary) if run is None else run_status_of(run),
        sum((run_of_side.usage for run_of_side in runs), start=NO_USAGE),
        sum(run_of_side.unpriced_tokens for run_of_side in runs),
        sum(run_of_side.steps for run_of_side in runs),
        timed.updated_at - timed.started_at,
        ", ".join(dict.fromkeys(run_of_side.model for run_of_side in runs if run_of_side.model)),
        _result_of(course) if run is not None else summary.text or summary.error or summary.asks or "",
        course,
        files,
        files_problem,
    )


async def _changed_files(studio: Studio, job_id: str, run_id: str | None) -> tuple[ShownFiles, str]:
    try:
        diff = await studio.host.files.diff(job_id, run_id=run_id)
    except PerstackError as error:
        return ShownFiles((), ""), str(error)
    return await asyncio.to_thread(shown_files, diff.files), ""


def course_of(summary: JobSummary, run_id: str, logs: Sequence[RunLog]) -> Course:
    """Return the events up to the end of a Run, with the Runs that it continues and their delegates."""
    runs, by_run = {run.id: run for run in summary.runs}, {log.run_id: log for log in logs}
    pieces: dict[str, int | None] = {}  # by Run, the last first: the number of its compared events; None for all
    until: int | None = None
    while run_id in by_run and run_id not in pieces:
        pieces[run_id] = until
        origin = runs[run_id].continued_from if run_id in runs else None
        if origin is None or not is_place(origin):
            break
        _, run_id, until = place_of(origin)
    lines = [line for piece in reversed(pieces) for line in by_run[piece].lines[: pieces[piece]]]
    events, events_left = _parse_events(lines[:MAX_EVENTS]), MAX_EVENTS - len(lines)
    delegates: dict[str, Sequence[StoredEvent]] = {}
    for run in summary.runs:
        log = by_run.get(run.id)
        if run.delegated_by is not None and log is not None:
            events_left -= len(log.lines)
            if events_left >= 0:
                delegates[run.id] = _parse_events(log.lines)
    is_damaged = any(by_run[piece].damage is not None for piece in pieces)
    return Course(summary.id, events, delegates, is_cut=events_left < 0 or is_damaged)


def _parse_events(lines: Iterable[bytes]) -> list[StoredEvent]:
    """Return the events of the lines that this version can read."""
    events: list[StoredEvent] = []
    for line in lines:
        with suppress(ValueError):  # the event is redacted or of a newer version
            events.append(parse_line(line))
    return events


def _result_of(course: Course) -> str:
    for event in reversed(course.events):
        if isinstance(event, FinishRun):
            return event.text
        if isinstance(event, ErrorRun):
            return event.error.message
    return ""
