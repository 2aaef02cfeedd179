"""The chain of a Run's log: how a line is sealed, opened and verified.

A line is the event's JSON object with three keys more at its end: `batch` (only on the first line of an append of
several: how many lines it has), `digest` and `hash`. With `payload` the bytes of the object before those keys were
added, `digest = sha256(payload)` and `hash = sha256(previous hash + digest)`, over the text of both, each written as
unpadded base64url. The hash before the first line is empty.

Because the chain is over digests, a payload can be taken out: the line that stays in its place has the event's type and
id, says that it is redacted, keeps digest and hash, and has nothing else. What it says is not vouched for by the chain;
the `redactEvent` that must follow it in the log vouches for it (`core.redaction`).
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from perstack.dataclass import dataclass

_SEAL = re.compile(rb',"digest":"([A-Za-z0-9_-]{43})","hash":"([A-Za-z0-9_-]{43})"\}\Z')
_SEAL_SIZE = len(',"digest":"","hash":""}') + 2 * 43
_BATCH = re.compile(rb',"batch":([1-9][0-9]*)\Z')

_TO_URL = bytes.maketrans(b"+/", b"-_")

_REDACTED = re.compile(rb'\{"type":"(?P<type>[A-Za-z]{1,64})","id":"(?P<id>[A-Za-z0-9_-]{1,160})","redacted":true\}')
_SAYS_REDACTED = b',"redacted":true}'


class BrokenSeal(ValueError):
    """A line that is not what was written: it does not parse, or its digest or hash is another."""


class Head(NamedTuple):
    """The end of a log: how many lines it has, and the hash of the last. Kept elsewhere, it anchors the log."""

    seq: int = 0
    hash: str = ""


EMPTY_LOG = Head()


class Sealed(NamedTuple):
    """One line, taken apart."""

    payload: bytes
    digest: str
    hash: str
    batch: int
    """How many lines were appended together, on the first of them; 1 otherwise."""


@dataclass(frozen=True, slots=True)
class TakenOut:
    """What is left in the place of an event that was redacted. Nothing vouches for it but a `redactEvent`."""

    type: str
    id: str


def link(head: Head, payload: bytes) -> tuple[str, Head]:
    """The digest of the payload that follows `head`, and the head after it."""
    digest = _b64_sha256(payload)
    return digest, Head(head.seq + 1, _b64_sha256((head.hash + digest).encode()))


def line_of(payload: bytes, digest: str, chained: str, batch: int = 1) -> bytes:
    """A line, without newline; `batch` is how many lines are appended together, on the first of them."""
    mark = b',"batch":%d' % batch if batch > 1 else b""
    return b'%b%b,"digest":"%b","hash":"%b"}' % (payload[:-1], mark, digest.encode(), chained.encode())


def seal(head: Head, payloads: Sequence[bytes]) -> tuple[list[bytes], Head]:
    """The lines (without newline) of one append, and the head after them."""
    lines: list[bytes] = []
    for index, payload in enumerate(payloads):
        digest, head = link(head, payload)
        lines.append(line_of(payload, digest, head.hash, len(payloads) if index == 0 else 1))
    return lines, head


def open_line(line: bytes) -> Sealed:
    """The parts of a line, unchecked but for their form. Raises BrokenSeal."""
    # where it has to begin: to look for it takes longer than both hashes of a line
    end = len(line) - _SEAL_SIZE
    seal = _SEAL.match(line, max(0, end))
    if seal is None:
        raise BrokenSeal("no digest and hash at its end")
    batch = _BATCH.search(line, max(0, end - 50), end)
    payload = line[: end if batch is None else batch.start()] + b"}"
    digest, chained = seal.groups()
    return Sealed(payload, digest.decode(), chained.decode(), 1 if batch is None else int(batch[1]))


def check(head: Head, line: bytes) -> tuple[Sealed, Head]:
    """Open the line that follows `head`, and check digest and hash. Raises BrokenSeal.

    A line that says it is redacted has no content that its digest could be compared with: it is `taken_out`.
    """
    sealed = open_line(line)
    if _b64_sha256(sealed.payload) != sealed.digest and taken_out(sealed.payload) is None:
        if sealed.payload.endswith(_SAYS_REDACTED):
            raise BrokenSeal("it says that its content was redacted, and has content")
        raise BrokenSeal("its content is not what its digest says")
    if _b64_sha256((head.hash + sealed.digest).encode()) != sealed.hash:
        raise BrokenSeal("it does not follow the line before it")
    return sealed, Head(head.seq + 1, sealed.hash)


def taken_out(payload: bytes) -> TakenOut | None:
    """What a payload says of the one that was there before, if it is what a redaction leaves; None otherwise."""
    match = _REDACTED.fullmatch(payload)
    return None if match is None else TakenOut(match["type"].decode(), match["id"].decode())


def without_payload(line: bytes, event_type: str, event_id: str) -> bytes:
    """The line that stays when the content of `line` is taken out. Raises BrokenSeal."""
    sealed = open_line(line)
    left = b'{"type":"%b","id":"%b","redacted":true}' % (event_type.encode(), event_id.encode())
    return line_of(left, sealed.digest, sealed.hash, sealed.batch)


def is_redaction_of(line: bytes, new: bytes) -> bool:
    """Whether `new` may stand in the place of `line`: the same digest, hash and batch, and no content."""
    try:
        old, left = open_line(line), open_line(new)
    except BrokenSeal:
        return False
    same = (old.digest, old.hash, old.batch) == (left.digest, left.hash, left.batch)
    return same and taken_out(left.payload) is not None


def _b64_sha256(data: bytes) -> str:
    # as `unpadded`: twenty times a step
    return b2a_base64(sha256(data).digest(), newline=False).translate(_TO_URL)[:43].decode()


def unpadded(digest: bytes) -> str:
    """A SHA-256 digest as base64url without its padding: 43 characters."""
    return b2a_base64(digest, newline=False).translate(_TO_URL)[:43].decode()
