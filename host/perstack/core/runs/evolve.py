"""The heart of perstack: the state machine of a Run, which folds events into the Run's state.

Rule 1: whether an event may follow, and the phase and status that it leads to, is decided in this file: by TRANSITIONS,
and by the few lines below it that fit into no table. The `fold` of an event's class changes the rest of the state, and
sets the phase only where the table leaves a choice.

Rule 2: nothing here knows who asks. A driver, a resumed process, a replay and a page that shows an old checkpoint get
the same state from the same events: without I/O, clock or randomness. So a crash loses no decision.

The life of one step; the names are those of TRANSITIONS:

    READY ──startGeneration──▶ GENERATING ──finishGeneration──▶ REPLIED ──callTools──▶ CALLING ─┐
      ▲                             ▲                              │ no calls                   │ every call
      │                             └── accepted, no text yet ─────┤                            │ has its result
      └───────────finishStep────────────────────────────────── SETTLED ◀────────────────────────┘

Theory of operation. A Run is event-sourced: its log is the only truth, and everything else is computed from the log.

- An event (`start.py`, `events/`) records something that happened. It is appended once and never edited.
- The state (`Run` in `state.py`) is the fold of the events: `begin` builds it from `startRun`, and from the state of
  another Run if this one continues it; `evolve` applies each later event. Nothing else changes it.
- A command (`commands.py`) is what to do next. `pending` (`pending.py`) computes it from the state alone; None means
  that the Run has stopped.
- The driver (`engine/runs/loop.py`) performs the command and appends the events that record its outcome, which `evolve`
  folds in turn. It decides nothing: the events of commands without a side effect are built in `decide.py`.

There are three machines. `Phase` is the position within a step. The status says why the Run has stopped, if it has: a
stop changes the status and not the phase, so that `resumeRun` continues where the Run was. `Run.closed` is final. An
event that cannot follow raises IllegalEvent: the driver never appends it, and a reader that finds it reports damage.

To replay a log, answers of the world (replies, results of tools, answers of people, stops) are taken from it.
Everything that the loop decides is computed again by `pending` and `evolve`, and must be exactly equal (`difference`).

To add an event, give it a row in TRANSITIONS, and a class in a module of `events/`, with its name in the module's
union. The class has its fields (each text with a mark `Redactable`), and says what it repeats of earlier events
(`repetitions`: a log that contradicts itself was edited), how it changes the Run (`fold`), how a replay judges it
(`is_decided`, `difference`) and how people read it (`describe`). Record it in `decide.py`, or in the engine module that
has the side effect; docs/architecture.md says how its documentation is made. A new command also needs a branch in
`pending.py` and in `engine/runs/loop.py`, and a phrase in `commands.py`. Old logs must fold to the same state in every
later version: a new field needs a default, and is left out of the JSON when it has that value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from perstack.core.base.chain import Head
from perstack.core.base.records import IllegalEvent
from perstack.core.definitions.job_status import ACTIVE, RunStatus
from perstack.core.runs.pending import pending
from perstack.core.runs.state import Phase, Run
from perstack.dataclass import dataclass, replace

if TYPE_CHECKING:
    # a new Run shows its first event before it needs the classes of the others
    from perstack.core.runs.events import StoredEvent
    from perstack.core.runs.events.base import LaterEvent

READY, GENERATING, REPLIED, CALLING, SETTLED = Phase
ANY_PHASE = tuple(Phase)
BEFORE_REPLY = (READY, GENERATING, SETTLED)
RUNNING: frozenset[RunStatus] = frozenset(("running",))
ANY_STATUS: frozenset[RunStatus] = frozenset(get_args(RunStatus))
NOT_COMPLETED: frozenset[RunStatus] = ANY_STATUS - {"completed"}


@dataclass(frozen=True, slots=True)
class RunTransition:
    """Row of TRANSITIONS: the phases and statuses that an event may follow, and the ones that it leads to."""

    phases: tuple[Phase, ...]  # no set, because hashing an enum member is slow
    statuses: frozenset[RunStatus]
    to_phases: tuple[Phase, ...] = ()  # empty if unchanged; of several `fold` chooses one
    to_status: RunStatus | None = None  # None if unchanged
    ends_pause: bool = False  # True: the time since the previous event is not work: maybe no process drove the Run
    # True: it concerns the log or the files. It may follow in a closed Run, and is neither work nor a Run's update
    is_maintenance: bool = False


# docs/architecture.md prints this table, and a test keeps the two equal.
TRANSITIONS: Mapping[str, RunTransition] = {
    # --- one step -----------------------------------------------------------------------------------------------------
    "startGeneration": RunTransition(BEFORE_REPLY, RUNNING, (GENERATING,)),  # in GENERATING: another attempt
    # GENERATING again if the reply is unusable or cut: then `pending` repeats it, replaces the model or fails
    "finishGeneration": RunTransition((GENERATING,), RUNNING, (GENERATING, REPLIED, SETTLED)),
    "retry": RunTransition(BEFORE_REPLY, RUNNING),
    # in CALLING for a generation that a tool requests
    "adaptRequest": RunTransition((READY, GENERATING, CALLING, SETTLED), ACTIVE),
    "switchModel": RunTransition(ANY_PHASE, RUNNING),
    "finishStep": RunTransition((SETTLED,), RUNNING, (READY,)),
    # --- calls of the reply: the last result settles the step ---------------------------------------------------------
    "callTools": RunTransition((REPLIED,), RUNNING, (CALLING,)),
    "startToolCall": RunTransition((CALLING,), ACTIVE),
    "startSample": RunTransition((CALLING,), ACTIVE),
    # the result of a delegate ends `stoppedByDelegate`: otherwise no `finishStep` could follow the last one
    "finishToolCall": RunTransition((CALLING,), ACTIVE, (CALLING, SETTLED), "running"),
    "callDelegate": RunTransition((CALLING,), ACTIVE),
    "stopRunByDelegate": RunTransition((CALLING,), ACTIVE, to_status="stoppedByDelegate"),
    "attemptCompletion": RunTransition((CALLING,), RUNNING, (CALLING, SETTLED)),
    # --- questions to a person: the question and the stop are two events, and after a crash only the stop is repeated -
    "callInteractiveTool": RunTransition((CALLING,), ACTIVE),
    "answerQuestion": RunTransition((CALLING,), RUNNING),
    "settleCall": RunTransition((CALLING,), RUNNING),
    "requestApproval": RunTransition((CALLING,), ACTIVE),
    "decideApproval": RunTransition((CALLING,), ACTIVE),
    "stopRunByInteractiveTool": RunTransition((CALLING,), ACTIVE, to_status="stoppedByInteractiveTool"),
    "changeCall": RunTransition((CALLING,), ACTIVE),
    "decideChangedCall": RunTransition((CALLING,), ACTIVE),
    # --- messages: never between a call and its result, since endpoints refuse a call without one ---------------------
    "shrinkResults": RunTransition(BEFORE_REPLY, RUNNING),
    "startCompaction": RunTransition(BEFORE_REPLY, RUNNING),
    "compactHistory": RunTransition(BEFORE_REPLY, RUNNING),
    "tellRun": RunTransition((READY, GENERATING), RUNNING),
    "dropText": RunTransition((READY, GENERATING), RUNNING),
    # --- files of the workspace ---------------------------------------------------------------------------------------
    "recordSnapshot": RunTransition((READY, CALLING, SETTLED), RUNNING),
    "startRewind": RunTransition(ANY_PHASE, ANY_STATUS, is_maintenance=True),
    "finishRewind": RunTransition(ANY_PHASE, ANY_STATUS, is_maintenance=True),
    # --- stops and resumptions change the status only: the Run continues in the phase where it stopped ----------------
    "resumeRun": RunTransition(ANY_PHASE, NOT_COMPLETED, to_status="running", ends_pause=True),
    "widenPermissions": RunTransition(ANY_PHASE, RUNNING),
    "rejectResult": RunTransition((READY,), RUNNING),
    "finishRun": RunTransition((READY,), RUNNING, to_status="completed"),
    "errorRun": RunTransition(ANY_PHASE, ACTIVE, to_status="stoppedByError"),
    "stopRunByExceededMaxSteps": RunTransition((READY, CALLING), ACTIVE, to_status="stoppedByMaxSteps"),
    "stopRunByExceededBudget": RunTransition(ANY_PHASE, ACTIVE, to_status="stoppedByBudget"),
    # also in a stopped Run: earlier versions recorded an interrupt right after another stop
    "stopRunByInterrupt": RunTransition(ANY_PHASE, NOT_COMPLETED, to_status="stoppedByInterrupt"),
    "queueRun": RunTransition(ANY_PHASE, frozenset(("running", "stoppedByInterrupt")), to_status="queued"),
    "closeRun": RunTransition(ANY_PHASE, NOT_COMPLETED, ends_pause=True),
    # what remains of the redacted event was folded at its own position
    "redactEvent": RunTransition(ANY_PHASE, ANY_STATUS, is_maintenance=True),
}


def evolve(run: Run, event: StoredEvent, head: Head) -> Run:
    """Return the state after one more event; nothing else changes state. Raises IllegalEvent if it cannot follow."""
    if event.type == "startRun":
        raise IllegalEvent("a second startRun")
    transition = TRANSITIONS[event.type]
    _raise_if_illegal(run, event, transition)
    folded = event.fold(run)
    updated_at = run.updated_at if transition.is_maintenance else max(run.updated_at, event.timestamp)
    was_at_work = run.status in ACTIVE and not transition.ends_pause and not transition.is_maintenance
    return replace(
        folded,
        head=head,
        phase=transition.to_phases[0] if len(transition.to_phases) == 1 else folded.phase,
        status=transition.to_status or run.status,
        updated_at=updated_at,
        worked_ms=run.worked_ms + (updated_at - run.updated_at if was_at_work else 0),
    )


def _raise_if_illegal(run: Run, event: LaterEvent, transition: RunTransition) -> None:
    if run.closed is not None and not transition.is_maintenance:
        raise IllegalEvent(f"{event.type} cannot follow where the Run was closed for good")
    if run.phase not in transition.phases or run.status not in transition.statuses:
        raise IllegalEvent(f"{event.type} cannot follow where the Run is {run.status} in phase {run.phase.name}")
    for repetition in event.repetitions(run):
        # an edited copy would otherwise decide what runs in place of the original that a person has seen
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
