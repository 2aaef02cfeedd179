"""The base of the events that may follow `startRun`, and what their methods share."""

from collections.abc import Iterable
from typing import NamedTuple, cast

from perstack.core.base.ids import By
from perstack.core.base.records import IllegalEvent, Record, blank
from perstack.core.base.text import REDACTED
from perstack.core.base.usage import Charge, Spending, Usage
from perstack.core.definitions.permissions import UNATTENDED
from perstack.core.messages.messages import ToolMessage, ToolResultPart
from perstack.core.messages.standing import Saying, with_place
from perstack.core.runs.commands import Call, Command, RunTools, command_phrase
from perstack.core.runs.facts import RunEvent
from perstack.core.runs.open_questions import OpenQuestion
from perstack.core.runs.repeats import count_repeats
from perstack.core.runs.state import Phase, Run
from perstack.dataclass import replace


class Repetition(NamedTuple):  # no dataclass: several are made for each event that is read
    """A value of an event that an earlier event of the Run, or the Run's state, has too."""

    name: str
    value: object
    known_value: object
    decides: bool = False  # True: it decides what runs, or what a person agrees to, so it makes the event illegal
    is_emptied: bool = False  # True: a redaction may have emptied one of the two, so they may differ

    @property
    def contradiction(self) -> str | None:
        """Phrase that contrasts the two values; None if they are equal."""
        if self.value == self.known_value:
            return None
        value, known_value = _shortened(self.value), _shortened(self.known_value)
        return f"says {self.name} {value}, where an earlier event says {known_value}"


_MAX_REPEATED_CHARS = 120


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_REPEATED_CHARS else f"{text[: _MAX_REPEATED_CHARS - 1]}…"


def is_emptied(value: object) -> bool:
    """Return True if a value may be what a redaction leaves of a text, of arguments, or of records with them."""
    if isinstance(value, Record):
        return blank(value) == value
    if isinstance(value, tuple):
        return all(map(is_emptied, cast("tuple[object, ...]", value)))
    return value in (None, "", REDACTED, {}, {"question": REDACTED})


class LaterEvent(RunEvent):
    """An event after `startRun`: how it changes the Run, and how a replay judges it. `evolve.py` has its transition."""

    def fold(self, run: Run) -> Run:
        """Return the Run after this event, apart from its status. Raises IllegalEvent if its content cannot follow."""
        return run

    def repetitions(self, run: Run) -> Iterable[Repetition]:
        """Return the values that the event repeats. Every reader compares those with `decides`, and `verify` all.

        Include every field that repeats something of the log before it: an edited copy must not replace the original.
        """
        return ()

    def difference(self, run: Run, command: Command | None) -> str | None:
        """Return what is wrong with the event where `command` is pending; None if nothing is."""
        return unexpected_event(self, run, command)


# Replay.


def unexpected_event(event: RunEvent, run: Run, command: Command | None) -> str:
    """Return the difference of an event of another type than the command leads to."""
    if command is None:
        return f"{event.type} after the Run stopped ({run.status})"
    return f"{event.type}, where the loop would {command_phrase(command)}"


def difference_of(expected: object, actual: object, name: str) -> str | None:
    """Return how two values differ; None if they are equal."""
    return None if expected == actual else f"{name} {actual!r}, where the loop has {expected!r}"


def running_difference(event: RunEvent, call_id: str, run: Run, command: Command | None) -> str | None:
    """Return why an event that a running call causes cannot follow; None if it can."""
    if not isinstance(command, RunTools):
        return unexpected_event(event, run, command)
    return open_call_difference([call.decided.id for call in command.calls], call_id)


def open_call_difference(open_ids: list[str], call_id: str) -> str | None:
    """Return why an event about this call cannot follow: the call is not open. None if it is."""
    return None if call_id in open_ids else f"a result of {call_id}, where only {', '.join(open_ids)} are open"


# Calls, questions and spending.


def open_call(run: Run, call_id: str) -> Call:
    """Return the call. Raises IllegalEvent if it does not exist or already has its one result."""
    call = run.calls.get(call_id)
    if call is None or call.result is not None:
        raise IllegalEvent(f"the Run has no open call {call_id!r}")
    return call


def with_result(run: Run, call: Call, result: ToolResultPart, event_id: str) -> Run:
    """Add a call's result. The last one settles the step: all results become one message."""
    calls = {**run.calls, call.decided.id: replace(call, result=result)}
    results = tuple(other.result for other in calls.values() if other.result is not None)
    if len(results) < len(calls):
        return replace(run, calls=calls)
    return replace(
        run,
        calls=calls,
        phase=Phase.SETTLED,
        messages=run.messages.append(ToolMessage(contents=results), event_id),
        sayings=with_place(run.sayings, event_id),
        repeats=count_repeats(run, calls.values()),
    )


def with_saying(run: Run, event_id: str, text: str, by: By | None, place: str = "") -> Run:
    """Return the Run with a person's text. Texts of other programs, and of unattended Jobs, are not kept."""
    if by is None or by.source or by.door == UNATTENDED or not text.strip():
        return run
    return replace(run, sayings=(*run.sayings, Saying(event_id, text, place, by)))


def without_question(questions: dict[str, OpenQuestion], call_id: str) -> dict[str, OpenQuestion]:
    """Return the open questions of the other calls."""
    return {other_id: question for other_id, question in questions.items() if other_id != call_id}


def add_spending(run: Run, usage: Usage | None, charge: Charge | None = None) -> Spending:
    return run.spending.add(usage, charge, model=run.active_model if run.start.fallbacks else "")


def settle_reservation(run: Run, *, is_charged: bool) -> Run:
    """Return the Run without its reservation, which is charged or not."""
    return replace(run, spending=run.spending.settle(is_charged=is_charged))
