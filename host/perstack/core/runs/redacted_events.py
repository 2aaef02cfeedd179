"""Read a redacted event: the line keeps its digest and hash, and a later `redactEvent` of the log has what remains."""

from __future__ import annotations

import json
from collections.abc import Iterable

from perstack.core.base.chain import RedactedRemains
from perstack.core.base.ids import event_id_of, place_of
from perstack.core.base.records import blank
from perstack.core.runs import events


class UnverifiedRedaction(ValueError):
    """A line that claims to be redacted without a valid `redactEvent` in its log."""


def restore_event(
    line_remains: RedactedRemains, digest: str, seq: int, redactions: Iterable[events.RedactEvent]
) -> events.StoredEvent:
    """Return what a log's `redactEvent` says remains of the event at `seq`. Raises UnverifiedRedaction."""
    event = next(
        (
            redaction
            for redaction in redactions
            if redaction.event_id == line_remains.id and place_of(redaction.id)[2] > seq
        ),
        None,
    )
    if event is None or line_remains.id != event_id_of(event.run_id, seq):
        raise UnverifiedRedaction("its content was removed, and no redactEvent accounts for it")
    if (event.event_type, event.digest) != (line_remains.type, digest):
        raise UnverifiedRedaction(f"its content was removed, but {event.id} accounts for another event")
    remains = parse_remains(event)
    if (
        remains is None
        or remains.type != line_remains.type
        or not events.is_at_home(remains, event.job_id, event.run_id, seq)
    ):
        raise UnverifiedRedaction(f"{event.id} replaces it by content that a redaction cannot leave")
    return remains


def parse_remains(event: events.RedactEvent) -> events.StoredEvent | None:
    """Return the event that a `redactEvent` contains; None if it is invalid or has text in it."""
    try:
        remains = events.parse_event(json.dumps(event.remains).encode())
    except ValueError:
        return None
    return remains if remains == blank(remains) and not isinstance(remains, events.RedactEvent) else None
