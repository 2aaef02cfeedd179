"""One event of a Run: its rows for people, its JSON, its digest and hash, and whether it follows the one before it."""

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
from perstack_studio.run_lines import RunLines, StoredEntry, known_run
from perstack_studio.studio import page, studio_of
from perstack_studio.views.step import rows_at

_EVENT = "/jobs/{job}/runs/{run}/events/{seq:place}"
_MAX_BEFORE = 6  # events before it that are read: a decision about calls shows the arguments of the reply before it


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
    size: int  # bytes of its line
    sealed: SealedLine | None  # digest and hash; None if the line has none
    chain: str  # what is wrong with the chain here; empty if the event follows the one before it
    is_redacted: bool
    has_next: bool


def shown_event(around: tuple[StoredEntry, ...], seq: int) -> ShownEvent:
    """Return the event at a place, from the lines around it. Raises NotFound, and Damaged if they end before it."""
    stored = next((item for item in around if item.seq == seq), None)
    damage = around[-1].entry.log.damage if around else None
    if stored is None and damage is not None:
        raise damage
    if stored is None:
        raise NotFound(f"the log has no event {seq}")
    line = stored.entry.line
    before = next((item.entry.line for item in around if item.seq == seq - 1), b"")
    try:
        sealed = open_line(line)
        text = _pretty(sealed.payload)
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
        chain_problem(before, line, seq),
        sealed is not None and read_remains(sealed.payload) is not None,
        any(item.seq > seq for item in around),
    )


def chain_problem(before: bytes, line: bytes, seq: int) -> str:
    """Return what is wrong with the digest or the hash of a line that follows `before`; empty if nothing is."""
    try:
        check(EMPTY_LOG if seq == 1 else Head(seq - 1, open_line(before).hash), line)
    except BrokenSeal as error:
        return str(error)
    return ""


def _pretty(payload: bytes) -> str:
    try:
        return json.dumps(from_json(payload), ensure_ascii=False, indent=2)
    except ValueError:
        return payload.decode(errors="replace")


async def _show_event(request: Request) -> Response:
    studio, seq = studio_of(request), request.path_params["seq"]
    job_id, run_id = request.path_params["job"], request.path_params["run"]
    summary, run_summary = await known_run(studio, job_id, run_id)
    after = max(0, seq - 1 - _MAX_BEFORE)
    around = await RunLines.of(studio, job_id, run_id).read(after, seq + 1 - after)
    return await page(
        request,
        "event.html",
        summary=summary,
        label=run_label(run_summary.expert_key, run_id),
        event=shown_event(around, seq),
        tab="log",
        job_id=job_id,
        run_id=run_id,
    )


async def _show_line(request: Request) -> Response:
    """Return the line as it is stored, which is JSON with its digest and hash."""
    studio, seq = studio_of(request), request.path_params["seq"]
    job_id, run_id = request.path_params["job"], request.path_params["run"]
    await known_run(studio, job_id, run_id)
    found = await RunLines.of(studio, job_id, run_id).read(seq - 1, 1) if seq else ()
    if not found:
        raise NotFound(f"the log has no event {seq}")
    return Response(found[0].entry.line, media_type="application/json")
