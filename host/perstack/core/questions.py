"""What a tool may ask a person while it is called, and what the person said.

Source of the shapes: MCP, elicitation in form mode (`elicitation/create`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perstack.core.base import Fact, JsonObject, falsy


class Question(Fact):
    """What a tool must know before it can continue."""

    message: str
    requested_schema: JsonObject = Field(default_factory=dict, exclude_if=falsy)
    """JSON schema of the answer's content, an object of plain values; empty if a yes or no is all that is asked."""


class Answer(Fact):
    """What a person said to a question."""

    question: Question
    action: Literal["accept", "decline", "cancel"]
    content: JsonObject = Field(default_factory=dict, exclude_if=falsy)
    """For `accept`: as the question's schema asks."""
