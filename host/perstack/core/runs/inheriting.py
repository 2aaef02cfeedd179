"""What a Run that continues another one begins with."""

from __future__ import annotations

from dataclasses import replace

from perstack.core.messages import History, TextPart, ToolCallPart, ToolMessage, ToolResultPart
from perstack.core.runs.context_state import ContextState
from perstack.core.runs.state import Phase, Run, latest_reply


def inherited(base: Run, *, same_model: bool) -> ContextState:
    """What a Run that continues another one knows of the messages that it begins with."""
    learned = base.context.learned if same_model else None
    return replace(base.context, learned=learned, overhead=0, freed=0, overflow=None, is_relieved=False, summarising="")


def inheritable(run: Run, place: str = "") -> History:
    """The messages that a Run which continues from here begins with: whole, every call with its result.

    `place` is that of results which none of its events has brought.
    """
    if run.phase not in (Phase.REPLIED, Phase.CALLING):
        return run.messages
    results = tuple(
        call.result if (call := run.calls.get(part.tool_call_id)) and call.result else _no_result(part)
        for part in latest_reply(run).tool_calls
    )
    return run.messages.append(ToolMessage(contents=results), place)


def _no_result(part: ToolCallPart) -> ToolResultPart:
    return ToolResultPart(
        tool_call_id=part.tool_call_id,
        tool_name=part.tool_name,
        contents=(TextPart(text="No result: the run was stopped before this call was answered."),),
        is_error=True,
    )
