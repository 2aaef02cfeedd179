"""What of a model's reply can be kept, sent back and digested: not everything that JSON can spell."""

from __future__ import annotations

from math import isfinite

from perstack.core.base import JsonObject
from perstack.core.checking import DEEPEST
from perstack.core.depth import layers
from perstack.core.messages import ExpertMessage, TextPart, ToolCallPart


def usable_reply(reply: ExpertMessage) -> ExpertMessage:
    """The same; arguments that cannot be kept are replaced by the reason, and so refused with it.

    Raises ValueError for a reply of which no part but the arguments is at fault.
    """
    if any(_problem(part.opaque) for part in reply.contents if not isinstance(part, TextPart) and part.opaque):
        raise ValueError("the reply is nested too deep to be kept")
    problems = {
        index: problem
        for index, part in enumerate(reply.contents)
        if isinstance(part, ToolCallPart) and (problem := _problem(part.args)) is not None
    }
    if not problems:
        return reply
    contents = tuple(
        part.model_copy(update={"args": {}, "raw_args": problems[index]}) if index in problems else part
        for index, part in enumerate(reply.contents)
    )
    return reply.model_copy(update={"contents": contents})


def _problem(args: JsonObject) -> str | None:
    for level, layer in enumerate(layers(args)):
        if level > DEEPEST:
            return f"(they have more than {DEEPEST} levels)"
        if any(isinstance(value, float) and not isfinite(value) for value in layer):
            return "(they have a number that is not finite)"
    return None
