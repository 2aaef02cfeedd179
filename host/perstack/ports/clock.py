"""The time of day, as it is handed in: nothing that the host decides or records asks the system for it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Where the time of day comes from. Give a Host another one to see what it does at another time."""

    def now(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...
