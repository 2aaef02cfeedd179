"""Whoever hears of a Job as it goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from perstack.core.events import Event
from perstack.frontends.shared.live_state import LiveState, Told


class Listener(Protocol):
    """Whoever takes what happens as it comes, rather than look at the transcript."""

    def heard(self, event: Event, told: Sequence[Told], live: LiveState) -> None:
        """An event, with the rows that the log has of it, and what goes on now; of a Job that is opened the stored ones
        too, in order."""
        ...

    def remarked(self, word: str, text: str) -> None:
        """Words of this program."""
        ...
