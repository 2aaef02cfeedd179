"""Show events to listeners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from perstack.core.base.secrets import masked_words
from perstack.core.definitions.experts import Limits
from perstack.core.runs.display_events import InitializeRuntime
from perstack.core.runs.events import Event, StartRun
from perstack.ports.hooks import Listener
from perstack.system.user import notice
from perstack.version import VERSION

OnEvent = Callable[[Event, bytes], None]
"""Listener that receives an event and its line as stored in the log."""


class DisplayStamp(TypedDict):
    """Common fields of events that are shown but not stored."""

    id: str
    timestamp: int
    job_id: str
    run_id: str


def runtime_begins(start: StartRun, limits: Limits, location: str, now: int) -> InitializeRuntime:
    """Create the event that says that the host starts to work on a Run, with the storage's location."""
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
    """Calls every listener with each event. A listener that raises is reported once and removed."""

    def __init__(self, listeners: Sequence[Listener], on_event: OnEvent | None) -> None:
        """Register the listeners of plugins, and `on_event` of the caller if there is one."""
        self._listeners: list[OnEvent] = [listener.on_event for listener in listeners]
        if on_event is not None:
            self._listeners.append(on_event)

    def __call__(self, event: Event, line: bytes) -> None:
        """Show an event to all listeners."""
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
