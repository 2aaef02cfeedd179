"""Which events of a Run its model does not see any more, at the end of its log."""

from __future__ import annotations

from perstack.core.events import (
    AttemptCompletion,
    CallTools,
    FinishGeneration,
    FinishToolCall,
    ShrinkResults,
    StoredEvent,
)
from perstack.core.runs.state import Run


class Visibility:
    """Sees each event of a log with the state after it, in their order."""

    def __init__(self) -> None:
        self._events: dict[str, list[str]] = {}
        """The events that the message of a place tells of."""
        self._results: dict[str, str] = {}
        """By call, those that are not in a message yet."""
        self._calls: dict[tuple[str, str], str] = {}
        self._reply = ""
        self._shown: set[str] = set()
        self.shortened: set[str] = set()
        """Results of which the model sees the ends."""

    def observe(self, event: StoredEvent, run: Run) -> None:
        """Take in the next event."""
        match event:
            case FinishToolCall() | AttemptCompletion():
                self._results[event.tool_call_id] = event.id
            case CallTools() if self._reply in self._events:
                self._events[self._reply].append(event.id)
            case ShrinkResults():
                found = (self._calls.get((one.at, one.tool_call_id)) for one in event.results)
                self.shortened |= {one for one in found if one is not None}
            case FinishGeneration():
                self._reply = event.id
            case _:
                pass
        count = len(run.messages)
        if count and run.messages.place(count - 1) == event.id:
            self._events[event.id] = [event.id]
            if self._results:
                self._events[event.id] = list(self._results.values())
                self._calls.update({(event.id, call): one for call, one in self._results.items()})
                self._results = {}
        if event.type in ("compactHistory", "startRun"):
            self._shown = {run.messages.place(index) for index in range(count)}
        else:
            self._shown.add(event.id)

    @property
    def hidden(self) -> frozenset[str]:
        """The events of which the model sees nothing any more."""
        return frozenset(one for place, events in self._events.items() if place not in self._shown for one in events)
