"""For storages: what the records of an append are checked for before they are kept."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.chain import BrokenSeal, Head, check, is_redaction_of
from perstack.errors import Conflict, NotFound, StorageError


def head_after(head: Head, records: Sequence[bytes], place: str) -> Head:
    """The head of a log that ended at `head`, with these records of one append added.

    A log would not read any more with records that do not continue it, so they raise Conflict (of two writers at the
    same place one has other records before), and records not sealed together raise StorageError. `place` names the
    log in the message.
    """
    for index, record in enumerate(records):
        try:
            sealed, head = check(head, record)
        except BrokenSeal as broken:
            raise Conflict(f"{place}: record {head.seq + 1} does not continue this log: {broken}") from broken
        if b"\n" in record or sealed.batch != (len(records) if index == 0 else 1):
            raise StorageError(f"{place}: record {head.seq} was not sealed together with the others of its append")
    return head


def ends_at(record: bytes, head: Head) -> bool:
    """Whether a record is the one with which a log ended at `head`."""
    return record.endswith(b',"hash":"%b"}' % head.hash.encode())


def check_redaction(log: Sequence[bytes], seq: int, record: bytes, place: str) -> None:
    """Raises NotFound if a log has no record at `seq`, and Conflict if `record` may not stand for that one."""
    if not 0 < seq <= len(log):
        raise NotFound(f"{place}: has {len(log)} records, and so none at {seq}")
    if b"\n" in record or not is_redaction_of(log[seq - 1], record):
        raise Conflict(f"{place}: what is to stand for record {seq} is not a redaction of it")


def stale(place: str, expected_seq: int, seq: int) -> Conflict:
    """The error for a writer that does not know the end of the log."""
    return Conflict(f"{place}: has {seq} records, not {expected_seq}: another process has written to this run")
