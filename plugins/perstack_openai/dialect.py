"""Differences between servers that both wire formats share: options, reasoning effort, and blobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.definitions.settings import ReasoningBudget
from perstack.core.runs.messages import BlobPart, ResultContent, TextPart, ToolResultPart
from perstack.dataclass import dataclass
from perstack.ports.provider import GenerationRequest
from perstack.support.http.messages import (
    IMAGE_TYPES,
    PDF,
    as_base64,
    blob_placeholder,
    budget_word,
    is_common_media,
    is_text,
)
from perstack.support.http.structured_output import requires_all, schema_for

_MAX_MEDIUM_TOKENS = 12_288  # highest budget in tokens for which a model gets medium effort

_TAKES_SCHEMAS = re.compile(r"^(gpt-4o(?!-2024-05)|gpt-4\.|gpt-[5-9]|o1(?!-mini|-preview)|o[3-9])")
"""Models that accept a schema. Source: OpenAI guide, «Structured model outputs», section «Supported models»."""

_WITHOUT_REASONING = re.compile(r"gpt-(3|4)|chat-latest")

_NEAREST_EFFORT: tuple[tuple[re.Pattern[str], Mapping[str, str]], ...] = (
    (re.compile(r"^o\d"), {"none": "low", "minimal": "low"}),
    (re.compile(r"^gpt-5(-|$)"), {"none": "minimal"}),
    (re.compile(r"^gpt-(5\.|[6-9])"), {"minimal": "low"}),
)
"""Nearest effort for the efforts that a family of OpenAI's models lacks.

Source: OpenAI documentation, «Reasoning models», section «Reasoning effort».
"""

_EFFORTS_ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "deepseek": {"minimal": "low", "medium": "high"},
    "ollama": {"minimal": "low"},
}
"""Nearest efforts of other vendors. Source: DeepSeek API guide, «Thinking Mode»; Ollama, «OpenAI compatibility»."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Format options of one server, with the user's settings."""

    is_openai: bool = True  # True for OpenAI's own models, at OpenAI or Azure; False for compatible servers
    vendor: str = "openai"
    """Provider name, used as the key of opaque parts: no other provider can read its encrypted content."""
    takes_images: bool = True
    takes_documents: bool = True
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: bool | None = None  # True if the model reasons; None to judge by its name
    reasoning_summary: str | None = None
    structured_output: bool | None = None
    """True if the server accepts a schema for a reply; None to judge by the model's name."""

    def reply_settings(self) -> JsonObject:
        """Return the settings that change replies, for the log."""
        settings: JsonObject = {
            "maxTokens": self.max_tokens,
            "temperature": self.temperature,
            "topP": self.top_p,
            "reasoning": self.reasoning,
            "reasoningSummary": self.reasoning_summary,
            "images": None if self.takes_images else False,
            "documents": None if self.takes_documents else False,
            "structuredOutput": self.structured_output,
        }
        return {name: value for name, value in settings.items() if value is not None}

    def takes(self, mime_type: str) -> bool:
        """Return whether blobs of this type are sent unchanged."""
        is_taken = self.takes_documents if mime_type == PDF else self.takes_images
        return is_taken and is_common_media(mime_type)

    def reasons(self, model: str) -> bool:
        """Return whether the model accepts reasoning options."""
        if self.reasoning is not None:
            return self.reasoning
        return not (self.is_openai and _WITHOUT_REASONING.search(model))

    def schema_format(self, request: GenerationRequest) -> JsonObject | None:
        """Return the result schema in the API's format, with its name and strictness; None without one."""
        is_known = self.is_openai and _TAKES_SCHEMAS.search(request.model) is not None
        schema = schema_for(request, self.structured_output, is_known=is_known)
        return None if schema is None else {"name": "result", "schema": schema, "strict": requires_all(schema)}

    def most_tokens(self, request: GenerationRequest) -> int | None:
        """Return the maximum tokens of the reply; None leaves it to the server."""
        return request.max_tokens_within(self.max_tokens)

    def temperature_for(self, request: GenerationRequest) -> float | None:
        """Return the temperature; None if none was set for OpenAI's reasoning models, which reject others."""
        is_refused = self.is_openai and self.reasons(request.model)
        return self.temperature if is_refused else request.temperature_over(self.temperature)


def effort_of(model: str, budget: ReasoningBudget | None, dialect: Dialect) -> str | None:
    """Return the nearest reasoning effort that the model has; None to omit it."""
    if budget is None or not dialect.reasons(model):
        return None
    word = budget_word(budget, medium=_MAX_MEDIUM_TOKENS)
    if not dialect.is_openai:
        return _EFFORTS_ELSEWHERE.get(dialect.vendor, {}).get(word, word)
    for family, nearest in _NEAREST_EFFORT:
        if family.search(model):
            return nearest.get(word, word)
    return word


@dataclass(frozen=True, slots=True)
class ContentEncoder:
    """Encoder of contents for one server, in one of the two wire formats."""

    dialect: Dialect
    blobs: Mapping[str, bytes]
    text_type: str  # value of `type` in a part of text
    attachment: Callable[[Literal["image", "file"], str, str], JsonObject]
    """Function that encodes a part from its kind, its data URL and its file name."""

    def encode(self, contents: Iterable[ResultContent]) -> JsonValue:
        """Encode text alone as a string, which every server accepts; else as parts."""
        parts = self.encode_parts(contents)
        if all(part["type"] == self.text_type for part in parts):
            return "".join(str(part["text"]) for part in parts)
        return [*parts]

    def encode_parts(self, contents: Iterable[ResultContent]) -> list[JsonObject]:
        """Encode each content as a part."""
        return [self._text(part.text) if isinstance(part, TextPart) else self._blob(part) for part in contents]

    def _text(self, text: str) -> JsonObject:
        return {"type": self.text_type, "text": text}

    def _blob(self, part: BlobPart) -> JsonObject:
        content = self.blobs.get(part.sha256, b"")
        if content and is_text(part.mime_type):
            return self._text(content.decode("utf-8", "replace"))
        url = f"data:{part.mime_type};base64,{as_base64(content)}"
        if content and self.dialect.takes_images and part.mime_type in IMAGE_TYPES:
            return self.attachment("image", url, part.name or "")
        if content and self.dialect.takes_documents and part.mime_type == PDF:
            return self.attachment("file", url, part.name or "document.pdf")
        return self._text(blob_placeholder(part))


def with_error_prefix(result: ToolResultPart, text: str) -> str:
    """Prefix the text of a failed result with `Error:`, since the formats have no error flag."""
    is_told = not result.is_error or text.lower().startswith("error")
    return text if is_told else f"Error: {text}"
