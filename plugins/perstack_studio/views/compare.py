"""Two Jobs, Runs or branches beside each other: where they stop being equal, what they cost, and what came of them."""

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
from perstack_studio.studio import Studio, page, studio_of
from perstack_studio.views.conversation import run_in

MAX_EVENTS = 20_000  # events of each side that are compared
_LISTED = 50  # Jobs that the form offers
_SNAPSHOT = b'{"type":"recordSnapshot"'
_MAX_ROWS = 6  # rows that describe an event


def pages() -> Iterable[BaseRoute]:
    """Return the route."""
    yield Route("/compare", _show, methods=["GET"])


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """A Job or Run that is compared, with its cost and result."""

    name: str  # as the form has it: `JOB`, or `JOB/RUN`
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
    no_files: str  # why changed files cannot be listed; empty if they can


@dataclass(frozen=True, slots=True)
class EventView:
    """An event at which two courses diverge."""

    seq: int
    run_id: str
    step: int
    kind: str
    rows: tuple[tuple[str, str], ...]  # words and texts that describe it


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between two sides."""

    settings: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    divergence: Divergence | None
    places: tuple[EventView | None, ...]  # of the divergence, on each side
    results: tuple[tuple[str, str], ...]


async def _show(request: Request) -> Response:
    studio, given = studio_of(request), request.query_params
    names = [given.get(name, "").strip() for name in ("a", "b")]
    sides = [None if not name else await side_of(studio, name) for name in names]
    both = [side for side in sides if side is not None]
    found = None if len(both) < 2 else await asyncio.to_thread(compare, both[0], both[1])
    return await page(
        request,
        "compare.html",
        names=names,
        sides=both,
        found=found,
        listed=await _recent_jobs(studio),
        branches=[] if not both else [run for run in both[0].summary.runs if run.delegated_by is None],
    )


async def _recent_jobs(studio: Studio) -> Sequence[JobSummary]:
    try:
        return (await studio.served_project.page_of_jobs(limit=_LISTED)).jobs
    except PerstackError:
        return ()  # the form takes an id as well


def compare(a: ComparedSide, b: ComparedSide) -> Differences:
    """Return what is different between two sides."""
    start_a, start_b = _start_of(a.course), _start_of(b.course)
    settings = () if start_a is None or start_b is None else start_differences((start_a, start_b))
    found = first_divergence(a.course, b.course)
    places = () if found is None else tuple(None if event is None else _event_view(event) for event in found.events)
    return Differences(settings, found, places, diff_of_texts(f"{a.result}\n", f"{b.result}\n"))


def _start_of(course: Course) -> StartRun | None:
    return next((event for event in course.events if isinstance(event, StartRun)), None)


def _event_view(event: StoredEvent) -> EventView:
    rows = event.describe(EventContext({}, minute, full=True))[:_MAX_ROWS]
    words = tuple((row.word, row.text) for row in rows)
    return EventView(place_in_log(event), event.run_id, event.step_number, event.type, words)


async def side_of(studio: Studio, name: str) -> ComparedSide:
    """Return the side that a form names. Raises NotFound, and UsageError for a name that is none."""
    job_id, _, run_id = name.partition("/")
    if run_id.isascii() and run_id.isdigit() and len(run_id) < 10:
        run_id = run_id_of(job_id, int(run_id))
    summary = await studio.served_project.current_job(job_id)
    run = run_in(summary, run_id) if run_id else None
    runs = summary.runs if run is None else with_descendants(summary.runs, run.id)
    logs = await studio.host.jobs.logs(summary.id)
    course = await asyncio.to_thread(course_of, summary, run_id or summary.coordinator_run_id, logs)
    has_snapshots = any(line.startswith(_SNAPSHOT) for log in logs for line in log.lines)
    files, no_files = ShownFiles((), ""), "no snapshots"
    if has_snapshots:
        files, no_files = await _files(studio, summary.id, run_id or None)
    last = run or summary
    return ComparedSide(
        name,
        summary,
        run,
        status_of(summary) if run is None else run_status_of(run),
        sum((one.usage for one in runs), start=NO_USAGE),
        sum(one.unpriced_tokens for one in runs),
        sum(one.steps for one in runs),
        last.updated_at - last.started_at,
        ", ".join(dict.fromkeys(one.model for one in runs if one.model)),
        _result_of(course) if run is not None else summary.text or summary.error or summary.asks or "",
        course,
        files,
        no_files,
    )


async def _files(studio: Studio, job_id: str, run_id: str | None) -> tuple[ShownFiles, str]:
    try:
        diff = await studio.host.files.diff(job_id, run_id=run_id)
    except PerstackError as error:
        return ShownFiles((), ""), str(error)
    return await asyncio.to_thread(shown_files, diff.files), ""


def course_of(summary: JobSummary, run_id: str, logs: Sequence[RunLog]) -> Course:
    """Return what led to the end of a Run, from the first of the Runs that it continues, and their delegates."""
    runs, by_run = {run.id: run for run in summary.runs}, {log.run_id: log for log in logs}
    pieces: dict[str, int | None] = {}  # the Runs, the last first, with the number of events that others continue
    until: int | None = None
    while run_id in by_run and run_id not in pieces:
        pieces[run_id] = until
        origin = runs[run_id].continued_from if run_id in runs else None
        if origin is None or not is_place(origin):
            break
        _, run_id, until = place_of(origin)
    lines = [line for piece in reversed(pieces) for line in by_run[piece].lines[: pieces[piece]]]
    events, left = _parsed(lines[:MAX_EVENTS]), MAX_EVENTS - len(lines)
    delegates: dict[str, Sequence[StoredEvent]] = {}
    for run in summary.runs:
        log = by_run.get(run.id)
        if run.delegated_by is not None and log is not None:
            left -= len(log.lines)
            if left >= 0:
                delegates[run.id] = _parsed(log.lines)
    is_damaged = any(by_run[piece].damage is not None for piece in pieces)
    return Course(summary.id, events, delegates, is_cut=left < 0 or is_damaged)


def _parsed(lines: Iterable[bytes]) -> list[StoredEvent]:
    """Return the events that this version knows."""
    events: list[StoredEvent] = []
    for line in lines:
        with suppress(ValueError):  # redacted, or of a newer version
            events.append(parse_line(line))
    return events


def _result_of(course: Course) -> str:
    for event in reversed(course.events):
        if isinstance(event, FinishRun):
            return event.text
        if isinstance(event, ErrorRun):
            return event.error.message
    return ""
