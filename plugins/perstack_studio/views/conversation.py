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
from perstack.errors import Damaged, NotFound, UsageError
from perstack.ports.storage import RunRef
from perstack_studio.conversation import Conversation, ConversationEntry
from perstack_studio.live import EventStream, format_event
from perstack_studio.places import last_events, seq_of_step
from perstack_studio.studio import Studio, render_page, see_other, studio_of

if TYPE_CHECKING:
    from perstack.core.runs.events import StoredEvent

WINDOW_EVENTS = 400  # maximum events that one page shows
_MAX_PER_MESSAGE = 100  # maximum events that one message of a stream is made of
MAX_CHARS = 1_000_000  # characters after which a page, or a message of a stream, shows no further event


def pages() -> Iterable[BaseRoute]:
    """Return the routes: the conversation of the Job's Coordinator or of a Run, and what is new in it."""
    yield Route("/jobs/{job}/conversation", _show_latest, methods=["GET"])
    yield Route("/jobs/{job}/runs/{run}", _show_run, methods=["GET"])
    yield Route("/jobs/{job}/runs/{run}/events", _stream_changes, methods=["GET"])


async def _show_latest(request: Request) -> Response:
    summary = await studio_of(request).states.page_summary(request.path_params["job"])
    return await _show_window(request, summary, summary.coordinator_run_id)


async def _show_run(request: Request) -> Response:
    summary = await studio_of(request).states.page_summary(request.path_params["job"])
    return await _show_window(request, summary, request.path_params["run"])


def run_summary_in(summary: JobSummary, run_id: str) -> RunSummary:
    """Return the summary of a Run of the Job. Raises NotFound."""
    run_summary = next((run for run in summary.runs if run.id == run_id), None)
    if run_summary is None:
        raise NotFound(f"Job {summary.id} has no Run {run_id}")
    return run_summary


async def _show_window(request: Request, summary: JobSummary, run_id: str) -> Response:
    """Show a window of the conversation; with `step` or `at`, go to the window around that step or place."""
    studio, run = studio_of(request), run_summary_in(summary, run_id)
    if "step" in request.query_params or "at" in request.query_params:
        return await _redirect_to_window(request, summary.id, run)
    until = _read_number(request, "until", run.head_seq)
    damage = ""
    try:
        conversation, first = await window(studio, summary.id, run_id, until)
    except Damaged as error:
        if not 0 < error.readable < until:
            raise
        until, damage = error.readable, str(error)
        conversation, first = await window(studio, summary.id, run_id, until)
    entries = latest_entries(conversation.entries)
    if len(entries) < len(conversation.entries):
        first = entries[0].seq - 1
    is_end = until >= run.head_seq
    return await render_page(
        request,
        "conversation.html",
        status=503 if damage else 200,
        summary=summary,
        damage=damage,
        run=run,
        label=run_label(run.expert_key, run.id),
        entries=entries,
        first=first,
        last=conversation.last_seq,
        is_end=is_end,
        tab="conversation",
        job_id=summary.id,
        run_id=run_id,
    )


async def _redirect_to_window(request: Request, job_id: str, run_summary: RunSummary) -> Response:
    """Redirect to the window around `step` or `at`, with the entry's fragment. Raises NotFound for a missing step."""
    studio = studio_of(request)
    seq: int | None = _read_number(request, "at", 0)
    if "step" in request.query_params:
        step = _read_number(request, "step", 0)
        seq = await seq_of_step(studio.host.storage, RunRef(job_id, run_summary.id), run_summary, step)
        if seq is None:
            raise NotFound(f"{run_summary.id} has no step {step}; it has {run_summary.steps}")
    until = min(max(run_summary.head_seq, 1), (seq or 1) + WINDOW_EVENTS // 2)
    conversation, shown_id = Conversation(), ""
    for line in await _window_events(studio, RunRef(job_id, run_summary.id), until):
        changed = conversation.apply(line.seq, line.event)
        if line.seq <= (seq or 1) or not shown_id:  # the first event of a step may have no entry
            shown_id = changed[0].id if changed else "" if line.seq == seq else shown_id
    shown = next((entry for entry in conversation.entries if entry.id == shown_id), None)
    if shown is not None and all(entry is not shown for entry in latest_entries(conversation.entries)):
        until = shown.seq  # with the later entries the page would be too long to show this one
    return see_other(f"/jobs/{job_id}/runs/{run_summary.id}?until={until}#{shown_id}")


def latest_entries(entries: Sequence[ConversationEntry]) -> Sequence[ConversationEntry]:
    """Return the entries of the last events with `MAX_CHARS` in total, at least those of the last event."""
    chars, first = 0, len(entries)
    for number in range(len(entries) - 1, -1, -1):
        chars += entries[number].size
        if chars > MAX_CHARS and first < len(entries) and entries[number].seq != entries[first].seq:
            break
        first = number
    # Drop the rest of an event that was cut: a page shows all entries of an event or none.
    return [entry for entry in entries[first:] if first == 0 or entry.seq > entries[first - 1].seq] or entries[first:]


async def window(studio: Studio, job_id: str, run_id: str, until: int) -> tuple[Conversation, int]:
    """Return the conversation of the last events up to `until`, and the place before the first of them."""
    conversation = Conversation()
    for line in await _window_events(studio, RunRef(job_id, run_id), until):
        conversation.apply(line.seq, line.event)
    return conversation, max(0, until - WINDOW_EVENTS)


async def _window_events(studio: Studio, ref: RunRef, until: int) -> Sequence[StoredLine[StoredEvent]]:
    """Return the events of a window. Near the end of a log they are read backwards, so its length does not matter."""
    last = await last_events(studio.host.storage, ref, until, WINDOW_EVENTS)
    if last is not None:
        return last
    first = max(0, until - WINDOW_EVENTS)
    return await studio.host.jobs.events(ref.run_id, job_id=ref.job_id, after=first, limit=until - first)


def _read_number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{name}: {text!r} is not a position in a log")
    return int(text)


async def _stream_changes(request: Request) -> Response:
    """Stream the entries that change after the place `after`, or after the last one that the browser received."""
    studio, job_id, run_id = studio_of(request), request.path_params["job"], request.path_params["run"]
    run_summary_in(await studio.states.page_summary(job_id), run_id)
    if studio.feeds.is_full:
        raise UsageError("too many pages follow Jobs: close some")
    last_id = request.headers.get("last-event-id", "")
    is_number = last_id.isascii() and last_id.isdigit() and len(last_id) < 10
    after = int(last_id) if is_number else _read_number(request, "after", 0)

    def render_entries(entries: Iterable[ConversationEntry]) -> str:
        return "".join(studio.render("entry.html", entry=entry, job_id=job_id, run_id=run_id) for entry in entries)

    async def changes() -> AsyncIterator[str]:
        conversation, _ = await window(studio, job_id, run_id, after)
        conversation.entries.clear()  # the page already shows them; open calls are still found by id
        last, known = after, -1
        with studio.feeds.feed(job_id) as feed:
            while not studio.feeds.is_closing:
                if not await feed.wait(known):
                    yield ": beat\n\n"
                    continue
                known = feed.version
                while True:
                    lines = await studio.host.jobs.events(run_id, job_id=job_id, after=last, limit=_MAX_PER_MESSAGE)
                    for last, entries in _group_changes(conversation, lines):
                        if entries:
                            yield format_event("entries", await asyncio.to_thread(render_entries, entries), last)
                    if len(lines) < _MAX_PER_MESSAGE:
                        break
                conversation.entries.clear()  # they were sent; open calls are still found by id
                await studio.feeds.pause()

    return EventStream(changes())


def _group_changes(
    conversation: Conversation, lines: Sequence[StoredLine[StoredEvent]]
) -> Iterator[tuple[int, list[ConversationEntry]]]:
    """Apply the events. Yield the changed entries for each message of a stream, with the place of its last event."""
    changed: dict[str, ConversationEntry] = {}
    chars = 0
    for line in lines:
        entries = conversation.apply(line.seq, line.event)
        changed |= {entry.id: entry for entry in entries}
        chars += sum(entry.size for entry in entries)
        if chars > MAX_CHARS:
            yield line.seq, [*changed.values()]
            changed, chars = {}, 0
    if lines:
        yield lines[-1].seq, [*changed.values()]
