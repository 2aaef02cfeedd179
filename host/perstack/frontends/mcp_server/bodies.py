"""Bodies of requests: read whole, within bounds, and known to be JSON that can be kept."""

from __future__ import annotations

from starlette.types import Message, Receive

from perstack.core.json_reading import read_json


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
    """What is wrong with a body, if it is not JSON that can be read again: too deep, a number that is none, or half of
    a character.
    """
    try:
        read_json(body)
    except ValueError as error:
        return f"the body is not JSON: {error}"
    return None
