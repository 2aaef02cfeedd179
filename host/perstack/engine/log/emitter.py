"""Showing events to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from perstack.core.definitions import Limits
from perstack.core.events import Event, InitializeRuntime, StartRun
from perstack.core.secret_text import masked_words
from perstack.engine.notices import notice
from perstack.ports.listener import Listener
from perstack.version import VERSION

OnEvent = Callable[[Event, bytes], None]
"""The event, and its line as it stands in the log."""


class DisplayStamp(TypedDict):
    """What every event that is only shown has."""

    id: str
    timestamp: int
    job_id: str
    run_id: str


def runtime_begins(start: StartRun, limits: Limits, location: str, now: int) -> InitializeRuntime:
    """That the host begins to work on a Run now, with state at that place."""
    return InitializeRuntime(
        id=f"{start.run_id}-init",
        timestamp=now,
        job_id=start.job_id,
        run_id=start.run_id,
        runtime_version=VERSION,
        expert_key=start.expert_key,
        model=start.model,
        provider=start.provider,
        max_steps=limits.max_steps,
        storage=masked_words(location),
    )


class Emitter:
    """Hands each event to every listener; one that raises is named once and left out from then on."""

    def __init__(self, listeners: Sequence[Listener], on_event: OnEvent | None) -> None:
        self._listeners: list[OnEvent] = [listener.on_event for listener in listeners]
        if on_event is not None:
            self._listeners.append(on_event)

    def __call__(self, event: Event, line: bytes) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event, line)
            except Exception as error:  # noqa: BLE001 - a listener's fault must not end a Run
                self._listeners.remove(listener)
                name = getattr(listener, "__qualname__", repr(listener))
                text = f"listener {name} raised {type(error).__name__}: {error}; it is left out from now on"
                notice(text)

    def display(self, event: Event) -> None:
        """Show an event that is not stored."""
        if self._listeners:
            self(event, event.to_json())
