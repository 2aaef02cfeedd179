"""Helpers for storages: pages, checks of records and blobs, errors, the promised order of ids, names of spaces."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from hashlib import sha256 as new_sha256
from typing import Protocol, TypeVar

from perstack.core.base.chain import (
    EMPTY_LOG,
    BrokenSeal,
    CheckedLines,
    Head,
    SealedBatch,
    check,
    is_redaction_of,
    open_line,
)
from perstack.core.base.ids import check_id, number_of_run, place_of
from perstack.errors import Conflict, Damaged, NotFound, StorageError, UsageError
from perstack.ports.storage import Page

# Paged listings.


class _HasNext(Protocol):
    @property
    def next(self) -> str | None: ...


_PageT = TypeVar("_PageT", bound=_HasNext)


async def pages(page: Callable[[str | None], Awaitable[_PageT]]) -> AsyncGenerator[_PageT]:
    """Iterate over all pages; `page` returns the page after a cursor, None meaning the first."""
    cursor: str | None = None
    while True:
        current_page = await page(cursor)
        yield current_page
        cursor = current_page.next
        if cursor is None:
            return


async def every_id(page: Callable[[str | None], Awaitable[Page]]) -> list[str]:
    """Return the ids of all pages."""
    return [item_id async for current_page in pages(page) for item_id in current_page.ids]


# Checks before records are stored.


def head_after(head: Head, records: Sequence[bytes], log_name: str) -> Head:
    """Return the head of a log that ended at `head`, after one append of these records.

    Raises Conflict for records that do not continue the log, since it could not be read any more; the usual cause is
    another writer of this log. Raises StorageError for records that were not sealed together. `log_name` is for
    messages. A `SealedBatch` that begins at `head` is not hashed again.
    """
    if isinstance(records, SealedBatch) and records.previous_head == head:
        return records.next_head
    for index, record in enumerate(records):
        try:
            sealed, head = check(head, record)
        except BrokenSeal as error:
            raise Conflict(f"{log_name}: record {head.seq + 1} does not continue this log: {error}") from error
        if b"\n" in record or sealed.batch != (len(records) if index == 0 else 1):
            raise StorageError(f"{log_name}: record {head.seq} was not sealed together with the others of its append")
    return head


def ends_at(record: bytes, head: Head) -> bool:
    """Return whether a record is the last one of a log that ended at `head`."""
    return record.endswith(ending_of(head))


def ending_of(head: Head) -> bytes:
    """Return the last bytes of the record at `head`, which contain its hash."""
    return b',"hash":"%b"}' % head.hash.encode()


def check_redaction(log: Sequence[bytes], seq: int, record: bytes, log_name: str) -> None:
    """Raise NotFound if a log has no record at `seq`, and Conflict if `record` is not a redaction of it."""
    if not 0 < seq <= len(log):
        raise NotFound(f"{log_name} has {len(log)} records, so there is none at {seq}")
    if b"\n" in record or not is_redaction_of(log[seq - 1], record):
        raise Conflict(f"{log_name}: the replacement of record {seq} is not a redaction of it")


# Checks of stored records and blobs.


def verify_rows(rows: Sequence[tuple[int, bytes | str]], after: int, log_name: str, medium: str) -> list[bytes]:
    """Return the records after `after`, each verified against the one before it.

    `rows` are sequence numbers with records, in order, including the record at `after` if there is one. Text in place
    of a record says why it cannot be read. Raises Damaged, which names the log and tells to put `medium` back from a
    copy.
    """
    lines: list[bytes] = [] if after else CheckedLines()
    head = EMPTY_LOG
    try:
        for seq, line in rows:
            if isinstance(line, str):
                raise BrokenSeal(line)
            if seq == after:
                head = Head(after, open_line(line).hash)
                continue
            if seq != head.seq + 1:
                raise BrokenSeal("it is missing")
            _, head = check(head, line)
            lines.append(line)
    except BrokenSeal as error:
        raise damage_error(log_name, head.seq, str(error), medium) from error
    return lines


def checked_blob(data: bytes | None, job_id: str, sha256: str, location: str, medium: str) -> bytes:
    """Return a blob that was read. Raises NotFound for None, and StorageError if the content has another digest."""
    if data is None:
        raise NotFound(f"Job {job_id} has no blob {sha256}")
    if new_sha256(data).hexdigest() != sha256:
        raise StorageError(f"{location}: blob {sha256} of Job {job_id} is damaged; put {medium} back from a copy")
    return data


# Errors.


def damage_error(log_name: str, readable: int, reason: str, medium: str) -> Damaged:
    """Return the error for a log whose record after the first `readable` ones cannot be read."""
    return Damaged(
        f"{log_name}, record {readable + 1}: {reason}; records before it that can be read: {readable}. "
        f"Put {medium} back from a copy",
        readable=readable,
    )


def job_exists(job_id: str) -> Conflict:
    """Return the error for a new Job whose id is taken."""
    return Conflict(f"Job {job_id} exists already: choose another id, or continue it")


def no_job(job_id: str, location: object) -> NotFound:
    """Return the error for an unknown Job; `location` is the storage's."""
    return NotFound(f"there is no Job {job_id} in {location}")


def already_driven(job_id: str, holder: str) -> Conflict:
    """Return the error for a lease that another process holds."""
    return Conflict(f"Job {job_id} is being driven by {holder}: wait until it ends, or stop it")


def stale_writer(log_name: str, expected_seq: int, seq: int) -> Conflict:
    """Return the error for a writer whose expected end of the log is outdated."""
    return Conflict(f"{log_name} has {seq} records, not {expected_seq}: another process has written to this Run")


SortKey = tuple[int, int, str]

_TIME_LIMIT = 1 << 63  # exclusive


def check_space(name: str) -> str:
    """Return the name of a space if it is valid. Raises UsageError."""
    if not re.fullmatch("[a-z]{1,20}", name) or name == "jobs":
        raise UsageError(f"{name!r} is not a valid name of a space: use 1 to 20 letters from a to z, and not `jobs`")
    return name


def run_order(run_id: str) -> SortKey:
    """Return the sort key of a Run id, by number. Ids without a number, from other programs, are first."""
    return number_of_run(run_id), 0, run_id


def checkpoint_order(checkpoint_id: str) -> SortKey:
    """Return the sort key of a checkpoint id: Run number, then place in the log. Ids without these are first."""
    try:
        _, run_id, seq = place_of(checkpoint_id)
    except UsageError:
        return 0, 0, checkpoint_id
    return number_of_run(run_id), seq, run_id


def is_id(name: str) -> bool:
    """Return whether a name is a valid id."""
    try:
        check_id(name, "listed")
    except UsageError:
        return False
    return True


def page_of(ids: Iterable[str], order: Callable[[str], SortKey], limit: int, after: str | None) -> Page:
    """Return a page of ids after `after`, which may not exist any more. Names that are not valid ids are skipped."""
    ordered = sorted((name for name in ids if is_id(name)), key=order)
    if after is not None:
        last = order(after)
        ordered = [name for name in ordered if order(name) > last]
    return Page(tuple(ordered[:limit]), ordered[limit - 1] if len(ordered) > limit else None)


def newest_first(jobs: Iterable[tuple[int, str]], limit: int, after: str | None) -> Page:
    """Return a page of Jobs, newest first. `jobs`: the time (or count) of each Job's last write, with its id."""
    ordered = sorted(jobs, reverse=True)
    if after is not None:
        cursor = place_in_jobs(after)
        ordered = [entry for entry in ordered if entry < cursor]
    page = ordered[:limit]
    next_cursor = f"{page[-1][0]}:{page[-1][1]}" if page and len(ordered) > limit else None
    return Page(tuple(name for _, name in page), next_cursor)


def place_in_jobs(cursor: str) -> tuple[int, str]:
    """Split a cursor into the time (or count, below 2^63) and the id of a page's last Job. Raises UsageError."""
    time_text, separator, name = cursor.partition(":")
    time = int(time_text) if time_text.isascii() and time_text.isdigit() and len(time_text) < 20 else _TIME_LIMIT
    if not separator or time >= _TIME_LIMIT or not is_id(name):
        raise UsageError(f"{cursor[:200]!r} is not a cursor of the list of Jobs: use `next` of the page before")
    return time, name
