"""Bodies of requests: read whole, within bounds, and known to be JSON that can be kept."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import cast

from pydantic import JsonValue
from pydantic_core import from_json
from starlette.types import Message, Receive

_HUGE = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}")
"""What a number needs that is more than a float holds."""


class TooLarge(Exception):
    """A body has more bytes than it may."""


class Gone(Exception):
    """The client has closed the connection before its request was whole."""


async def read(receive: Receive, most: int) -> bytes:
    """A request's body, of at most so many bytes. Raises TooLarge and Gone."""
    content = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Gone
        content += message.get("body", b"")
        if len(content) > most:
            raise TooLarge
        if not message.get("more_body", False):
            return bytes(content)


def replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, and then what comes after it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


def problem_of(body: bytes) -> str | None:
    """What is wrong with a body, if it is no JSON that can be read again: too deep, a number that is none, or half of
    a character.
    """
    try:
        value: JsonValue = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        return f"the body is no JSON: {error}"
    if _HUGE.search(body) and _has_infinity(value):
        return "the body is no JSON: a number is out of range"
    return None


def _has_infinity(value: JsonValue) -> bool:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, float) and math.isinf(one):
            return True
        if isinstance(one, (list, dict)):
            left.extend(cast("Iterable[JsonValue]", one.values() if isinstance(one, dict) else one))
    return False
