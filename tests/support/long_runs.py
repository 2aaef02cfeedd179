"""Models with a small context window, which count request tokens as an endpoint does, and one that waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from perstack.core.messages.messages import ToolMessage, UserMessage, text_of
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack.testing.scripted import ScriptedProvider, Turn, TurnLike, fail, text, turn


def tokens_of(request: GenerationRequest) -> int:
    """Count tokens as an endpoint does: four characters of the conversation are one token."""
    messages = [message.model_dump(mode="json", exclude_none=True) for message in request.messages]
    tools = [spec.model_dump(mode="json", include={"name", "description", "input_schema"}) for spec in request.tools]
    return (len(request.instruction) + len(json.dumps(messages)) + len(json.dumps(tools))) // 4


def is_summary(request: GenerationRequest) -> bool:
    """Return whether the request asks for a summary of the history."""
    return not request.tools and not request.run_id


class SmallModel:
    """A model that answers with `reply` and true token counts, and refuses requests larger than its window."""

    def __init__(
        self,
        reply: Callable[[GenerationRequest], TurnLike],
        window: int,
        *,
        summary: Callable[[GenerationRequest], TurnLike] = lambda request: text("Notes: it went on."),
        tells: bool = True,
    ) -> None:
        self.reply = reply
        self.summary = summary
        self.window = window
        self.tells = tells
        """Whether a refusal states the window's size."""
        self.sent: list[int] = []
        """Request tokens of each generation of the Run itself."""
        self.summaries: list[int] = []
        self.refused = 0

    def __call__(self, request: GenerationRequest) -> TurnLike:
        tokens = tokens_of(request)
        if tokens > self.window:
            self.refused += 1
            max_tokens = self.window if self.tells else None
            message = "prompt is too long" + (f": {tokens} tokens > {self.window} maximum" if self.tells else "")
            return fail(400, message, name="ContextOverflow", context_window=max_tokens)
        is_for_summary = is_summary(request)
        (self.summaries if is_for_summary else self.sent).append(tokens)
        played = self.summary(request) if is_for_summary else self.reply(request)
        reply = played if isinstance(played, Turn) else text(played) if isinstance(played, str) else turn(played)
        return reply.model_copy(update={"usage": reply.usage.model_copy(update={"input_tokens": tokens})})


def texts_in(request: GenerationRequest) -> str:
    """Return the texts of queries and results in a request."""
    parts: list[str] = []
    for message in request.messages:
        if isinstance(message, UserMessage):
            parts.append(text_of(message.contents))
        elif isinstance(message, ToolMessage):
            parts += [text_of(part.contents) for part in message.contents]
    return "\n".join(parts)


class Patient(ScriptedProvider):
    """A model that waits before its first reply, and replies differently if it received an instruction meanwhile."""

    def __init__(self) -> None:
        super().__init__(lambda request: "In lower case." if "lower case, please" in texts_in(request) else "Old Pond.")
        self.may_reply = asyncio.Event()

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        await self.may_reply.wait()
        return await super().generate(request, on_delta)
