"""Log of one Run: one object per append, created only if absent; that condition is the fence.

No listing is needed, because appends are numbered without gaps. A reader requests the merged object first, and again
when single appends end, so that a concurrent merge, which then removes the single appends, loses nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import takewhile

from perstack.core.base.chain import EMPTY_LOG, BrokenSeal, Head, check
from perstack.errors import Conflict, Damaged, NotFound, StorageError
from perstack.ports.storage import RunRef
from perstack.support.storage import check_redaction, damage_error, head_after, stale_writer
from perstack_s3.layout import (
    GROUP_SIZE,
    Append,
    Layout,
    NotAnAppend,
    append_bytes,
    end_bytes,
    merge_appends,
    read_append,
    read_merged,
)
from perstack_s3.objects import Objects, ReadObject, gather_limited

_MAX_ATTEMPTS = 5
_MAX_PREFETCH = 16  # maximum number of appends requested at a time


class S3Log:
    """The cached state of one log. It stays valid, because only a redaction changes an append."""

    def __init__(self, objects: Objects, layout: Layout, ref: RunRef, incarnation: str) -> None:
        self.ref = ref
        self._objects = objects
        self._layout = layout
        self._incarnation = incarnation
        self._starts: list[Head] = [EMPTY_LOG]
        self._fence: int | None = None
        self._recent: dict[int, bytes] = {}

    @property
    def place(self) -> str:
        return f"{self._objects.place}, Run {self.ref.run_id}"

    @property
    def end(self) -> Head:
        """The head of the log when this process last read it."""
        return self._starts[-1]

    async def read(self, after: int, limit: int | None) -> list[bytes]:
        """Return at most `limit` records after `after`. Raises Damaged."""
        last = None if limit is None else after + limit
        first = bisect_right([head.seq for head in self._starts], max(after, 0)) - 1
        records: list[bytes] = []
        if last is not None and last <= after:
            return records
        head = self._starts[first]  # the head is local: a concurrent take_back may reset the cached starts
        async for number, append in self._read_appends(first):
            for record in append.records:
                if last is not None and head.seq >= last:
                    return records
                head = self._verify_next(head, record)
                if head.seq > after:
                    records.append(record)
            self._remember_start(number, head)
            if last is not None and head.seq >= last:
                break
        return records

    async def last(self, count: int) -> list[bytes]:
        """Return the last `count` records without verifying them. Raises Damaged if an object is unreadable."""
        block = await self._last_block()
        records: list[bytes] = []
        while block >= 0 and len(records) < count:
            first = block * GROUP_SIZE
            appends = [self._read_append(first, data) for data in await self._read_block(block)]
            records[:0] = [record for append in appends for record in append.records]
            block -= 1
        return records[-count:]

    async def has_records(self) -> bool:
        if self.end.seq:
            return True
        async for _, append in self._read_appends(0):
            if append.records:
                return True
        return False

    async def refresh(self) -> bool:
        """Read to the end. Return True if the log was ended by a deletion."""
        head = self.end
        async for number, append in self._read_appends(len(self._starts) - 1):
            if append.is_end:
                return True
            for record in append.records:
                head = self._verify_next(head, record)
            self._remember_start(number, head)
        return False

    async def append(self, expected_seq: int, records: Sequence[bytes], fence: int) -> int:
        """Append records and return the append's number. Raises Conflict, and NotFound while the Job is being deleted.

        Without a lease (`fence` 0) it moves past a new holder's fence, which has no records.
        """
        if self.end.seq != expected_seq or (fence and self._fence != fence):
            await self._check_length(expected_seq)
        head, body = head_after(self.end, records, self.place), append_bytes(records, fence)
        for _ in range(1 if fence else _MAX_ATTEMPTS):
            number = len(self._starts) - 1
            if await self._objects.create(self._append_key(number), body) is not None:
                self._remember_start(number, head)
                self._fence = fence
                self._recent[number] = body
                return number
            await self._check_length(expected_seq)
        raise stale_writer(self.place, expected_seq, self.end.seq)

    async def put_fence(self, fence: int) -> None:
        """Occupy the next append's number, so that a former holder's write there fails. Not in a damaged log."""
        with suppress(Damaged):
            for _ in range(_MAX_ATTEMPTS):
                if await self.refresh():
                    return
                number, body = len(self._starts) - 1, append_bytes((), fence)
                if await self._objects.create(self._append_key(number), body) is not None:
                    self._remember_start(number, self.end)
                    self._fence = fence
                    self._recent[number] = body
                    await self.merge(number)
                    return
            raise Conflict(f"{self.place}: other processes write to this Run: try again")

    async def take_back(self, number: int) -> None:
        """Remove an append that does not count: the Job was deleted, or a merged object has its number."""
        self._starts = [EMPTY_LOG]
        self._recent.clear()
        await self._objects.remove([self._append_key(number)])

    async def is_merged(self, number: int) -> bool:
        """Return whether the append of this number is in a merged object."""
        return await self._objects.head(self._merged_key(number // GROUP_SIZE)) is not None

    async def put_end(self, expected_seq: int) -> None:
        """End the log before a deletion. Raises Conflict unless it has exactly `expected_seq` records."""
        is_ended = await self.refresh()
        if self.end.seq != expected_seq:
            raise stale_writer(self.place, expected_seq, self.end.seq)
        if not is_ended and await self._objects.create(self._append_key(len(self._starts) - 1), end_bytes()) is None:
            await self.refresh()
            raise stale_writer(self.place, expected_seq, self.end.seq)

    async def merge(self, number: int) -> None:
        """Merge the group of appends that ends with this number, if it is complete.

        The merged object is written before the single ones are removed, so a reader always finds one or the other.
        """
        if (number + 1) % GROUP_SIZE:
            return
        numbers = range(number + 1 - GROUP_SIZE, number + 1)
        with suppress(StorageError):  # the single appends stay readable
            bodies = await gather_limited(self._read_body(append_number) for append_number in numbers)
            merged = None if None in bodies else merge_appends([body for body in bodies if body is not None])
            if (
                merged is not None
                and await self._objects.create(self._merged_key(number // GROUP_SIZE), merged) is not None
            ):
                await self._objects.remove([self._append_key(append_number) for append_number in numbers])
        self._recent.clear()

    async def redact(self, seq: int, record: bytes) -> None:
        """Replace record `seq` by one without content. Raises NotFound and Conflict."""
        check_redaction(await self.read(0, None), seq, record, self.place)
        number = bisect_right([head.seq for head in self._starts], seq - 1) - 1
        index = seq - 1 - self._starts[number].seq
        merged = await self._objects.get(self._merged_key(number // GROUP_SIZE))
        if merged is not None:
            appends = read_merged(merged.data)
            appends[number % GROUP_SIZE] = _replace_record(appends[number % GROUP_SIZE], index, record)
            await self._replace_object(self._merged_key(number // GROUP_SIZE), merge_appends(appends) or b"", merged)
        single = await self._objects.get(self._append_key(number))
        if single is not None:
            await self._replace_object(self._append_key(number), _replace_record(single.data, index, record), single)
        self._recent.clear()

    async def _replace_object(self, key: str, data: bytes, log_object: ReadObject) -> None:
        if await self._objects.replace(key, data, log_object.tag) is None:
            raise Conflict(f"{self.place}: {key} has changed in the meantime: try again")

    async def _check_length(self, expected_seq: int) -> None:
        if await self.refresh():
            raise NotFound(f"Job {self.ref.job_id} was deleted")
        if self.end.seq != expected_seq:
            raise stale_writer(self.place, expected_seq, self.end.seq)

    async def _read_body(self, number: int) -> bytes | None:
        if number in self._recent:
            return self._recent[number]
        log_object = await self._objects.get(self._append_key(number))
        return None if log_object is None else log_object.data

    async def _read_appends(self, number: int) -> AsyncIterator[tuple[int, Append]]:
        """Yield the appends from `number` on. Prefetches as many as exist, up to _MAX_PREFETCH at a time."""
        prefetch_count = 1
        while True:
            merged = None if number % GROUP_SIZE else await self._objects.get(self._merged_key(number // GROUP_SIZE))
            if merged is None:
                end = min(number + prefetch_count, (number // GROUP_SIZE + 1) * GROUP_SIZE)
                objects = await gather_limited(self._objects.get(self._append_key(n)) for n in range(number, end))
                present = list(takewhile(lambda log_object: log_object is not None, objects))
                for log_object in present:
                    yield number, self._read_append(number, log_object.data if log_object is not None else b"")
                    number += 1
                if len(present) == len(objects):
                    prefetch_count = min(prefetch_count * 2, _MAX_PREFETCH)
                    continue
                merged = await self._objects.get(self._merged_key(number // GROUP_SIZE))
                if merged is None:
                    if not any(objects[len(present) :]):
                        return
                    if await self._is_missing(number):
                        raise self._damage_in_append(number, f"append {number} is missing")
                    continue
            for append in self._read_merged(number, merged.data)[number % GROUP_SIZE :]:
                yield number, self._read_append(number, append)
                number += 1

    async def _read_block(self, block: int) -> list[bytes]:
        """Return the appends of a group."""
        first = block * GROUP_SIZE
        merged = await self._objects.get(self._merged_key(block))
        if merged is None:
            objects = await gather_limited(
                self._objects.get(self._append_key(number)) for number in range(first, first + GROUP_SIZE)
            )
            if objects[0] is not None:
                present = takewhile(lambda log_object: log_object is not None, objects)
                return [log_object.data for log_object in present if log_object is not None]
            merged = await self._objects.get(self._merged_key(block))
        return [] if merged is None else self._read_merged(first, merged.data)

    async def _last_block(self) -> int:
        """Find the last group by exponential and binary search; -1 if the log is empty."""
        low, high = -1, 0
        while await self._has_begun(high):
            low, high = high, max(2 * high, 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if await self._has_begun(middle) else (low, middle)
        return low

    async def _has_begun(self, block: int) -> bool:
        keys = (self._append_key(block * GROUP_SIZE), self._merged_key(block))
        # A merge may happen between the two requests.
        return any(await gather_limited(map(self._objects.head, keys))) or await self.is_merged(block * GROUP_SIZE)

    async def _is_missing(self, number: int) -> bool:
        """Return whether an append is missing although later ones exist. It may have arrived since it was requested."""
        return await self._objects.get(self._append_key(number)) is None and not await self.is_merged(number)

    def _remember_start(self, number: int, head: Head) -> None:
        if number == len(self._starts) - 1:
            self._starts.append(head)

    def _verify_next(self, head: Head, record: bytes) -> Head:
        try:
            return check(head, record)[1]
        except BrokenSeal as error:
            raise self._damage_after(head.seq, str(error)) from error

    def _read_append(self, number: int, data: bytes) -> Append:
        try:
            return read_append(data)
        except NotAnAppend as error:
            raise self._damage_in_append(number, str(error)) from error

    def _read_merged(self, number: int, data: bytes) -> list[bytes]:
        try:
            return read_merged(data)
        except NotAnAppend as error:
            raise self._damage_in_append(number, str(error)) from error

    def _damage_in_append(self, number: int, problem: str) -> Damaged:
        return self._damage_after(self._starts[min(number, len(self._starts) - 1)].seq, problem)

    def _damage_after(self, readable_records: int, problem: str) -> Damaged:
        return damage_error(self.place, readable_records, problem, "the object")

    def _append_key(self, number: int) -> str:
        return self._layout.append(self.ref, self._incarnation, number)

    def _merged_key(self, number: int) -> str:
        return self._layout.merged_key(self.ref, self._incarnation, number)


def _replace_record(append: bytes, index: int, record: bytes) -> bytes:
    lines = append.split(b"\n")
    lines[index + 1] = record
    return b"\n".join(lines)
