"""What an event's line says to a person, also if this version does not know its shape."""

from __future__ import annotations

from perstack.core.chain import BrokenSeal, open_line, taken_out
from perstack.core.events import CallInteractiveTool, FinishGeneration, RequestApproval, StoredEvent
from perstack.core.messages import ToolCallPart
from perstack.core.runs.asking import OpenQuestion, approval_question, open_question
from perstack.frontends.shared.log_entries import Entry, Place, parse_line
from perstack.frontends.shared.log_rows import Around, Row, describe

_QUESTIONS = (b'{"type":"callInteractiveTool"', b'{"type":"requestApproval"')
_NEAR = 5
"""A question stands so many events before the stop that it makes, at most."""


def rows_of(entry: Entry, around: Around) -> list[Row]:
    """The rows of one event."""
    try:
        return describe(parse_line(entry.line), around)
    except ValueError:
        if _is_taken_out(entry.line):
            return [Row("redacted", f"{entry.type}: its content was taken out", "dim")]
        # a newer version's event: better its bytes than nothing
        return [Row(entry.type or "?", entry.line.decode(errors="replace"), "dim")]


def _is_taken_out(line: bytes) -> bool:
    try:
        return taken_out(open_line(line).payload) is not None
    except BrokenSeal:
        return False


def question_at(place: Place) -> str:
    """What a person was asked at a checkpoint where one was; empty if that does not read, or was a delegate's."""
    event = _asks_at(place)
    rows = [] if event is None else describe(event, Around({}))
    return rows[0].text if rows else ""


def asked_at(place: Place) -> OpenQuestion | None:
    """The same, with who asked and what an answer looks like; None where nothing was asked."""
    match _asks_at(place):
        case CallInteractiveTool() as event:
            return open_question(event)
        case RequestApproval() as event:
            return approval_question(event)
        case _:
            return None


def _asks_at(place: Place) -> StoredEvent | None:
    log = place.entry.log
    for at in range(place.entry.place - 1, max(-1, place.entry.place - _NEAR), -1):
        if log.lines[at].startswith(_QUESTIONS):
            try:
                return parse_line(log.lines[at])
            except ValueError:
                return None
    return None


def calls_before(entry: Entry) -> dict[str, ToolCallPart]:
    """The calls of the reply that was last before this event."""
    for place in range(entry.place - 1, max(-1, entry.place - 5), -1):
        try:
            event = parse_line(entry.log.lines[place])
        except ValueError:
            continue
        if isinstance(event, FinishGeneration):
            return {part.tool_call_id: part for part in event.message.tool_calls}
    return {}
