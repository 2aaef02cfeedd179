"""What is in the objects of a log: one append, many of them merged, or the end that a deletion puts."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from perstack.dataclass import dataclass
from perstack_s3.stored import AppendHeader, MergedHeader, read

LARGEST_MERGED = 8_000_000
"""Bytes: appends that have more together are left as they are."""


class NotAnAppend(ValueError):
    """An object of a log that this plugin did not write."""


@dataclass(frozen=True, slots=True)
class Append:
    """The records of one append; none, if it only fences the log, or the log has been ended for its deletion."""

    records: tuple[bytes, ...]
    is_end: bool = False


def append_bytes(records: Sequence[bytes], fence: int) -> bytes:
    """One append, with the number of the lease under which it was written (0: none), and a number of its own."""
    header = AppendHeader(fence=fence, writer=secrets.token_hex(8), records=len(records))
    return b"".join(line + b"\n" for line in (header.to_bytes(), *records))


def end_bytes() -> bytes:
    """What stands in the place of the next append when a Job is deleted."""
    return AppendHeader(writer=secrets.token_hex(8), end=True).to_bytes() + b"\n"


def read_append(data: bytes) -> Append:
    """Raises NotAnAppend."""
    first, _, body = data.partition(b"\n")
    header = read(AppendHeader, first)
    if header is None:
        raise NotAnAppend("it does not begin as an append does")
    if header.end:
        return Append((), is_end=True)
    *records, rest = body.split(b"\n")
    if rest or len(records) != header.records:
        raise NotAnAppend("it does not have the records that it says it has")
    return Append(tuple(records))


def merged_bytes(appends: Sequence[bytes]) -> bytes | None:
    """So many appends in one object: the same bytes whoever writes it. None if they are too big."""
    if sum(map(len, appends)) > LARGEST_MERGED:
        return None
    return MergedHeader(sizes=tuple(map(len, appends))).to_bytes() + b"\n" + b"".join(appends)


def read_merged(data: bytes) -> list[bytes]:
    """The appends. Raises NotAnAppend."""
    first, _, body = data.partition(b"\n")
    header = read(MergedHeader, first)
    if header is None or min(header.sizes) <= 0 or sum(header.sizes) != len(body):
        raise NotAnAppend("it does not have the appends that it says it has")
    appends: list[bytes] = []
    at = 0
    for size in header.sizes:
        appends.append(body[at : at + size])
        at += size
    return appends
