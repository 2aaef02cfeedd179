"""The listener port: whoever wants to see events."""

from __future__ import annotations

from typing import Protocol

from perstack.core.events import Event


class Listener(Protocol):
    """Sees every event of a Job, stored ones after they are on disk.

    A listener that raises is reported once on stderr and left out from then on; it never ends a Run.
    """

    def on_event(self, event: Event, line: bytes) -> None:
        """`line` is the event's JSON as it stands in the log, without newline. Must not block."""
        ...
