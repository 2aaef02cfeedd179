"""Models with a small context window, which count what they are sent as an endpoint does."""

from __future__ import annotations

import json
from collections.abc import Callable

from perstack.core.messages import ToolMessage, UserMessage, text_of
from perstack.ports.provider import GenerationRequest
from perstack.testing.scripted import Turn, TurnLike, fail, text, turn


def tokens_of(request: GenerationRequest) -> int:
    """As an endpoint counts: four characters of the conversation are a token."""
    messages = [message.model_dump(mode="json", exclude_none=True) for message in request.messages]
    tools = [spec.model_dump(mode="json", include={"name", "description", "input_schema"}) for spec in request.tools]
    return (len(request.instruction) + len(json.dumps(messages)) + len(json.dumps(tools))) // 4


def is_summary(request: GenerationRequest) -> bool:
    """Whether a summary of the history is asked for."""
    return not request.tools and not request.run_id


class SmallModel:
    """Answers by `reply`, with true counts; refuses what does not fit into its window."""

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
        """Whether a refusal says how much fits."""
        self.sent: list[int] = []
        """What each generation of the Run itself was sent, in tokens."""
        self.summaries: list[int] = []
        self.refused = 0

    def __call__(self, request: GenerationRequest) -> TurnLike:
        tokens = tokens_of(request)
        if tokens > self.window:
            self.refused += 1
            known = self.window if self.tells else None
            words = "prompt is too long" + (f": {tokens} tokens > {self.window} maximum" if self.tells else "")
            return fail(400, words, name="ContextOverflow", context_window=known)
        asked = is_summary(request)
        (self.summaries if asked else self.sent).append(tokens)
        played = self.summary(request) if asked else self.reply(request)
        whole = played if isinstance(played, Turn) else text(played) if isinstance(played, str) else turn(played)
        return whole.model_copy(update={"usage": whole.usage.model_copy(update={"input_tokens": tokens})})


def shown(request: GenerationRequest) -> str:
    """All that a request shows of queries and results."""
    parts: list[str] = []
    for message in request.messages:
        if isinstance(message, UserMessage):
            parts.append(text_of(message.contents))
        elif isinstance(message, ToolMessage):
            parts += [text_of(part.contents) for part in message.contents]
    return "\n".join(parts)
