"""Which fact may follow in which state of a Run, and where it leads. The one table: `evolve` and the docs use it."""

from __future__ import annotations

from typing import get_args

from perstack.core.events import StoredEvent
from perstack.core.runs.state import Phase, Run, RunStatus
from perstack.core.transitions import IllegalFact
from perstack.dataclass import dataclass

ACTIVE: frozenset[RunStatus] = frozenset(("running", "stoppedByDelegate"))
"""A Run that its driver works on; it may do so by driving the Run's delegates."""
_RUNNING: frozenset[RunStatus] = frozenset(("running",))
_LEFT: frozenset[RunStatus] = frozenset(("running", "stoppedByInterrupt"))
_ALL: frozenset[RunStatus] = frozenset(get_args(RunStatus))
_OPEN = _ALL - {"completed"}
_ALWAYS = frozenset(("startRewind", "finishRewind", "redactEvent"))
"""What a person does to files and logs, and not the Run: also where nothing continues it any more."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Where one kind of fact may follow, and where it leads."""

    phases: frozenset[Phase]
    statuses: frozenset[RunStatus]
    to_phases: frozenset[Phase] = frozenset()
    """Empty: the phase stays."""
    to_status: RunStatus | None = None
    """None: the status stays."""


def _transition(
    phases: tuple[Phase, ...],
    statuses: frozenset[RunStatus],
    to: tuple[Phase, ...] = (),
    status: RunStatus | None = None,
) -> Transition:
    return Transition(frozenset(phases), statuses, frozenset(to), status)


_READY, _GENERATING, _REPLIED, _CALLING, _SETTLED = Phase
_ANY = tuple(Phase)

TRANSITIONS: dict[str, Transition] = {
    "resumeRun": _transition(_ANY, _OPEN, status="running"),
    "startGeneration": _transition((_READY, _GENERATING, _SETTLED), _RUNNING, (_GENERATING,)),
    "finishGeneration": _transition((_GENERATING,), _RUNNING, (_GENERATING, _REPLIED, _SETTLED)),
    "retry": _transition((_READY, _GENERATING, _SETTLED), _RUNNING),
    "switchModel": _transition(_ANY, _RUNNING),
    "callTools": _transition((_REPLIED,), _RUNNING, (_CALLING,)),
    "finishToolCall": _transition((_CALLING,), ACTIVE, (_CALLING, _SETTLED), "running"),
    "callDelegate": _transition((_CALLING,), ACTIVE),
    "stopRunByDelegate": _transition((_CALLING,), ACTIVE, status="stoppedByDelegate"),
    "callInteractiveTool": _transition((_CALLING,), ACTIVE),
    "answerQuestion": _transition((_CALLING,), _RUNNING),
    "requestApproval": _transition((_CALLING,), ACTIVE),
    "decideApproval": _transition((_CALLING,), ACTIVE),
    "startToolCall": _transition((_CALLING,), ACTIVE),
    "startSample": _transition((_CALLING,), ACTIVE),
    "widenPermissions": _transition(_ANY, _RUNNING),
    "stopRunByInteractiveTool": _transition((_CALLING,), ACTIVE, status="stoppedByInteractiveTool"),
    "attemptCompletion": _transition((_CALLING,), _RUNNING, (_CALLING, _SETTLED)),
    "shrinkResults": _transition((_READY, _GENERATING, _SETTLED), _RUNNING),
    "startCompaction": _transition((_READY, _GENERATING, _SETTLED), _RUNNING),
    "compactHistory": _transition((_READY, _GENERATING, _SETTLED), _RUNNING),
    "recordSnapshot": _transition((_READY, _CALLING, _SETTLED), _RUNNING),
    "finishStep": _transition((_SETTLED,), _RUNNING, (_READY,)),
    "rejectResult": _transition((_READY,), _RUNNING),
    "finishRun": _transition((_READY,), _RUNNING, status="completed"),
    "errorRun": _transition(_ANY, ACTIVE, status="stoppedByError"),
    "stopRunByExceededMaxSteps": _transition((_READY, _CALLING), ACTIVE, status="stoppedByMaxSteps"),
    "stopRunByExceededBudget": _transition(_ANY, ACTIVE, status="stoppedByBudget"),
    # earlier versions recorded an interrupt also of a Run that had stopped for another reason in that moment
    "stopRunByInterrupt": _transition(_ANY, _OPEN, status="stoppedByInterrupt"),
    "queueRun": _transition(_ANY, _LEFT, status="queued"),
    "closeRun": _transition(_ANY, _OPEN),
    "startRewind": _transition(_ANY, _ALL),
    "finishRewind": _transition(_ANY, _ALL),
    "redactEvent": _transition(_ANY, _ALL),
}
"""By the type of the event. `startRun` is not in it: it makes the Run."""


def check_legal(run: Run, event: StoredEvent) -> None:
    """Raises IllegalFact for an event that cannot follow in this state."""
    known = TRANSITIONS.get(event.type)
    if known is None:
        raise IllegalFact(f"a second {event.type}")
    if run.closed is not None and event.type not in _ALWAYS:
        raise IllegalFact(f"{event.type} cannot follow where the Run was closed for good")
    if run.phase not in known.phases or run.status not in known.statuses:
        raise IllegalFact(f"{event.type} cannot follow where the Run is {run.status} in phase {run.phase.name}")
    if event.type == "retry" and run.phase is not Phase.GENERATING and not run.context.summarising:
        raise IllegalFact("retry cannot follow where nothing is generated")
