"""Differences between servers for both wire formats: options, reasoning effort, and blobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Literal

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.text import is_blank
from perstack.core.definitions.settings import ReasoningBudget
from perstack.core.messages.adaptations import Adaptations, names_in
from perstack.core.messages.media import PDF
from perstack.core.messages.messages import BlobPart, ResultContent, TextPart, ToolResultPart
from perstack.dataclass import dataclass
from perstack.http_providers.messages import (
    IMAGE_TYPES,
    NO_OUTPUT,
    as_base64,
    blob_placeholder,
    budget_word,
    is_common_media,
    is_text,
    legal_id,
)
from perstack.http_providers.structured_output import requires_all, schema_for
from perstack.ports.provider import GenerationRequest
from perstack_openai.profiles import Efforts, Profile, profile_named

OPENAI = profile_named("openai")

_MAX_MEDIUM_TOKENS = 12_288  # maximum budget in tokens for which a model gets medium effort
_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The format options of one server, with the user's settings."""

    profile: Profile = OPENAI
    vendor: str = "openai"
    """Key of opaque parts: no other provider, and over Chat Completions no other server, can read them."""
    refused: frozenset[str] = frozenset()
    """Fields and forms that the endpoint has refused, in the words of `profiles`, in addition to its row."""
    needed: frozenset[str] = frozenset()  # fields of messages that the endpoint has reported as missing
    takes_images: bool = True
    takes_documents: bool = True
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: bool | None = None  # True if the model reasons; None to judge by its name
    reasoning_summary: str | None = None
    structured_output: bool | None = None
    """True if the server accepts a schema for a reply; None to judge by the model's name."""

    def adapted(self, adaptations: Adaptations) -> Dialect:
        """Return the options adapted to what the endpoint has refused."""
        if not adaptations:
            return self
        refused = names_in(adaptations, "field") | names_in(adaptations, "field", "plain")
        return replace(self, refused=refused, needed=names_in(adaptations, "field", "replaced"))

    def refuses(self, name: str) -> bool:
        """Return whether the endpoint is known to refuse a field or form."""
        return name in self.profile.refuses or name in self.refused

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

    @property
    def limit_name(self) -> str | None:
        """The field of the reply's limit: the usual name here, or the other if that was refused; None if both were."""
        names = sorted(("max_tokens", "max_completion_tokens"), key=lambda name: name != self.profile.max_tokens)
        return next((name for name in names if name not in self.refused), None)

    def required_reasoning_field(self, model: str) -> str | None:
        """Return the field that each earlier reply with calls must have; None if there is none."""
        reported_name = next((name.removeprefix("messages.") for name in self.needed), None)
        is_known = re.search(self.profile.reasoning_models, model) is not None
        return reported_name or (self.profile.needs_reasoning if is_known else None)

    def call_id(self, call_id: str) -> str:
        """Return an id of a call that the server accepts."""
        if self.refuses("changed call ids"):
            return call_id
        if self.refuses("long call ids"):
            return (
                call_id if _SHORT_ID.fullmatch(call_id) else sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]
            )
        return legal_id(call_id)

    def takes(self, mime_type: str) -> bool:
        """Return whether blobs of this type are sent unchanged."""
        is_taken = self.takes_documents if mime_type == PDF else self.takes_images
        return is_taken and is_common_media(mime_type)

    def reasons(self, model: str) -> bool:
        """Return whether the model accepts reasoning options."""
        if self.reasoning is not None:
            return self.reasoning
        without = self.profile.models.without_reasoning
        return without is None or re.search(without, model) is None

    def schema_format(self, request: GenerationRequest) -> JsonObject | None:
        """Return the result schema in the API's format, with its name and strictness; None without one."""
        schema_models = self.profile.models.take_schemas
        is_known = schema_models is not None and re.search(schema_models, request.model) is not None
        schema = schema_for(request, self.structured_output, is_known=is_known)
        return None if schema is None else {"name": "result", "schema": schema, "strict": requires_all(schema)}

    def max_reply_tokens(self, request: GenerationRequest) -> int | None:
        """Return the maximum tokens of the reply; None leaves it to the server."""
        return request.max_tokens_within(self.max_tokens)

    def temperature_for(self, request: GenerationRequest) -> float | None:
        """Return the temperature; None if none is set for a reasoning model that rejects other temperatures."""
        is_refused = self.profile.models.fixed_temperature and self.reasons(request.model)
        return self.temperature if is_refused else request.temperature_over(self.temperature)


def effort_of(model: str, budget: ReasoningBudget | None, dialect: Dialect) -> str | None:
    """Return the nearest reasoning effort that the model has; None to omit it."""
    if budget is None or not dialect.reasons(model):
        return None
    word = budget_word(budget, medium=_MAX_MEDIUM_TOKENS)
    efforts = next((family for family in dialect.profile.models.efforts if re.search(family.models, model)), Efforts())
    return efforts.nearest(word)


@dataclass(frozen=True, slots=True)
class ContentEncoder:
    """Encoder of contents for one server, in one of the two wire formats."""

    dialect: Dialect
    blobs: Mapping[str, bytes]
    text_type: str  # value of `type` in a text part
    attachment: Callable[[Literal["image", "file"], str, str], JsonObject]
    """A function that encodes a part from its kind, its data URL and its file name."""

    def encode(self, contents: Iterable[ResultContent]) -> JsonValue:
        """Encode text alone as a string, which every server accepts; otherwise as parts. Blank texts are left out."""
        parts = [
            part
            for part in self.encode_parts(contents)
            if part["type"] != self.text_type or not is_blank(str(part["text"]))
        ]
        if all(part["type"] == self.text_type for part in parts):
            return "".join(str(part["text"]) for part in parts)
        return [*parts]

    def encode_parts(self, contents: Iterable[ResultContent]) -> list[JsonObject]:
        return [
            self._encode_text(part.text) if isinstance(part, TextPart) else self._encode_blob(part) for part in contents
        ]

    def _encode_text(self, text: str) -> JsonObject:
        return {"type": self.text_type, "text": text}

    def _encode_blob(self, part: BlobPart) -> JsonObject:
        content = self.blobs.get(part.sha256, b"")
        if content and is_text(part.mime_type):
            return self._encode_text(content.decode("utf-8", "replace"))
        url = f"data:{part.mime_type};base64,{as_base64(content)}"
        if content and self.dialect.takes_images and part.mime_type in IMAGE_TYPES:
            return self.attachment("image", url, part.name or "")
        if content and self.dialect.takes_documents and part.mime_type == PDF:
            return self.attachment("file", url, part.name or "document.pdf")
        return self._encode_text(blob_placeholder(part))


def with_error_prefix(result: ToolResultPart, text: str) -> str:
    """Prefix the text of a failed result with `Error:`, since the formats have no error flag."""
    text = NO_OUTPUT if is_blank(text) else text
    has_prefix = not result.is_error or text.lower().startswith("error")
    return text if has_prefix else f"Error: {text}"
