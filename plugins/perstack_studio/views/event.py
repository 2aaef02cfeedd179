"""One event of a Run: its rows for people, its JSON, its digest and hash, and its link in the chain."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.base.chain import EMPTY_LOG, BrokenSeal, Head, SealedLine, check, open_line, read_remains
from perstack.core.runs.log_rows import LogRow, run_label
from perstack.dataclass import dataclass
from perstack.errors import NotFound
from perstack_studio.run_lines import RunLines, StoredEntry, find_run
from perstack_studio.studio import render_page, studio_of
from perstack_studio.views.step import rows_at

_EVENT = "/jobs/{job}/runs/{run}/events/{seq:place}"
_EARLIER_EVENTS = 6  # earlier events to read: a decision about calls shows the arguments of the reply before it


def pages() -> Iterable[BaseRoute]:
    """Return the routes: the event for people, and its line as it is stored."""
    yield Route(_EVENT, _show_event, methods=["GET"])
    yield Route(f"{_EVENT}/line", _show_line, methods=["GET"])


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """An event as its page shows it."""

    seq: int
    type: str
    step: int
    at: int  # milliseconds since 1970; 0 if unknown
    rows: tuple[LogRow, ...]
    json: str
    size: int  # bytes of the stored line
    sealed: SealedLine | None  # digest and hash; None if the line has none
    chain: str  # what is wrong with the event's link to the previous one; empty if nothing is
    is_redacted: bool
    has_next: bool


def make_shown_event(neighbours: tuple[StoredEntry, ...], seq: int) -> ShownEvent:
    """Return the event at a place. Raises NotFound, and Damaged if the readable part of the log ends before it."""
    stored = next((item for item in neighbours if item.seq == seq), None)
    damage = neighbours[-1].entry.log.damage if neighbours else None
    if stored is None and damage is not None:
        raise damage
    if stored is None:
        raise NotFound(f"the log has no event {seq}")
    line = stored.entry.line
    previous_line = next((item.entry.line for item in neighbours if item.seq == seq - 1), b"")
    try:
        sealed = open_line(line)
        text = _indent_json(sealed.payload)
    except BrokenSeal:
        sealed, text = None, line.decode(errors="replace")
    return ShownEvent(
        seq,
        stored.entry.type,
        stored.entry.step,
        stored.entry.timestamp,
        rows_at(stored),
        text,
        len(line),
        sealed,
        chain_problem(previous_line, line, seq),
        sealed is not None and read_remains(sealed.payload) is not None,
        any(item.seq > seq for item in neighbours),
    )


def chain_problem(previous_line: bytes, line: bytes, seq: int) -> str:
    """Return what is wrong with the digest or the hash of a line that follows `previous_line`; empty if nothing is."""
    try:
        check(EMPTY_LOG if seq == 1 else Head(seq - 1, open_line(previous_line).hash), line)
    except BrokenSeal as error:
        return str(error)
    return ""


def _indent_json(payload: bytes) -> str:
    try:
        return json.dumps(from_json(payload), ensure_ascii=False, indent=2)
    except ValueError:
        return payload.decode(errors="replace")


async def _show_event(request: Request) -> Response:
    studio, seq = studio_of(request), request.path_params["seq"]
    job_id, run_id = request.path_params["job"], request.path_params["run"]
    summary, run_summary = await find_run(studio, job_id, run_id)
    after = max(0, seq - 1 - _EARLIER_EVENTS)
    neighbours = await RunLines.of(studio, job_id, run_id).read(after, seq + 1 - after)
    return await render_page(
        request,
        "event.html",
        summary=summary,
        label=run_label(run_summary.expert_key, run_id),
        event=make_shown_event(neighbours, seq),
        tab="log",
        job_id=job_id,
        run_id=run_id,
    )


async def _show_line(request: Request) -> Response:
    """Return the line as it is stored, which is JSON with its digest and hash."""
    studio, seq = studio_of(request), request.path_params["seq"]
    job_id, run_id = request.path_params["job"], request.path_params["run"]
    await find_run(studio, job_id, run_id)
    lines = await RunLines.of(studio, job_id, run_id).read(seq - 1, 1) if seq else ()
    if not lines:
        raise NotFound(f"the log has no event {seq}")
    return Response(lines[0].entry.line, media_type="application/json")
