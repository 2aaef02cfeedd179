"""What a Run says of itself when it has ended: steps, and calls that had an effect.

A call had an effect if its tool may have one, and it did not end in an error. A delegate's calls are its caller's too.
"""

from __future__ import annotations

from perstack.core.commands import Call
from perstack.core.events import FinishToolCall
from perstack.core.run_facts import DelegateReport
from perstack.core.runs.state import Run


def effects_of(call: Call, event: FinishToolCall) -> int:
    """How many calls with an effect this result stands for."""
    is_own = call.decided.kind == "tool" and call.decided.effect != "readOnly" and not event.is_error
    return int(is_own) + (0 if event.report is None else event.report.effects)


def lacks_effect(run: Run) -> bool:
    """Whether the Run, completed as it stands, has not had the effect that its Expert declares."""
    return run.start.expert.effects and not run.effects


def report_of(run: Run, tool_name: str) -> DelegateReport:
    """The report of a delegate that has ended, for the caller that knows it under this name."""
    is_completed = run.status == "completed"
    did = f"{_counted(run.step, 'step')}, {_counted(run.effects, 'call')} with an effect"
    text = f"({tool_name}: {'completed in' if is_completed else 'failed after'} {did})"
    if run.without_effect:
        text += " Its work should have an effect, and none of its calls had one: check before you rely on its result."
    return DelegateReport(
        outcome="completed" if is_completed else "failed",
        steps=run.step,
        effects=run.effects,
        without_effect=run.without_effect,
        text=text,
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
