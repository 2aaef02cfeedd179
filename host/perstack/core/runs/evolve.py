"""The heart of perstack: fold a Run's events into its state, and check that the loop would have recorded them.

A Run is event-sourced. Its log is the only truth, and everything else is computed from the log by pure functions,
without I/O, clock or randomness:

- An event (`start.py`, `events/`) records something that happened. It is appended once and never edited.
- The state (`Run` in `state.py`) is the fold of the events: `begin` builds it from `startRun`, and from the state of
  another Run if this one continues it; `evolve` applies each later event. Nothing else changes it.
- A command (`commands.py`) is what to do next. `pending` (`pending.py`) computes it from the state alone; None means
  that the Run has stopped.
- The driver (`engine/runs/loop.py`) performs the command and appends the events that record its outcome, which `evolve`
  folds in turn. It decides nothing: the events of commands without a side effect are built in `decide.py`.

Therefore a crash loses no decision: read the log, fold it, perform what is pending. Resuming, branching, and showing an
old checkpoint are one fold, over a whole log or its beginning. Each delegate is a Run with its own log, which its
parent awaits.

The state machine has two dimensions. `Phase` is the position within a step; the status says why the Run has stopped, if
it has. A stop changes the status and not the phase, so that `resumeRun` continues where the Run was. `follows` of an
event's class lists the phases and statuses that the event may follow and those that it leads to. `evolve` raises
IllegalEvent for any other event: the driver never appends it, and a reader that finds it in a log reports damage.

To replay a log, answers of the world (replies, results of tools, answers of people, stops) are taken from it.
Everything that the loop decides is computed again by `pending` and `evolve`, and must be exactly equal (`difference`).

To add an event, write its class in a module of `events/` and add the name to the module's union. The class has its
fields (each text with a mark `Written`), and says where it is legal (`follows`), what it repeats of earlier events
(`repetitions`: a log that contradicts itself was edited), how it changes the Run (`fold`), how a replay judges it
(`is_decided`, `difference`) and how people read it (`describe`). Record it in `decide.py`, or in the engine module that
has the side effect; docs/architecture.md says how its documentation is made. A new command also needs a branch in
`pending.py` and in `engine/runs/loop.py`, and a phrase in `commands.py`. Old logs must fold to the same state in every
later version: a new field needs a default, and is left out of the JSON when it has that value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perstack.core.base.chain import Head
from perstack.core.base.records import IllegalEvent
from perstack.core.definitions.job_status import ACTIVE
from perstack.core.runs.pending import pending
from perstack.core.runs.state import Run
from perstack.dataclass import replace

if TYPE_CHECKING:
    # a new Run shows its first event before it needs the classes of the others
    from perstack.core.runs.events import StoredEvent
    from perstack.core.runs.events.base import LaterEvent


def evolve(run: Run, event: StoredEvent, head: Head) -> Run:
    """Return the state after one more event; nothing else changes state. Raises IllegalEvent if it cannot follow."""
    if event.type == "startRun":
        raise IllegalEvent("a second startRun")
    _raise_if_illegal(run, event)
    updated_at = run.updated_at if event.is_of_person else max(run.updated_at, event.timestamp)
    was_at_work = run.status in ACTIVE and not event.ends_pause and not event.is_of_person
    return replace(
        event.fold(run),
        head=head,
        status=event.follows.to_status or run.status,
        updated_at=updated_at,
        worked_ms=run.worked_ms + (updated_at - run.updated_at if was_at_work else 0),
    )


def _raise_if_illegal(run: Run, event: LaterEvent) -> None:
    if run.closed is not None and not event.is_of_person:
        raise IllegalEvent(f"{event.type} cannot follow where the Run was closed for good")
    if run.phase not in event.follows.phases or run.status not in event.follows.statuses:
        raise IllegalEvent(f"{event.type} cannot follow where the Run is {run.status} in phase {run.phase.name}")
    for repetition in event.repetitions(run):
        if repetition.decides and repetition.value != repetition.known_value and not repetition.is_emptied:
            raise IllegalEvent(f"{event.type} {repetition.contradiction}")


def difference(run: Run, event: StoredEvent) -> str | None:
    """Return what is wrong with `event` as the next one after the state `run`; None if nothing is."""
    if not event.is_decided:
        return None
    if run.snapshot_due != "no" and _answers_question(event, run):
        run = replace(run, snapshot_due="no")  # the loop records an answer right after `resumeRun`, before a snapshot
    command = pending(run)
    if event.type == "startRun":
        from perstack.core.runs.events.base import unexpected_event

        return unexpected_event(event, run, command)
    return event.difference(run, command)


def _answers_question(event: StoredEvent, run: Run) -> bool:
    from perstack.core.runs.events.changed_calls import ChangeCall
    from perstack.core.runs.events.questions import AnswerQuestion, DecideApproval, SettleCall
    from perstack.core.runs.events.tool_calls import FinishToolCall

    return (
        isinstance(event, FinishToolCall | AnswerQuestion | SettleCall | DecideApproval | ChangeCall)
        and event.tool_call_id == run.asked_call_id
    )
