"""Find the events of a Run's log that its model no longer sees, in full or at all."""

from __future__ import annotations

from contextlib import suppress

from perstack.core.base.ids import job_of_run
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.context import ShrinkResults
from perstack.core.runs.events.generations import FinishGeneration
from perstack.core.runs.events.tool_calls import AttemptCompletion, CallTools, FinishToolCall
from perstack.core.runs.state import Run
from perstack.engine.log.run_log import load_run
from perstack.errors import Damaged
from perstack.ports.storage import RunRef, Storage


class Visibility:
    """A tracker of hidden events, which observes a log's events in order with the state after each."""

    def __init__(self) -> None:
        self._events: dict[str, list[str]] = {}  # ids of the events that a message shows, by the message's event id
        self._results: dict[str, str] = {}  # event ids by call, of results that are not in a message yet
        self._calls: dict[tuple[str, str], str] = {}
        self._reply = ""
        self._shown: set[str] = set()
        self.shortened: set[str] = set()  # event ids of results of which the model sees only the beginning and end

    def observe(self, event: StoredEvent, run: Run) -> None:
        match event:
            case FinishToolCall() | AttemptCompletion():
                self._results[event.tool_call_id] = event.id
            case CallTools() if self._reply in self._events:
                self._events[self._reply].append(event.id)
            case ShrinkResults():
                event_ids = (self._calls.get((result.at, result.tool_call_id)) for result in event.results)
                self.shortened |= {event_id for event_id in event_ids if event_id is not None}
            case FinishGeneration():
                self._reply = event.id
            case _:
                pass
        count = len(run.messages)
        if count and run.messages.place(count - 1) == event.id:
            self._events[event.id] = [event.id]
            if self._results:
                self._events[event.id] = list(self._results.values())
                self._calls.update({(event.id, call): event_id for call, event_id in self._results.items()})
                self._results = {}
        if event.type in ("compactHistory", "startRun"):
            self._shown = {run.messages.place(index) for index in range(count)}
        else:
            self._shown.add(event.id)

    @property
    def hidden(self) -> frozenset[str]:
        """The ids of the events of which the model no longer sees anything."""
        return frozenset(
            event_id for message_id, ids in self._events.items() if message_id not in self._shown for event_id in ids
        )


async def visibility_of(storage: Storage, run_id: str) -> Visibility:
    """Return which events of a Run its model no longer sees, as far as the log can be read."""
    visibility = Visibility()
    with suppress(Damaged):
        await load_run(storage, RunRef(job_of_run(run_id), run_id), observe=visibility.observe)
    return visibility
