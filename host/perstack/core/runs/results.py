"""The result of a Run that a schema was asked for: what it is held to, and what becomes of one that does not fit."""

from __future__ import annotations

from perstack.core.base import JsonObject
from perstack.core.definitions import Expert
from perstack.core.events import FinishRun, RejectResult, StartRun
from perstack.core.messages import TextPart, UserMessage
from perstack.core.results import Judged, correction
from perstack.core.run_facts import ErrorInfo
from perstack.core.runs.changes import Changes
from perstack.core.runs.reports import lacks_effect
from perstack.core.runs.stamp import Stamps, at_checkpoint
from perstack.core.runs.state import Run

MOST_REJECTED = 2
"""The model sees what is wrong with the first; with the second the Run fails."""


def schema_of_run(start: StartRun) -> JsonObject | None:
    """What the result of a Run has to fit; None: any text is a result."""
    return wanted_schema(start.expert, start.output, is_coordinator=start.delegated_by is None)


def wanted_schema(expert: Expert, output: JsonObject | None, *, is_coordinator: bool) -> JsonObject | None:
    """A delegate's its `returns`, a Coordinator's what its caller wants, or else its `output`."""
    if not is_coordinator:
        return expert.returns
    return expert.output if output is None else output


def decided(run: Run, text: str, found: Judged, stamp: Stamps) -> FinishRun | RejectResult:
    """What becomes of a result, by what it is found to be."""
    if found.value is None:
        return RejectResult(**stamp(), problem=found.problem, text=correction(found.problem))
    return finished(run, text, found.value, stamp)


def finished(run: Run, text: str, value: JsonObject | None, stamp: Stamps) -> FinishRun:
    """The Run is completed."""
    return FinishRun(
        **at_checkpoint(stamp()), text=text, total_usage=run.usage, result=value, without_effect=lacks_effect(run)
    )


def rejected(run: Run, event: RejectResult) -> Changes:
    """The model continues with what is wrong as the latest message."""
    return Changes(
        messages=run.messages.append(UserMessage(contents=(TextPart(text=event.text),)), event.id),
        result=None,
        accepted=False,
        final=False,
        rejections=run.rejections + 1,
        rejected_for=event.problem,
    )


def failure(run: Run) -> ErrorInfo | None:
    """Why a Run whose results do not fit may not continue; None if it may."""
    if run.rejections < MOST_REJECTED:
        return None
    words = f"the result does not fit the schema that was asked for, and neither did the one before: {run.rejected_for}"
    return ErrorInfo(name="InvalidResult", message=words)
