"""What the two wire formats share: in what servers differ, how much a model may think, and how a blob is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from perstack.core.base import JsonObject
from perstack.core.definitions import ReasoningBudget
from perstack.core.messages import BlobPart, ToolResultPart
from perstack.dataclass import dataclass
from perstack.ports.provider import GenerationRequest
from perstack_http.parts import IMAGE_TYPES, PDF, as_base64, in_place_of, is_text, takes_all
from perstack_http.schemas import is_whole, schema_for

_LOW_TOKENS = 4_096
_MEDIUM_TOKENS = 12_288

_TAKES_SCHEMAS = re.compile(r"^(gpt-4o(?!-2024-05)|gpt-4\.|gpt-[5-9]|o1(?!-mini|-preview)|o[3-9])")
"""Source: OpenAI guide, «Structured model outputs», section «Supported models»."""

_WITHOUT_REASONING = re.compile(r"gpt-(3|4)|chat-latest")

_NEAREST_EFFORT: tuple[tuple[re.Pattern[str], Mapping[str, str]], ...] = (
    (re.compile(r"^o\d"), {"none": "low", "minimal": "low"}),
    (re.compile(r"^gpt-5(-|$)"), {"none": "minimal"}),
    (re.compile(r"^gpt-(5\.|[6-9])"), {"minimal": "low"}),
)
"""Where a family of OpenAI's own models lacks an effort, the nearest one that it has.

Source: OpenAI documentation, «Reasoning models», section «Reasoning effort»."""

_EFFORTS_ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "deepseek": {"minimal": "low", "medium": "high"},
    "ollama": {"minimal": "low"},
}
"""Source: DeepSeek API guide, «Thinking Mode»; Ollama documentation, «OpenAI compatibility»."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """In what one server's formats differ from another's, and what the user has set."""

    is_openai: bool = True
    """OpenAI's own models, at OpenAI or at Azure, and not a server that is only compatible."""
    vendor: str = "openai"
    """The provider's name, under which opaque parts stand: no other can read what it has encrypted."""
    takes_images: bool = True
    takes_documents: bool = True
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: bool | None = None
    """Whether the model reasons; None if its name tells."""
    reasoning_summary: str | None = None
    structured_output: bool | None = None
    """Whether the server takes a schema for a reply; None if the model's name tells."""

    def reply_settings(self) -> JsonObject:
        """What of this changes replies, for the log."""
        said: JsonObject = {
            "maxTokens": self.max_tokens,
            "temperature": self.temperature,
            "topP": self.top_p,
            "reasoning": self.reasoning,
            "reasoningSummary": self.reasoning_summary,
            "images": None if self.takes_images else False,
            "documents": None if self.takes_documents else False,
            "structuredOutput": self.structured_output,
        }
        return {name: value for name, value in said.items() if value is not None}

    def takes(self, mime_type: str) -> bool:
        """Whether the server is sent it as it is."""
        is_taken = self.takes_documents if mime_type == PDF else self.takes_images
        return is_taken and takes_all(mime_type)

    def reasons(self, model: str) -> bool:
        """Whether the model takes what concerns reasoning."""
        if self.reasoning is not None:
            return self.reasoning
        return not (self.is_openai and _WITHOUT_REASONING.search(model))

    def schema_format(self, request: GenerationRequest) -> JsonObject | None:
        """The name of the result's schema, the schema, and whether it is to be kept to the letter; None for none."""
        is_known = self.is_openai and _TAKES_SCHEMAS.search(request.model) is not None
        schema = schema_for(request, self.structured_output, is_known=is_known)
        return None if schema is None else {"name": "result", "schema": schema, "strict": is_whole(schema)}

    def most_tokens(self, request: GenerationRequest) -> int | None:
        """The most tokens of the reply; None leaves it to the server."""
        return request.max_tokens_within(self.max_tokens)

    def temperature_for(self, request: GenerationRequest) -> float | None:
        """None to say nothing of it. OpenAI's reasoning models refuse it, so only the user's own word goes there."""
        is_refused = self.is_openai and self.reasons(request.model)
        return self.temperature if is_refused else request.temperature_over(self.temperature)


def effort_of(model: str, budget: ReasoningBudget | None, dialect: Dialect) -> str | None:
    """The nearest effort that the model has; None to say nothing of it."""
    if budget is None or not dialect.reasons(model):
        return None
    word = _effort_word(budget)
    if not dialect.is_openai:
        return _EFFORTS_ELSEWHERE.get(dialect.vendor, {}).get(word, word)
    for family, nearest in _NEAREST_EFFORT:
        if family.search(model):
            return nearest.get(word, word)
    return word


def _effort_word(budget: ReasoningBudget) -> str:
    if not isinstance(budget, int):
        return budget
    if budget == 0:
        return "none"
    if budget <= _LOW_TOKENS:
        return "low"
    return "medium" if budget <= _MEDIUM_TOKENS else "high"


def shown(part: BlobPart, dialect: Dialect, blobs: Mapping[str, bytes]) -> tuple[Literal["text", "image", "file"], str]:
    """A blob as this server takes it: its text, or its address as image or file; else words in its place."""
    content = blobs.get(part.sha256, b"")
    if content and is_text(part.mime_type):
        return "text", content.decode("utf-8", "replace")
    address = f"data:{part.mime_type};base64,{as_base64(content)}"
    if content and dialect.takes_images and part.mime_type in IMAGE_TYPES:
        return "image", address
    if content and dialect.takes_documents and part.mime_type == PDF:
        return "file", address
    return "text", in_place_of(part)


def marked(result: ToolResultPart, text: str) -> str:
    """There is no flag for an error: it must be read from the text."""
    is_told = not result.is_error or text.lower().startswith("error")
    return text if is_told else f"Error: {text}"
