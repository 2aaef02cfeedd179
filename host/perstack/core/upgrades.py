"""Older shapes of events, brought up to today's.

Each step is a pure function from one format to the next, never changed once released. Format 1 is the first.
"""

from __future__ import annotations

from perstack.core.events import FORMAT, StartRun, StoredEvent


class TooNew(ValueError):
    """A log that a newer version wrote, in a format this one does not know."""


def upgrade(event: StoredEvent) -> StoredEvent:
    """The event in today's shape. Raises TooNew."""
    if isinstance(event, StartRun) and event.format > FORMAT:
        raise TooNew(
            f"{event.run_id} was written in format {event.format}; this version reads up to {FORMAT}: upgrade it"
        )
    return event
