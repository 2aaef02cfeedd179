"""Errors that come inside a stream, where there is no status but a code.

Source: OpenAI documentation, «Error codes», section «API errors»; API reference, «Responses», the codes of `error`.
"""

from __future__ import annotations

import re

from pydantic import JsonValue

from perstack.errors import ProviderError
from perstack_http.errors import made_error

_STATUS_OF: dict[str, int] = {
    "invalid_api_key": 401,
    "model_not_found": 404,
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "vector_store_timeout": 500,
}
_OVERFLOW = "context_length_exceeded"
_QUOTA = "insufficient_quota"
_AT_FAULT = re.compile(rf"^({_OVERFLOW}|(invalid|image|empty|unsupported|failed_to_download)_\w+)$|polic")
"""Codes of what is wrong with the request itself, and will be again."""

_TRY_AGAIN_IN = re.compile(r"try again in (\d+(?:\.\d+)?) ?(ms|s)\b", re.IGNORECASE)


def stream_error(message: str, code: JsonValue) -> ProviderError:
    """The error for a code, or for a status in its place; an unknown one is taken for the server's own."""
    words = message or "the server reported an error without an explanation"
    status = code if isinstance(code, int) and 400 <= code < 600 else _status_of(str(code))
    wait = _wait_in(words) if status == 429 else None
    return made_error(words, status, retry_after=wait, is_overflow=code == _OVERFLOW, is_quota=code == _QUOTA)


def _status_of(code: str) -> int:
    return _STATUS_OF.get(code, 400 if _AT_FAULT.search(code) else 500)


def _wait_in(words: str) -> float | None:
    """There are no headers any more: how long to wait is said in words only."""
    found = _TRY_AGAIN_IN.search(words)
    if found is None:
        return None
    return float(found[1]) / (1000 if found[2].lower() == "ms" else 1)
