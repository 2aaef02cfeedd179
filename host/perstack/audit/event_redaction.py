"""Redaction: remove the texts of an event, and check what remains of it.

The line of a redacted event keeps its digest and hash, so that the chain stays intact, but has no payload. The Run's
state is folded from a replacement in a later `redactEvent` of that log, which the chain covers: the event with its
ids, numbers and usage, and `[redacted]` for every text that a person, a model or a tool wrote. A `redactEvent` with any
other text is rejected, so that a redaction cannot put words into a log. Fields with such a text have a mark where they
are declared (`Redactable` in `core/base/records.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from perstack.core.base.records import JsonObject, blank, texts_in
from perstack.core.runs import events
from perstack.dataclass import dataclass
from perstack.errors import UsageError


@dataclass(frozen=True, slots=True)
class Redaction:
    """A redacted event, for people."""

    run_id: str
    seq: int
    type: str
    by: str
    reason: str
    at: int  # milliseconds since 1970
    fields: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()  # known copies of the text at that time

    def to_json(self) -> JsonObject:
        """Return the JSON of `verify --json`."""
        return {
            "runId": self.run_id,
            "seq": self.seq,
            "type": self.type,
            "by": self.by,
            "reason": self.reason,
            "at": self.at,
            "fields": [*self.fields],
            "blobs": [*self.blobs],
            "copies": [*self.copies],
        }


def fields_to_blank(event: events.StoredEvent) -> tuple[str, ...]:
    """Return the JSON names of the fields that `blank` changes in this event; empty if there are none."""
    before, after = _fields_as_json(event), _fields_as_json(blank(event))
    return tuple(key for key in before if before[key] != after.get(key))


def check_fields(event: events.StoredEvent, names: Iterable[str]) -> tuple[str, ...]:
    """Return the fields whose texts are removed: always all, as one digest covers them. Raises UsageError."""
    fields = fields_to_blank(event)
    if not fields:
        raise UsageError(f"event {event.id} ({event.type}) has no text that can be removed")
    unknown_names = [name for name in names if name not in fields]
    if unknown_names:
        raise UsageError(
            f"event {event.id} ({event.type}) has no text in {', '.join(unknown_names)}; fields that can be removed:"
            f" {', '.join(fields)}"
        )
    return fields


_SETTINGS = frozenset(("expert", "instruction", "definition", "permissions", "output", "widening"))
"""Fields with texts of a definition, which are in every Run of an Expert."""


def texts_to_blank(event: events.StoredEvent, names: Iterable[str] = ()) -> frozenset[str]:
    """Return the texts that `blank` removes from the named fields, or from all but settings if none is named."""
    before, after = _fields_as_json(event), _fields_as_json(blank(event))
    fields = frozenset(names) or before.keys() - _SETTINGS
    kept_texts = frozenset(texts_in(after))
    removed_texts = (texts_in(value) for key, value in before.items() if key in fields and value != after.get(key))
    return frozenset(text for texts in removed_texts for text in texts if text not in kept_texts)


def redaction_of(event: events.RedactEvent, seq: int) -> Redaction:
    """Return the redaction for people; `seq`: position of the redacted event."""
    values = event.run_id, seq, event.event_type, str(event.by), event.reason, event.timestamp
    return Redaction(*values, event.fields, event.blobs, event.copies)


def remaining_fields(event: events.StoredEvent) -> JsonObject:
    """Return the fields that stay of a redacted event, as `redactEvent` records them."""
    return _fields_as_json(blank(event))


def _fields_as_json(event: events.StoredEvent) -> JsonObject:
    fields: JsonObject = json.loads(event.to_json())
    return fields
