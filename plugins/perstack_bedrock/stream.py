"""AWS's binary event stream: a response's body to the data of its events, framed and checked by botocore.

Source: Smithy specification, «Amazon Event Stream»; botocore.eventstream.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from perstack_http.errors import cut_stream

if TYPE_CHECKING:
    import httpx
    from botocore.eventstream import EventStreamMessage

MEDIA_TYPE = "application/vnd.amazon.eventstream"


async def aws_events(response: httpx.Response) -> AsyncGenerator[str]:
    """Each event as a JSON object: its kind, and under it what it holds. Raises ProviderError if a frame is damaged."""
    from botocore.eventstream import EventStreamBuffer, ParserError

    buffer = EventStreamBuffer()
    async for chunk in response.aiter_bytes():
        buffer.add_data(chunk)
        try:
            texts = [_data_of(message) for message in buffer]
        except ParserError as error:
            raise cut_stream(f"a frame is damaged: {error}") from error
        for text in texts:
            yield text


def _data_of(message: EventStreamMessage) -> str:
    headers = cast("dict[str, JsonValue]", message.headers)  # the stubs take them for a number
    if headers.get(":message-type") == "error":
        found = {"code": headers.get(":error-code"), "message": headers.get(":error-message")}
        return json.dumps({"error": found})
    kind = headers.get(":event-type") or headers.get(":exception-type") or ""
    # put together as text: the payload is JSON already, and is read but once
    return f"{{{json.dumps(kind)}: {message.payload.decode('utf-8', 'replace') or 'null'}}}"
