"""Encoder of requests to `generateContent`, as pure functions.

Source: Gemini API reference, "Generating content" (`generateContent`, `Content`, `Part`), "Function calling" and
"Thought signatures".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal, assert_never

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.text import is_blank
from perstack.core.definitions.settings import ReasoningBudget
from perstack.core.messages.media import PDF
from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    Message,
    ProviderToolPart,
    ReplyPart,
    ResultContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.http_providers.endpoint import EndpointSettings
from perstack.http_providers.messages import (
    BUDGET_TOKENS,
    CONTINUE,
    NO_OUTPUT,
    NO_TEXT,
    ListEncoder,
    as_base64,
    blob_placeholder,
    budget_word,
    ends_unfinished,
    is_text,
    legal_id,
    message_encoder,
    offered_names,
    own_blocks,
    request_body,
    request_prefix,
    sent_back,
)
from perstack.http_providers.schema_rules import GENERATE_CONTENT
from perstack.http_providers.structured_output import schema_for
from perstack.http_providers.wire_tools import WireTool, WireTools, wire_tools
from perstack.ports.provider import GenerationRequest


class GoogleSettings(EndpointSettings):
    """Settings of provider `google`, in addition to `EndpointSettings`."""

    CHANGE_REPLIES: ClassVar[frozenset[str]] = EndpointSettings.CHANGE_REPLIES | {"thinking"}

    thinking: Literal["budget", "level"] | None = None
    """Form of the model's reasoning budget: a number of tokens, or a level. None: decided by the model's name."""


_LEVELS = {"none": "MINIMAL", "minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH"}

_WITHOUT_THINKING = re.compile(r"gemini-(1|2\.0)|gemma")
_TAKES_TOKEN_BUDGET = re.compile(r"gemini-2")
_GEMINI_3_PRO = re.compile(r"gemini-3-pro")

_BUDGET_RANGES = ((re.compile(r"pro"), 128, 32_768), (re.compile(r"lite"), 512, 24_576), (re.compile(r""), 1, 24_576))
"""Minimum and maximum thinking tokens of each family with token budgets. Only `pro` cannot turn thinking off."""


def signs_calls(model: str) -> bool:
    """Return whether the model rejects its calls without a signature, and accepts files inside tool results."""
    return not (_WITHOUT_THINKING.search(model) or _TAKES_TOKEN_BUDGET.search(model))


def takes_schemas(model: str, *, has_tools: bool) -> bool:
    """Return whether the model accepts a schema for its reply; older ones reject it together with tools.

    Source: Gemini API, "Structured outputs", sections "Model support" and "Structured outputs with tools".
    """
    return _WITHOUT_THINKING.search(model) is None and (signs_calls(model) or not has_tools)


def thinking_config(model: str, budget: ReasoningBudget | None, settings: GoogleSettings) -> JsonObject | None:
    """Return `thinkingConfig`; None to omit it."""
    if budget is None or (settings.thinking is None and _WITHOUT_THINKING.search(model)):
        return None
    takes_tokens = settings.thinking == "budget" if settings.thinking else _TAKES_TOKEN_BUDGET.search(model) is not None
    if takes_tokens:
        tokens = _budget_tokens(model, budget)
        return {"thinkingBudget": tokens, "includeThoughts": tokens > 0}
    return {"thinkingLevel": _thinking_level(model, budget), "includeThoughts": budget not in ("none", 0)}


def _budget_tokens(model: str, budget: ReasoningBudget) -> int:
    tokens = budget if isinstance(budget, int) else BUDGET_TOKENS[budget]
    family, min_tokens, max_tokens = next(
        family_range for family_range in _BUDGET_RANGES if family_range[0].search(model)
    )
    if tokens <= 0 and family.pattern != "pro":
        return 0
    return max(min_tokens, min(tokens, max_tokens))


def _thinking_level(model: str, budget: ReasoningBudget) -> str:
    level = _LEVELS[budget_word(budget)]
    if level == "MINIMAL" and "flash" not in model:
        return "LOW"
    if level == "MEDIUM" and _GEMINI_3_PRO.search(model):
        return "HIGH"
    return level


VENDOR = "google"  # key of opaque parts that only this vendor may receive

UNSIGNED = "skip_thought_signature_validator"
"""Value that Google accepts instead of a signature for a call by another vendor's model."""

_BUILT_IN = {"webSearch": "googleSearch", "webFetch": "urlContext", "codeExecution": "codeExecution"}
"""Fields of the API's tools. Source: Gemini API, "Using tools", "Combine built-in tools and function calling".

Models from Gemini 3 on take them together with functions, if the request asks for the tools' calls in the reply.
"""

IMAGES = frozenset({"image/jpeg", "image/png", "image/webp", "image/heic"})
"""Source: Gemini API, "Image understanding", section "Supported image formats"."""


def encode(
    request: GenerationRequest,
    settings: GoogleSettings,
    blobs: Mapping[str, bytes],
    *,
    with_ids: bool = True,
) -> bytes:
    """Encode the body of `:streamGenerateContent`.

    `blobs` has the blobs of the messages that `contents_of` has not encoded yet.

    Without ids, calls and results are matched by their order.
    """
    contents = contents_of(request, with_ids=with_ids)
    contents.extend(request.messages, blobs)
    prefix = request_prefix(request, VENDOR, settings, lambda: _request_fields(request, settings))
    return request_body(prefix, (*contents.parts, *([_CONTINUE] if ends_unfinished(request) else [])))


_CONTINUE = b',{"role":"user","parts":[{"text":"%s"}]}' % CONTINUE.encode()


def contents_of(request: GenerationRequest, *, with_ids: bool) -> ListEncoder:
    """Return the Run's contents encoded so far with these options."""
    signs = signs_calls(request.model)
    needs_signature = signs or any(item.part == "thinking" for item in request.adaptations)
    names = offered_names(request) if request.allow_tools else frozenset[str]()
    tools = tools_of(request)

    def write(message: Message, blobs: Mapping[str, bytes]) -> list[JsonObject]:
        content = _ContentEncoder(blobs, tools, signs, needs_signature, with_ids, names).content(message)
        return [] if content is None else [content]

    key = (VENDOR, signs, needs_signature, with_ids, names, tools.key)
    return message_encoder(request, key, ListEncoder, lambda: write)


def tools_of(request: GenerationRequest) -> WireTools:
    return wire_tools(request, GENERATE_CONTENT)


def _request_fields(request: GenerationRequest, settings: GoogleSettings) -> JsonObject:
    """Return the body without contents: instruction, tools and generation options."""
    head: JsonObject = {}
    if request.instruction.strip():
        head["systemInstruction"] = {"parts": [{"text": request.instruction}]}
    tools: list[JsonValue] = []
    declarations: list[JsonValue] = [_encode_tool(tool) for tool in tools_of(request).listed]
    if declarations:
        tools.append({"functionDeclarations": declarations})
    if declarations and not request.allow_tools:
        head["toolConfig"] = {"functionCallingConfig": {"mode": "NONE"}}
    if request.provider_tools and request.allow_tools:  # no mode forbids the use of built-in tools
        for tool in request.provider_tools:
            field: JsonObject = {_BUILT_IN[tool.name]: {}}
            tools.append(field)
        if signs_calls(request.model):
            head["toolConfig"] = {"includeServerSideToolInvocations": True}
    if tools:
        head["tools"] = tools
    config = _generation_config(request, settings)
    if config:
        head["generationConfig"] = config
    return {**head, "contents": []}


def _generation_config(request: GenerationRequest, settings: GoogleSettings) -> JsonObject:
    limits: JsonObject = {
        "maxOutputTokens": request.max_tokens_within(settings.max_tokens),
        "temperature": request.temperature_over(settings.temperature),
        "topP": settings.top_p,
    }
    config: JsonObject = {name: value for name, value in limits.items() if value is not None}
    thinking = thinking_config(request.model, request.reasoning_budget, settings)
    if thinking is not None:
        config["thinkingConfig"] = thinking
    is_known = takes_schemas(request.model, has_tools=bool(request.tools))
    schema = schema_for(request, settings.structured_output, is_known=is_known)
    if schema is not None:
        config |= {"responseMimeType": "application/json", "responseJsonSchema": schema}
    return config


def _encode_tool(tool: WireTool) -> JsonObject:
    parameters: JsonObject = {"parametersJsonSchema": tool.schema} if tool.schema else {}
    return {"name": tool.name, "description": tool.description or tool.name, **parameters}


class _ContentEncoder:
    def __init__(
        self,
        blobs: Mapping[str, bytes],
        tools: WireTools,
        signs: bool,
        needs_signature: bool,
        with_ids: bool,
        offered: frozenset[str],
    ) -> None:
        self._tools = tools
        self._offered = offered
        self._needs_signature = needs_signature
        self._with_ids = with_ids
        self._blobs = blobs
        self._signs = signs

    def content(self, message: Message) -> JsonObject | None:
        """Encode a message; None for an empty reply, because the API rejects a content without parts."""
        match message:
            case UserMessage():
                return {"role": "user", "parts": self._encode_parts(message.contents) or [{"text": NO_TEXT}]}
            case ToolMessage():
                return {"role": "user", "parts": self._encode_results(message.contents)}
            case ExpertMessage():
                parts = self._encode_reply(message)
                return {"role": "model", "parts": parts} if parts else None
            case _:
                assert_never(message)

    def _encode_parts(self, contents: Iterable[ResultContent]) -> list[JsonValue]:
        parts = (
            _encode_text(part.text) if isinstance(part, TextPart) else self._encode_blob(part) for part in contents
        )
        return [part for part in parts if part is not None]

    def _encode_blob(self, part: BlobPart) -> JsonObject | None:
        content = self._blobs.get(part.sha256, b"")
        if content and is_text(part.mime_type):
            return _encode_text(content.decode("utf-8", "replace"))
        if content and is_sendable(part.mime_type):
            return {"inlineData": {"mimeType": part.mime_type, "data": as_base64(content)}}
        return _encode_text(blob_placeholder(part))

    def _encode_results(self, results: Iterable[ToolResultPart]) -> list[JsonValue]:
        """Encode the responses of all calls together, as the API requires; for older models files follow them."""
        responses: list[JsonValue] = []
        files: list[JsonValue] = []
        for result in results:
            text, attachments = self._split_contents(result.contents)
            text = NO_OUTPUT if is_blank(text) and not attachments else text
            response: JsonObject = {
                **self._id_field(result.tool_call_id),
                "name": self._tools.name(result.tool_name),
                "response": {"error" if result.is_error else "output": text},
            }
            if attachments and self._signs:
                response["parts"] = attachments
            else:
                files.extend(attachments)
            responses.append({"functionResponse": response})
        return responses + files

    def _split_contents(self, contents: Iterable[ResultContent]) -> tuple[str, list[JsonValue]]:
        texts: list[str] = []
        files: list[JsonValue] = []
        for part in contents:
            encoded = {"text": part.text} if isinstance(part, TextPart) else self._encode_blob(part)
            if encoded is None:
                continue
            if "inlineData" in encoded:
                files.append({**encoded})
            else:
                texts.append(str(encoded["text"]))
        return "\n".join(texts), files

    def _encode_reply(self, message: ExpertMessage) -> list[JsonValue]:
        """Encode the parts in order. The signature of a text is in the part before it: see `GeminiDecoder`."""
        parts: list[JsonValue] = []
        pending: JsonObject = {}
        needs_signature = self._needs_signature
        offered = sent_back(message, self._offered)
        for part in message.contents:
            opaque = _own_opaque(part)
            match part:
                case ThinkingPart():
                    encoded, pending = _encode_thinking(part, opaque)
                case TextPart():
                    encoded = {"text": part.text, **pending} if part.text.strip() or pending else None
                    pending = {}
                case ToolCallPart():
                    call = {**self._id_field(part.tool_call_id), "name": self._tools.name(part.tool_name)}
                    encoded = _add_signature({**call, "args": self._tools.arguments(part)}, opaque, needs_signature)
                    needs_signature = False
                case ProviderToolPart():
                    blocks = own_blocks(part, VENDOR, offered)
                    parts += blocks or []
                    encoded = _encode_text(part.shown) if blocks is None else None
                case _:
                    assert_never(part)
            if encoded is not None:
                parts.append(encoded)
        return parts

    def _id_field(self, call_id: str) -> JsonObject:
        return {"id": legal_id(call_id)} if self._with_ids else {}


def _own_opaque(part: ReplyPart) -> JsonObject:
    opaque = None if isinstance(part, TextPart) else (part.opaque or {}).get(VENDOR)
    return opaque if isinstance(opaque, dict) else {}


def _encode_thinking(part: ThinkingPart, opaque: JsonObject) -> tuple[JsonObject | None, JsonObject]:
    """Return the encoded thought, None if unsigned; and the fields to add to the text that follows."""
    if "signature" not in opaque:
        return None, {}
    signed: JsonObject = {"thoughtSignature": opaque["signature"]}
    match opaque.get("on"):
        case "text":
            return None, signed
        case "empty":
            return {"text": "", **signed}, {}
        case _:
            return {"text": part.thinking, "thought": True, **signed}, {}


def _add_signature(call: JsonObject, opaque: JsonObject, needs_signature: bool) -> JsonObject:
    signature = opaque.get("signature") or (UNSIGNED if needs_signature else None)
    return {"functionCall": call} if signature is None else {"functionCall": call, "thoughtSignature": signature}


def is_sendable(mime_type: str) -> bool:
    """Return whether the format supports images or documents of this type."""
    return mime_type in IMAGES or mime_type == PDF


def _encode_text(text: str) -> JsonObject | None:
    return None if is_blank(text) else {"text": text}
