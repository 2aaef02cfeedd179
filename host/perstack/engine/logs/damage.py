"""What can be wrong with an event of a log that is whole."""

from __future__ import annotations

from perstack.errors import Damaged
from perstack.ports.storage import RunRef


class BadEvent(Damaged):
    """An event that is not what belongs in its place. `reason` is why, and does not name the place."""

    def __init__(self, ref: RunRef, name: str, seq: int, reason: str, rest: str = "") -> None:
        super().__init__(f"{name}, event {seq}: {reason}{rest}", readable=seq - 1)
        self.ref = ref
        self.seq = seq
        self.reason = reason


class UnknownEvent(BadEvent):
    """An event that this version cannot read."""


class DoesNotFollow(BadEvent):
    """An event that cannot come after those before it."""

    def __init__(self, ref: RunRef, name: str, seq: int, error: Exception) -> None:
        super().__init__(ref, name, seq, f"it does not follow from what comes before it ({error})")
