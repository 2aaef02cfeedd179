"""Check and record the result of a Run, and report a delegate's steps and effects to its caller."""

from __future__ import annotations

from perstack.core.base.records import JsonObject
from perstack.core.definitions.result_schemas import Judged, correction
from perstack.core.runs.commands import Call
from perstack.core.runs.events import FinishRun, RejectResult
from perstack.core.runs.facts import DelegateReport, ErrorInfo, Stamps, at_checkpoint
from perstack.core.runs.messages import TextPart, UserMessage
from perstack.core.runs.state import Changes, Run
from perstack.core.runs.step_events import FinishToolCall

# Reports of ended Runs. A call had an effect if its tool may have one and it did not end in an error. A delegate's
# calls count for its caller too.


def effects_of(call: Call, event: FinishToolCall) -> int:
    """Return the number of calls with an effect that this result represents."""
    is_own = call.decided.kind == "tool" and call.decided.effect != "readOnly" and not event.is_error
    return int(is_own) + (0 if event.report is None else event.report.effects)


def lacks_effect(run: Run) -> bool:
    """Return True if the Run has not had the effect that its Expert declares."""
    return run.start.expert.effects and not run.effects


def report_of(run: Run, tool_name: str) -> DelegateReport:
    """Return the report of an ended delegate; `tool_name`: the name that the caller knows it by."""
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


MOST_REJECTED = 2  # the model sees the problem of the first rejected result; at the second the Run fails


def decided(run: Run, text: str, found: Judged, stamp: Stamps) -> FinishRun | RejectResult:
    """Return the event for a checked result."""
    if found.value is None:
        return RejectResult(**stamp(), problem=found.problem, text=correction(found.problem))
    return finished(run, text, found.value, stamp)


def finished(run: Run, text: str, value: JsonObject | None, stamp: Stamps) -> FinishRun:
    """Return the event that completes the Run."""
    return FinishRun(
        **at_checkpoint(stamp()), text=text, total_usage=run.usage, result=value, without_effect=lacks_effect(run)
    )


def rejected(run: Run, event: RejectResult) -> Changes:
    """Apply a rejection: the problem becomes the latest message."""
    return Changes(
        messages=run.messages.append(UserMessage(contents=(TextPart(text=event.text),)), event.id),
        result=None,
        accepted=False,
        final=False,
        rejections=run.rejections + 1,
        rejected_for=event.problem,
    )


def failure(run: Run) -> ErrorInfo | None:
    """Return the error of a Run whose results were rejected too often; None if it may continue."""
    if run.rejections < MOST_REJECTED:
        return None
    words = f"the result does not fit the schema that was asked for, and neither did the one before: {run.rejected_for}"
    return ErrorInfo(name="InvalidResult", message=words)
