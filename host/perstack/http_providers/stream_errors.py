"""Recognise errors inside replies, which have status 200, and classify them.

Inside a stream an error has no status, but a code or a type, and servers put it in many places:
`error_in` finds it, `stream_error` maps its code, status or type to an HTTP status by `_RULES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.text import one_line
from perstack.errors import ProviderError
from perstack.http_providers.errors import delay_in, error_from_status

_RULES: tuple[tuple[str, int], ...] = (
    (r"tool_use_failed|malformed", 424),
    (r"overload", 529),
    (r"rate_?limit|too_?many|throttl|exhausted|insufficient_quota|quota|billing|balance", 429),
    (r"context_length_exceeded|exceed_context", 400),
    (r"time_?out|timed_out|deadline", 504),
    (r"unavailable|no_capacity", 503),
    (r"permission|forbidden|access_denied", 403),
    (r"auth|api_?key|token_expired", 401),
    (r"not_?found", 404),
    (r"^(invalid|image|empty|unsupported|failed_to_download)_\w+$|bad_?request|failed_precondition|polic", 400),
    (r"too_?large", 413),
    (r"server_error|internal|api_error", 500),
)
"""HTTP status of a code or type, in snake case, by the first pattern that fits.

Source: OpenAI documentation, "Error codes", section "API errors", and API reference, "Responses", the codes of
`error`; Anthropic API reference, "Errors"; google.rpc.Code; vLLM's and Groq's types.
"""

_CODES = ("code", "status", "status_code", "statusCode", "http_code", "type")
_WORDS = ("message", "msg", "status_msg", "error_message", "error_msg", "detail", "error", "Message")
_OVERFLOW = "context_length_exceeded"
_QUOTA = "insufficient_quota"
_TRY_AGAIN_IN = re.compile(r"try again in (\d+(?:\.\d+)?) ?(ms|s)\b", re.IGNORECASE)
_MAX_DEPTH = 4
_NAMES_OF_EVENTS = {"type", "object", "event", "id"}  # an object with one of these is an unknown event, not an error


def error_in(document: JsonValue, *, is_unknown: bool = False) -> ProviderError | None:
    """Return the error that an event reports; None if it reports none.

    `is_unknown`: the event has no field of the format, so a message alone is an error.
    """
    failure = next(_failures_in(document), None)
    if failure is None and is_unknown and isinstance(document, dict) and not _NAMES_OF_EVENTS & document.keys():
        failure = document if _words_of(document) else None
    if failure is None:
        return None
    return stream_error(failure, json.dumps(document))


def _failures_in(document: JsonValue) -> Iterator[JsonObject]:
    """Yield the objects that describe an error, in any of the shapes that servers use."""
    if isinstance(document, list):
        for element in document[:1]:
            yield from _failures_in(element)
    if not isinstance(document, dict):
        return
    for holder in _error_holders(document):
        failure = holder.get("error")
        if isinstance(failure, str) and failure.strip():
            yield {**holder, "message": holder.get("message") or failure}
        elif isinstance(failure, dict) and any(failure.values()):
            yield failure
    failures = document.get("errors")
    if isinstance(failures, list) and failures:
        yield failures[0] if isinstance(failures[0], dict) else {"message": str(failures[0])}
    if "error" in (document.get("object"), document.get("type")):
        yield document
    base = document.get("base_resp")
    if isinstance(base, dict) and base.get("status_code"):
        yield base


def _error_holders(document: JsonObject) -> Iterator[JsonObject]:
    """Yield the objects of an event in which servers put an `error`."""
    yield document
    for name in ("x_groq", "response"):
        value = document.get(name)
        if isinstance(value, dict):
            yield value
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            yield choice
            yield from (part for name in ("delta", "message") if isinstance(part := choice.get(name), dict))


def stream_error(failure: JsonObject, data: str = "") -> ProviderError:
    """Return the error that an object describes. One with an unknown code counts as a server error.

    `data` is the whole event.
    """
    codes = [code for name in _CODES if (code := failure.get(name)) not in (None, "", "error")]
    named = next((code for code in codes if isinstance(code, str)), "")
    words = _words_of(failure) or named or "the server reported an error without an explanation"
    status = next((status for code in codes if (status := _status_of(code)) is not None), 500)
    return error_from_status(
        words,
        status,
        retry_after=_wait_in(words, data) if status in (429, 503, 529) else None,
        is_overflow=_OVERFLOW in codes,
        is_quota=_QUOTA in codes,
        body=data,
    )


def _words_of(failure: JsonObject, depth: int = 0) -> str:
    """Return the vendor's own message, with the message of the server behind it if there is one."""
    for name in _WORDS:
        value = failure.get(name)
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            value = _words_of(value, depth + 1)
        if isinstance(value, str) and value.strip():
            metadata = failure.get("metadata")
            raw = metadata.get("raw") if isinstance(metadata, dict) else None
            return one_line(f"{value}: {raw}" if isinstance(raw, str) and raw.strip() else value)
    return ""


def _status_of(code: JsonValue) -> int | None:
    number = int(code) if isinstance(code, str) and code.isdecimal() and len(code) == 3 else code
    if isinstance(number, int):
        return number if 400 <= number < 600 else None
    if not isinstance(code, str):
        return None
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]", "_", code).lower()
    return next((status for pattern, status in _RULES if re.search(pattern, name)), None)


def _wait_in(words: str, data: str) -> float | None:
    """Return the seconds to wait. A stream error has no headers, so they are read from its text."""
    match = _TRY_AGAIN_IN.search(words)
    if match is None:
        return delay_in(data)
    return float(match[1]) / (1000 if match[2].lower() == "ms" else 1)
