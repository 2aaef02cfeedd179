"""Encode AWS's binary event stream, which botocore only decodes.

Source: Smithy specification, «Amazon Event Stream»: lengths, a checksum of them, headers, payload, a checksum of all.
"""

from __future__ import annotations

import json
from binascii import crc32
from collections.abc import Mapping
from struct import pack
from typing import Any

_STRING = 7


def frame(headers: Mapping[str, str], payload: bytes = b"") -> bytes:
    """Return one encoded message."""
    head = b"".join(_encode_header(name.encode(), value.encode()) for name, value in headers.items())
    prelude = pack("!II", len(head) + len(payload) + 16, len(head))
    message = prelude + pack("!I", crc32(prelude)) + head + payload
    return message + pack("!I", crc32(message))


def _encode_header(name: bytes, value: bytes) -> bytes:
    return pack("!B", len(name)) + name + pack("!BH", _STRING, len(value)) + value


def event(kind: str, content: Any) -> bytes:
    """Return an event of a service that uses JSON."""
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, _encode_json(content))


def exception(kind: str, message: str) -> bytes:
    """Return an error that the service's model defines, in place of an event."""
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return frame(headers, _encode_json({"message": message}))


def error(code: str, message: str) -> bytes:
    """Return an error that the service's model does not define."""
    return frame({":error-code": code, ":error-message": message, ":message-type": "error"})


def _encode_json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
