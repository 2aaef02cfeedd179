"""The conversation of a Run: its last events first, older ones on demand, new ones as they are recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.jobs.summary import JobSummary, RunSummary
from perstack.core.runs.log_rows import run_label
from perstack.engine.log.event_log import StoredLine
from perstack.errors import NotFound, UsageError
from perstack.ports.storage import RunRef
from perstack_studio.conversation import Conversation, ConversationEntry
from perstack_studio.live import EventStream, event_of
from perstack_studio.places import last_events, seq_of_step
from perstack_studio.studio import Studio, page, see_other, studio_of

if TYPE_CHECKING:
    from perstack.core.runs.events import StoredEvent

WINDOW = 400  # events that one page shows
_MAX_PER_SEND = 100  # events that one message of a stream is made of
MAX_CHARS = 1_000_000  # characters of a page, or of a message of a stream, after which no further event is shown


def pages() -> Iterable[BaseRoute]:
    """Return the routes: the conversation of the Job's Coordinator or of a Run, and what is new in it."""
    yield Route("/jobs/{job}/conversation", _show_latest, methods=["GET"])
    yield Route("/jobs/{job}/runs/{run}", _show_run, methods=["GET"])
    yield Route("/jobs/{job}/runs/{run}/events", _follow, methods=["GET"])


async def _show_latest(request: Request) -> Response:
    summary = await studio_of(request).states.page_summary(request.path_params["job"])
    return await _show(request, summary, summary.coordinator_run_id)


async def _show_run(request: Request) -> Response:
    summary = await studio_of(request).states.page_summary(request.path_params["job"])
    return await _show(request, summary, request.path_params["run"])


def run_in(summary: JobSummary, run_id: str) -> RunSummary:
    """Return a Run of the Job. Raises NotFound."""
    found = next((run for run in summary.runs if run.id == run_id), None)
    if found is None:
        raise NotFound(f"Job {summary.id} has no Run {run_id}")
    return found


async def _show(request: Request, summary: JobSummary, run_id: str) -> Response:
    """Show a window of the conversation; with `step` or `at`, go to the window around that step or place."""
    studio, run = studio_of(request), run_in(summary, run_id)
    if "step" in request.query_params or "at" in request.query_params:
        return await _jump(request, summary.id, run)
    until = _number(request, "until", run.head_seq)
    folded, first = await window(studio, summary.id, run_id, until)
    entries = latest_entries(folded.entries)
    if len(entries) < len(folded.entries):
        first = entries[0].seq - 1
    is_end = until >= run.head_seq
    return await page(
        request,
        "conversation.html",
        summary=summary,
        run=run,
        label=run_label(run.expert_key, run.id),
        entries=entries,
        first=first,
        last=folded.last_seq,
        is_end=is_end,
        tab="conversation",
        job_id=summary.id,
        run_id=run_id,
    )


async def _jump(request: Request, job_id: str, run_summary: RunSummary) -> Response:
    studio = studio_of(request)
    seq: int | None = _number(request, "at", 0)
    if "step" in request.query_params:
        step = _number(request, "step", 0)
        seq = await seq_of_step(studio.host.storage, RunRef(job_id, run_summary.id), run_summary.head_seq, step)
        if seq is None:
            raise NotFound(f"{run_summary.id} has no step {step}; it has {run_summary.steps}")
    until = min(max(run_summary.head_seq, 1), (seq or 1) + WINDOW // 2)
    folded, shown_id = Conversation(), ""
    for line in await _events(studio, RunRef(job_id, run_summary.id), until):
        changed = folded.apply(line.seq, line.event)
        if line.seq <= (seq or 1) or not shown_id:  # the first event of a step has no entry of its own
            shown_id = changed[0].id if changed else "" if line.seq == seq else shown_id
    shown = next((entry for entry in folded.entries if entry.id == shown_id), None)
    if shown is not None and all(entry is not shown for entry in latest_entries(folded.entries)):
        until = shown.seq  # what follows is too long for one page with it
    return see_other(f"/jobs/{job_id}/runs/{run_summary.id}?until={until}#{shown_id}")


def latest_entries(entries: Sequence[ConversationEntry]) -> Sequence[ConversationEntry]:
    """Return the entries of the last events that have `MAX_CHARS` together, and at least those of the last one."""
    chars, first = 0, len(entries)
    for number in range(len(entries) - 1, -1, -1):
        chars += entries[number].size
        if chars > MAX_CHARS and first < len(entries) and entries[number].seq != entries[first].seq:
            break
        first = number
    # an event is shown completely or not at all
    return [entry for entry in entries[first:] if first == 0 or entry.seq > entries[first - 1].seq] or entries[first:]


async def window(studio: Studio, job_id: str, run_id: str, until: int) -> tuple[Conversation, int]:
    """Return the conversation of the events up to `until`, and the place of the first of them."""
    folded = Conversation()
    for line in await _events(studio, RunRef(job_id, run_id), until):
        folded.apply(line.seq, line.event)
    return folded, max(0, until - WINDOW)


async def _events(studio: Studio, ref: RunRef, until: int) -> Sequence[StoredLine[StoredEvent]]:
    """Return the events of a window. At the end of a log they are read from there, whatever its length."""
    at_end = await last_events(studio.host.storage, ref, until, WINDOW)
    if at_end is not None:
        return at_end
    first = max(0, until - WINDOW)
    return await studio.host.jobs.events(ref.run_id, job_id=ref.job_id, after=first, limit=until - first)


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{name}: {text!r} is not a position in a log")
    return int(text)


async def _follow(request: Request) -> Response:
    """Send the entries that changed after the place `after`, or after the last one that the browser got."""
    studio, job_id, run_id = studio_of(request), request.path_params["job"], request.path_params["run"]
    run_in(await studio.states.page_summary(job_id), run_id)
    if studio.feeds.is_full:
        raise UsageError("too many pages follow Jobs: close some")
    given = request.headers.get("last-event-id", "")
    after = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else _number(request, "after", 0)

    def rendered(entries: Iterable[ConversationEntry]) -> str:
        return "".join(studio.render("entry.html", entry=entry, job_id=job_id, run_id=run_id) for entry in entries)

    async def changes() -> AsyncIterator[str]:
        folded, _ = await window(studio, job_id, run_id, after)
        folded.entries.clear()  # shown: calls that may still change are kept by id
        last, known = after, -1
        with studio.feeds.feed(job_id) as feed:
            while not studio.feeds.is_closing:
                if not await feed.wait(known):
                    yield ": beat\n\n"
                    continue
                known = feed.version
                while True:
                    lines = await studio.host.jobs.events(run_id, job_id=job_id, after=last, limit=_MAX_PER_SEND)
                    for last, entries in _by_message(folded, lines):
                        if entries:
                            yield event_of("entries", await asyncio.to_thread(rendered, entries), last)
                    if len(lines) < _MAX_PER_SEND:
                        break
                folded.entries.clear()  # sent: calls that may still change are kept by id
                await studio.feeds.rest()

    return EventStream(changes())


def _by_message(
    folded: Conversation, lines: Sequence[StoredLine[StoredEvent]]
) -> Iterator[tuple[int, list[ConversationEntry]]]:
    """Apply the events; yield what they changed for each message of a stream, with the place of its last event."""
    changed: dict[str, ConversationEntry] = {}
    chars = 0
    for line in lines:
        entries = folded.apply(line.seq, line.event)
        changed |= {entry.id: entry for entry in entries}
        chars += sum(entry.size for entry in entries)
        if chars > MAX_CHARS:
            yield line.seq, [*changed.values()]
            changed, chars = {}, 0
    if lines:
        yield lines[-1].seq, [*changed.values()]
