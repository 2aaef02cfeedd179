"""The hash chain of a log: how a line is sealed, opened and verified.

A line is the event's JSON object with up to three additional keys at its end: `batch` (only on the first line of an
append of several lines: their number), `digest` and `hash`. If `payload` is the object's bytes without these keys,
`digest = sha256(payload)` and `hash = sha256(previous hash + digest)`, over the text of both, each written as unpadded
base64url. The hash before the first line is empty.

Because the chain covers digests, a payload can be removed: the line that replaces it has the event's type and id,
`redacted`, the old digest and hash, and nothing else. The chain does not cover its content; the `redactEvent` that must
follow it in the log does (`audit/event_redaction.py`).
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from pydantic import JsonValue
from pydantic_core import from_json

from perstack.dataclass import dataclass

_SEAL = re.compile(rb',"digest":"([A-Za-z0-9_-]{43})","hash":"([A-Za-z0-9_-]{43})"\}\Z')
_SEAL_SIZE = len(',"digest":"","hash":""}') + 2 * 43
_BATCH = re.compile(rb',"batch":([1-9][0-9]*)\Z')
_MAX_BATCH_SIZE = 50  # bytes before the seal in which `batch` is searched: searching whole lines would be slow

_TO_BASE64URL = bytes.maketrans(b"+/", b"-_")

_REDACTED = re.compile(rb'\{"type":"(?P<type>[A-Za-z]{1,64})","id":"(?P<id>[A-Za-z0-9_-]{1,160})","redacted":true\}')
_REDACTED_ENDING = b',"redacted":true}'


class BrokenSeal(ValueError):
    """A line that was changed since it was written: it does not parse, or its digest or hash is wrong."""


class Head(NamedTuple):
    """The end of a log: its number of lines and the hash of the last one. Stored outside the log, it is an anchor."""

    seq: int = 0
    hash: str = ""


EMPTY_LOG = Head()


class SealedLine(NamedTuple):
    """The parts of one line of a log: its payload, and the digest and hash that seal it."""

    payload: bytes
    digest: str
    hash: str
    batch: int  # number of lines appended together, on the first of them; 1 on all others


@dataclass(frozen=True, slots=True)
class RedactedRemains:
    """The remains of a redacted event's line. Only a `redactEvent` vouches for them."""

    type: str
    id: str


def link(head: Head, payload: bytes) -> tuple[str, Head]:
    """Return the digest of the payload that follows `head`, and the head after it."""
    digest = _b64_sha256(payload)
    return digest, Head(head.seq + 1, _b64_sha256((head.hash + digest).encode()))


def format_line(payload: bytes, digest: str, chain_hash: str, batch: int = 1) -> bytes:
    """Return a line of a log, without newline. `batch`: lines appended together, for the first of them; else 1."""
    mark = b',"batch":%d' % batch if batch > 1 else b""
    return b'%b%b,"digest":"%b","hash":"%b"}' % (payload[:-1], mark, digest.encode(), chain_hash.encode())


class SealedBatch(list[bytes]):
    """Lines of one append that this process has sealed: a storage need not hash them. Do not change the list."""

    def __init__(self, lines: Iterable[bytes], previous_head: Head, next_head: Head) -> None:
        """Vouch that these lines lead a log from the head `previous_head` to `next_head`."""
        super().__init__(lines)
        self.previous_head = previous_head
        self.next_head = next_head


def seal(head: Head, payloads: Sequence[bytes]) -> tuple[list[bytes], Head]:
    """Return the lines of one append, without newlines, and the head after them."""
    lines: list[bytes] = []
    for index, payload in enumerate(payloads):
        digest, head = link(head, payload)
        lines.append(format_line(payload, digest, head.hash, len(payloads) if index == 0 else 1))
    return lines, head


def open_line(line: bytes) -> SealedLine:
    """Return the parts of a line; only its form is checked. Raises BrokenSeal."""
    # The seal has a fixed size: searching for it would take longer than both hashes of a line.
    end = len(line) - _SEAL_SIZE
    seal = _SEAL.match(line, max(0, end))
    if seal is None:
        raise BrokenSeal("it does not end with a digest and a hash")
    batch = _BATCH.search(line, max(0, end - _MAX_BATCH_SIZE), end)
    payload = line[: end if batch is None else batch.start()] + b"}"
    digest, chain_hash = seal.groups()
    return SealedLine(payload, digest.decode(), chain_hash.decode(), 1 if batch is None else int(batch[1]))


def check(head: Head, line: bytes) -> tuple[SealedLine, Head]:
    """Open the line that follows `head`, and check digest (not of a redacted line) and hash. Raises BrokenSeal."""
    sealed = open_line(line)
    if _b64_sha256(sealed.payload) != sealed.digest and read_remains(sealed.payload) is None:
        if sealed.payload.endswith(_REDACTED_ENDING):
            raise BrokenSeal("it is marked as redacted, but still has content")
        raise BrokenSeal("its content does not match its digest")
    if _b64_sha256((head.hash + sealed.digest).encode()) != sealed.hash:
        raise BrokenSeal("it does not follow the line before it")
    return sealed, Head(head.seq + 1, sealed.hash)


class CheckedLines(list[bytes]):
    """All lines of a log from the first on, which `check` has accepted in this order. Do not change the list."""


def choose_opener(lines: Sequence[bytes]) -> Callable[[Head, bytes], tuple[SealedLine, Head]]:
    """Return `check`, or for `CheckedLines` a function that does the same without hashing them again."""
    return _open_checked if isinstance(lines, CheckedLines) else check


def _open_checked(head: Head, line: bytes) -> tuple[SealedLine, Head]:
    sealed = open_line(line)
    return sealed, Head(head.seq + 1, sealed.hash)


def read_remains(payload: bytes) -> RedactedRemains | None:
    """Return the remains in a redacted line's payload; None for any other payload."""
    match = _REDACTED.fullmatch(payload)
    return None if match is None else RedactedRemains(match["type"].decode(), match["id"].decode())


def remove_payload(line: bytes, event_type: str, event_id: str) -> bytes:
    """Return `line` without its content, as a redaction leaves it. Raises BrokenSeal."""
    sealed = open_line(line)
    remains = b'{"type":"%b","id":"%b","redacted":true}' % (event_type.encode(), event_id.encode())
    return format_line(remains, sealed.digest, sealed.hash, sealed.batch)


def is_redaction_of(line: bytes, replacement: bytes) -> bool:
    """Return True if `replacement` may replace `line`: same digest, hash and batch, and no content."""
    try:
        old, new = open_line(line), open_line(replacement)
    except BrokenSeal:
        return False
    is_same = (old.digest, old.hash, old.batch) == (new.digest, new.hash, new.batch)
    return is_same and read_remains(new.payload) is not None


def _b64_sha256(data: bytes) -> str:
    # The result equals `encode_digest(sha256(data))`. It is inlined because it runs twenty times per step.
    return b2a_base64(sha256(data).digest(), newline=False).translate(_TO_BASE64URL)[:43].decode()


def encode_digest(digest: bytes) -> str:
    """Return a SHA-256 digest as unpadded base64url: 43 characters."""
    return b2a_base64(digest, newline=False).translate(_TO_BASE64URL)[:43].decode()


# Summaries of Jobs contain the head of the log that they were computed from.


def with_head(summary: bytes, head: Head) -> bytes:
    """Return a summary, which is a JSON object, with the head of its log added."""
    return b'%b,"headSeq":%d,"headHash":"%b"}' % (summary[:-1], head.seq, head.hash.encode())


def head_in(summary: bytes) -> Head | None:
    """Return the head of the log that a summary contains; None if it contains none."""
    try:
        value: JsonValue = from_json(summary)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    seq, chain_hash = value.get("headSeq"), value.get("headHash")
    return Head(seq, chain_hash) if isinstance(seq, int) and isinstance(chain_hash, str) and seq > 0 else None
