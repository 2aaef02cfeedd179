"""Map an endpoint's failures to ProviderError: status, the endpoint's own message, and whether to retry."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from pydantic import JsonValue

from perstack.core.base.text import one_line
from perstack.errors import ProviderError
from perstack.http_providers.overflow import Refusal, Verdict, verdict, window_in

_NAME_BY_STATUS = {
    400: "BadRequest",
    401: "Authentication",
    402: "QuotaExceeded",
    403: "Permission",
    404: "NotFound",
    408: "Timeout",
    409: "Conflict",
    413: "RequestTooLarge",
    422: "BadRequest",
    424: "ModelError",
    429: "RateLimit",
    529: "Overloaded",
}

_QUOTA = re.compile(
    r'"(?:code|type)"\s*:\s*"(?:insufficient_quota|billing_hard_limit_reached|billing_error)"'
    r"|credit balance is too low",
    re.IGNORECASE,
)
"""Errors for an exhausted quota, which waiting does not fix.

Source: OpenAI documentation, "Error codes", section "API errors"; Anthropic's message for an account without credit.
"""
_INVALID_KEY = re.compile(r'"reason"\s*:\s*"API_KEY_(?:INVALID|EXPIRED)"')
"""Reasons of google.rpc `ErrorInfo`, whose status is 400."""
_MAX_MESSAGE_CHARS = 2000
_MAX_SEARCHED_CHARS = 20_000
_RETRY_INFO = "google.rpc.RetryInfo"
_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')


def is_retryable(status: int) -> bool:
    """Return whether a request that failed with this status may succeed when it is repeated."""
    return status in (408, 409, 424, 429) or status >= 500


def error_name(status: int) -> str:
    """Return the short stable name of a status."""
    return _NAME_BY_STATUS.get(status, "ServerError" if status >= 500 else "BadRequest")


def status_error(status: int, headers: Mapping[str, str], body: bytes, url: str) -> ProviderError:
    """Return the error for a response that is not a reply. `headers` have lower-case names."""
    text, explanation = body.decode("utf-8", "replace"), error_message_in(body)
    message = explanation or f"HTTP {status} from {url} without an explanation"
    if status == 404:
        message = f"{message} (asked {url}: are the model's name and the base URL right?)"
    if 300 <= status < 400:
        message = f"{url} redirects to {headers.get('location', 'nowhere')}: set the base URL to where the endpoint is"
    error = error_from_status(
        message,
        status,
        retryable=_read_should_retry(headers),
        retry_after=_first_known(retry_after(headers, datetime.now(UTC)), delay_in(text)),
        body=_without_echoed_input(text),
    )
    if status >= 500 and explanation and error.name != "ContextOverflow":  # the message may be a proxy's
        return with_message(error, f"{error.message} (HTTP {status} from {urlsplit(url).netloc or url})")
    return error


def error_from_status(
    message: str,
    status: int,
    *,
    retryable: bool | None = None,
    retry_after: float | None = None,
    is_overflow: bool = False,
    is_quota: bool = False,
    body: str = "",
) -> ProviderError:
    """Return an error for a status, even one inside a stream; `body`: the whole answer, if longer."""
    name, window, may_not_fit = error_name(status), None, False
    if status == 400 and _INVALID_KEY.search(body):
        name = "Authentication"
    elif status in (400, 402, 403, 429) and (is_quota or _QUOTA.search(body) or _QUOTA.search(message)):
        name, retryable = "QuotaExceeded", bool(retryable)
    else:
        match verdict(Refusal(status, message, body), has_code=is_overflow):
            case Verdict.OVERFLOW:
                name, retryable = "ContextOverflow", False
                window = window_in(message) or window_in(body)
                message = f"{message} — use a model with a longer context, or delegate parts of the work"
            case Verdict.RATE_LIMIT:
                name, retryable = "RateLimit", True if retryable is None else retryable
            case Verdict.UNEXPLAINED:
                may_not_fit = True
            case Verdict.OTHER:
                pass
    return ProviderError(
        message,
        name=name,
        status_code=status,
        is_retryable=is_retryable(status) if retryable is None else retryable,
        retry_after=retry_after,
        context_window=window,
        may_not_fit=may_not_fit,
        answer=body[:_MAX_SEARCHED_CHARS],
    )


def with_message(error: ProviderError, message: str) -> ProviderError:
    """Return the error with another message."""
    return ProviderError(
        message,
        name=error.name,
        status_code=error.status_code,
        is_retryable=error.is_retryable,
        retry_after=error.retry_after,
        context_window=error.context_window,
        may_not_fit=error.may_not_fit,
        answer=error.answer,
    )


def refused_credential(error: ProviderError, provider: str, credential: str) -> ProviderError:
    """Return the error with provider and credential named, if the endpoint refused the credential; else the error.

    `credential` says what it is and where it is set; it is empty if that is not known.
    """
    subject = credential or "the credentials"
    if error.name == "Authentication":
        remedy = "; set a valid one there" if credential else ""
        return with_message(error, f"provider {provider} refused {subject}: {error.message}{remedy}")
    if error.name == "Permission":
        remedy = "; allow it in your account, or set another one there" if credential else ""
        return with_message(error, f"provider {provider} does not allow this to {subject}: {error.message}{remedy}")
    return error


def stream_interrupted(detail: str) -> ProviderError:
    """Return the error for a reply that ended early; nothing of it is kept."""
    return ProviderError(f"the reply ended before it was complete: {detail}", name="CutStream", is_retryable=True)


def bad_response(detail: str, *, retryable: bool) -> ProviderError:
    """Return the error for an answer that does not fit the endpoint's format."""
    return ProviderError(detail, name="BadResponse", is_retryable=retryable)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds that an endpoint asks to wait, or None (RFC 9110 section 10.2.3; SDKs: `retry-after-ms`)."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def delay_in(body: str) -> float | None:
    """Return the seconds that a body asks to wait, or None (google.rpc `RetryInfo`: `retryDelay`, such as `34.5s`)."""
    match = _DELAY.search(body) if _RETRY_INFO in body else None
    return None if match is None else _number(match[1])


def _first_known(*delays: float | None) -> float | None:
    return next((delay for delay in delays if delay is not None), None)


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None


def _read_should_retry(headers: Mapping[str, str]) -> bool | None:
    """Read `x-should-retry`, with which endpoints overrule the status in both vendors' SDKs; None if absent."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").lower())


def error_message_in(body: bytes) -> str:
    """Return the endpoint's own message in an error's body; for a web page its title. Empty if there is none."""
    text = body.decode("utf-8", "replace").strip()
    if text.startswith("<"):
        return _text_of_page(text)
    try:
        document: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        is_cut_document = text.startswith(("{", "["))  # too long to be read whole, so most of it echoes the request
        return _shorten(text, _MAX_PAGE_CHARS if is_cut_document else _MAX_MESSAGE_CHARS)
    return _shorten(_message_in(document) or _without_echoed_input(text))


def _without_echoed_input(text: str) -> str:
    """Return an answer without the `input` next to each `loc`, where pydantic's servers echo parts of the request."""
    if '"loc"' not in text:
        return text
    try:
        document: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if "loc" in value:
                value.pop("input", None)
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return json.dumps(document)


_MESSAGE_KEYS = ("error", "message", "Message", "msg", "detail", "errors", "error_msg", "base_resp", "status_msg")
_PAGE_TITLE = re.compile(r"<(title|h1|message)\b[^>]*>(.*?)</\1", re.IGNORECASE | re.DOTALL)
_HIDDEN_OR_TAG = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>?", re.IGNORECASE | re.DOTALL)
_MAX_PAGE_CHARS = 200


def _text_of_page(page: str) -> str:
    """Return one line without tags: the title of a page, the message of an XML document, or the first words."""
    titles = (_without_tags(match[2]) for match in _PAGE_TITLE.finditer(page))
    words = next((title for title in titles if title), "") or _without_tags(page)
    return words if len(words) <= _MAX_PAGE_CHARS else f"{words[:_MAX_PAGE_CHARS]}…"


def _without_tags(markup: str) -> str:
    from html import unescape  # its table of names costs every start 1 ms

    return one_line(unescape(_HIDDEN_OR_TAG.sub(" ", markup)))


def _message_in(document: JsonValue) -> str:
    if isinstance(document, str):
        return document
    if isinstance(document, list):
        return next((message for message in map(_message_in, document) if message), "")
    if isinstance(document, dict):
        return next((message for key in _MESSAGE_KEYS if (message := _message_in(document.get(key)))), "")
    return ""


def _shorten(text: str, max_chars: int = _MAX_MESSAGE_CHARS) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
