"""What an event's line says to a person, also if this version does not know its shape."""

from __future__ import annotations

from perstack.core.chain import open_line, taken_out
from perstack.core.events import FinishGeneration
from perstack.core.messages import ToolCallPart
from perstack.frontends.shared.log_entries import Entry, parse_line
from perstack.frontends.shared.log_rows import Around, Row, describe


def rows_of(entry: Entry, around: Around) -> list[Row]:
    """The rows of one event."""
    try:
        return describe(parse_line(entry.line), around)
    except ValueError:
        if taken_out(open_line(entry.line).payload) is not None:
            return [Row("redacted", f"{entry.type}: its content was taken out", "dim")]
        # a newer version's event: better its bytes than nothing
        return [Row(entry.type or "?", entry.line.decode(errors="replace"), "dim")]


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
