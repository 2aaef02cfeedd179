"""The request side of generateContent, as a pure function: a request to bytes.

Source: Gemini API reference, «Generating content» (`generateContent`, `Content`, `Part`), «Function calling» and
«Thought signatures».
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.messages import (
    BlobPart,
    ExpertMessage,
    Message,
    ReplyPart,
    ResultContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.core.tools import ToolSpec, legal_tool_name
from perstack.ports.provider import GenerationRequest
from perstack_google.settings import GoogleSettings
from perstack_google.thinking import signs_calls, takes_schemas, thinking_config
from perstack_http.parts import PDF, arguments_of, as_base64, in_place_of, is_text, legal_id
from perstack_http.schemas import schema_for
from perstack_http.transcript import Items, body_of, head_of, transcript_of

VENDOR = "google"
"""The key under which our opaque parts stand, so that no other vendor is sent them, nor we theirs."""

UNSIGNED = "skip_thought_signature_validator"
"""What Google takes in place of the signature of a call that another vendor's model made."""

_IMAGES = frozenset({"image/jpeg", "image/png", "image/webp"})


def encode(
    request: GenerationRequest,
    settings: GoogleSettings,
    blobs: Mapping[str, bytes],
    *,
    with_signatures: bool = True,
    with_ids: bool = True,
) -> bytes:
    """The body of `:streamGenerateContent`. Of two requests of one Run the later one's bytes extend the earlier's.

    Without signatures, the replies of Google's own models are sent as those of another vendor's. Without ids, calls
    and results are matched by their order. `blobs` need hold only what `contents_of` lacks.
    """
    contents = contents_of(request, with_signatures=with_signatures, with_ids=with_ids)
    contents.extend(request.messages, blobs)
    return body_of(head_of(request, VENDOR, settings, lambda: _head(request, settings)), contents.parts)


def contents_of(request: GenerationRequest, *, with_signatures: bool, with_ids: bool) -> Items:
    """The Run's contents as far as they are written in this way."""
    signs, vendor = signs_calls(request.model), VENDOR if with_signatures else ""

    def write(message: Message, blobs: Mapping[str, bytes]) -> list[JsonObject]:
        content = _Contents(blobs, signs, vendor, with_ids).content(message)
        return [] if content is None else [content]

    return transcript_of(request, (VENDOR, signs, vendor, with_ids), Items, lambda: write)


def _head(request: GenerationRequest, settings: GoogleSettings) -> JsonObject:
    head: JsonObject = {}
    if request.instruction.strip():
        head["systemInstruction"] = {"parts": [{"text": request.instruction}]}
    if request.tools:
        head["tools"] = [{"functionDeclarations": [_tool(spec) for spec in request.tools]}]
    if request.tools and not request.allow_tools:
        head["toolConfig"] = {"functionCallingConfig": {"mode": "NONE"}}
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


def _tool(spec: ToolSpec) -> JsonObject:
    schema: JsonObject = {"type": "object", **spec.input_schema}
    return {"name": spec.name, "description": spec.description or spec.name, "parametersJsonSchema": schema}


class _Contents:
    """Writes messages as contents; knows the blobs, what generation of models reads them, and whose opaque parts."""

    def __init__(self, blobs: Mapping[str, bytes], signs: bool, vendor: str, with_ids: bool) -> None:
        self._vendor = vendor
        self._with_ids = with_ids
        self._blobs = blobs
        self._signs = signs

    def content(self, message: Message) -> JsonObject | None:
        """None for a reply that says nothing: the API refuses a content without parts."""
        match message:
            case UserMessage():
                return {"role": "user", "parts": self._parts(message.contents) or [{"text": "(no text)"}]}
            case ToolMessage():
                return {"role": "user", "parts": self._results(message.contents)}
            case ExpertMessage():
                parts = self._reply(message.contents)
                return {"role": "model", "parts": parts} if parts else None
            case _:
                assert_never(message)

    def _parts(self, contents: Iterable[ResultContent]) -> list[JsonValue]:
        parts = (_text(part.text) if isinstance(part, TextPart) else self._blob(part) for part in contents)
        return [part for part in parts if part is not None]

    def _blob(self, part: BlobPart) -> JsonObject | None:
        content = self._blobs.get(part.sha256, b"")
        if content and is_text(part.mime_type):
            return _text(content.decode("utf-8", "replace"))
        if content and is_sendable(part.mime_type):
            return {"inlineData": {"mimeType": part.mime_type, "data": as_base64(content)}}
        return _text(in_place_of(part))

    def _results(self, results: Iterable[ToolResultPart]) -> list[JsonValue]:
        """The responses of all calls together, as the API wants them; older models get files after them."""
        responses: list[JsonValue] = []
        files: list[JsonValue] = []
        for result in results:
            text, found = self._split(result.contents)
            response: JsonObject = {
                **self._id(result.tool_call_id),
                "name": legal_tool_name(result.tool_name),
                "response": {"error" if result.is_error else "output": text},
            }
            if found and self._signs:
                response["parts"] = found
            else:
                files.extend(found)
            responses.append({"functionResponse": response})
        return responses + files

    def _split(self, contents: Iterable[ResultContent]) -> tuple[str, list[JsonValue]]:
        """What of a result is text, and the files beside it."""
        texts: list[str] = []
        files: list[JsonValue] = []
        for part in contents:
            written = {"text": part.text} if isinstance(part, TextPart) else self._blob(part)
            if written is None:
                continue
            if "inlineData" in written:
                files.append({**written})
            else:
                texts.append(str(written["text"]))
        return "\n".join(texts), files

    def _reply(self, contents: Iterable[ReplyPart]) -> list[JsonValue]:
        """The parts of a reply as they came. A signature of text stands before it: see `ReplyDecoder`."""
        parts: list[JsonValue] = []
        pending: JsonObject = {}
        needs_signature = self._signs
        for part in contents:
            ours = _ours(part, self._vendor)
            match part:
                case ThinkingPart():
                    written, pending = _thinking(part, ours)
                case TextPart():
                    written = {"text": part.text, **pending} if part.text.strip() or pending else None
                    pending = {}
                case ToolCallPart():
                    call = {**self._id(part.tool_call_id), "name": legal_tool_name(part.tool_name)}
                    written = _signed({**call, "args": arguments_of(part)}, ours, needs_signature)
                    needs_signature = False
                case _:
                    assert_never(part)
            if written is not None:
                parts.append(written)
        return parts

    def _id(self, call_id: str) -> JsonObject:
        return {"id": legal_id(call_id)} if self._with_ids else {}


def _ours(part: ReplyPart, vendor: str) -> JsonObject:
    ours = None if isinstance(part, TextPart) else (part.opaque or {}).get(vendor)
    return ours if isinstance(ours, dict) else {}


def _thinking(part: ThinkingPart, ours: JsonObject) -> tuple[JsonObject | None, JsonObject]:
    """A thought as it is sent back, None if it was not signed; and what is to stand at the text that follows."""
    if "signature" not in ours:
        return None, {}
    signed: JsonObject = {"thoughtSignature": ours["signature"]}
    match ours.get("on"):
        case "text":
            return None, signed
        case "empty":
            return {"text": "", **signed}, {}
        case _:
            return {"text": part.thinking, "thought": True, **signed}, {}


def _signed(call: JsonObject, ours: JsonObject, needs_signature: bool) -> JsonObject:
    signature = ours.get("signature") or (UNSIGNED if needs_signature else None)
    return {"functionCall": call} if signature is None else {"functionCall": call, "thoughtSignature": signature}


def is_sendable(mime_type: str) -> bool:
    """Whether the format holds an image or document of this kind."""
    return mime_type in _IMAGES or mime_type == PDF


def _text(text: str) -> JsonObject | None:
    """None if blank: the API refuses that."""
    return {"text": text} if text.strip() else None
