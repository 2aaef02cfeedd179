"""The log of one Run: an object an append, created only if absent, which is the fence.

Nothing is listed: appends have numbers without gaps. Who reads looks for the merged object first, so that one which
is merged meanwhile, and then removed, is met in one place or the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import takewhile

from perstack.core.chain import EMPTY_LOG, BrokenSeal, Head, check
from perstack.errors import Conflict, Damaged, NotFound, StorageError
from perstack.ports.appending import check_redaction, head_after, stale
from perstack.ports.storage import RunRef
from perstack_s3.layout import MERGED, Layout
from perstack_s3.objects import Found, Objects, at_once
from perstack_s3.records import (
    Append,
    NotAnAppend,
    append_bytes,
    end_bytes,
    merged_bytes,
    read_append,
    read_merged,
)

_TRIES = 5
_AHEAD = 16
"""How many appends are asked for at a time, at most."""


class Log:
    """One log as this process knows it. What it knows stays true: an append never changes, but by a redaction."""

    def __init__(self, objects: Objects, layout: Layout, run: RunRef, incarnation: str) -> None:
        self.run = run
        self._objects = objects
        self._layout = layout
        self._incarnation = incarnation
        self._starts: list[Head] = [EMPTY_LOG]
        self._fence: int | None = None
        self._recent: dict[int, bytes] = {}

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self._objects.place}, run {self.run.run_id}"

    @property
    def end(self) -> Head:
        """Where the log ended when this process looked last."""
        return self._starts[-1]

    async def read(self, after: int, limit: int | None) -> list[bytes]:
        """The records after place `after`, at most `limit`. Raises Damaged."""
        last = None if limit is None else after + limit
        first = bisect_right([head.seq for head in self._starts], max(after, 0)) - 1
        records: list[bytes] = []
        if last is not None and last <= after:
            return records
        head = self._starts[first]  # carried on from here: an append may be taken back meanwhile, with what is known
        async for number, append in self._walk(first):
            for record in append.records:
                if last is not None and head.seq >= last:
                    return records
                head = self._follows(head, record)
                if head.seq > after:
                    records.append(record)
            self._learn(number, head)
            if last is not None and head.seq >= last:
                break
        return records

    async def last(self, count: int) -> list[bytes]:
        """The last records, at most so many, unchecked. Raises Damaged."""
        block = await self._last_block()
        records: list[bytes] = []
        while block >= 0 and len(records) < count:
            first = block * MERGED
            appends = [self._read_append(first, data) for data in await self._block(block)]
            records[:0] = [record for append in appends for record in append.records]
            block -= 1
        return records[-count:]

    async def has_records(self) -> bool:
        """Whether the log has begun."""
        if self.end.seq:
            return True
        async for _, append in self._walk(0):
            if append.records:
                return True
        return False

    async def refresh(self) -> bool:
        """Read to the end; whether the log was ended for a deletion."""
        head = self.end
        async for number, append in self._walk(len(self._starts) - 1):
            if append.is_end:
                return True
            for record in append.records:
                head = self._follows(head, record)
            self._learn(number, head)
        return False

    async def append(self, expected_seq: int, records: Sequence[bytes], fence: int) -> int:
        """Add records; returns the number of the append. Raises Conflict, and NotFound if the Job is being deleted.

        Without a lease, `fence` 0, a place that whoever took the Job over has fenced is passed by: it has no records.
        """
        if self.end.seq != expected_seq or (fence and self._fence != fence):
            await self._look(expected_seq)
        head, body = head_after(self.end, records, self.place), append_bytes(records, fence)
        for _ in range(1 if fence else _TRIES):
            number = len(self._starts) - 1
            if await self._objects.create(self._key(number), body) is not None:
                self._learn(number, head)
                self._fence = fence
                self._recent[number] = body
                return number
            await self._look(expected_seq)
        raise stale(self.place, expected_seq, self.end.seq)

    async def put_fence(self, fence: int) -> None:
        """Take the place of the next append, without records, so that whoever believes to be its next writer is not.

        A log that has ended for its deletion, or is damaged, has none.
        """
        with suppress(Damaged):
            for _ in range(_TRIES):
                if await self.refresh():
                    return
                number, body = len(self._starts) - 1, append_bytes((), fence)
                if await self._objects.create(self._key(number), body) is not None:
                    self._learn(number, self.end)
                    self._fence = fence
                    self._recent[number] = body
                    await self.merge(number)
                    return
            raise Conflict(f"{self.place}: others write to this run: try again")

    async def take_back(self, number: int) -> None:
        """Remove an append that turned out to be none: the Job was deleted, or others are merged in its place."""
        self._starts = [EMPTY_LOG]
        self._recent.clear()
        await self._objects.remove([self._key(number)])

    async def is_merged(self, number: int) -> bool:
        """Whether the append of this number is in a merged object."""
        return await self._objects.head(self._merged_key(number // MERGED)) is not None

    async def put_end(self, expected_seq: int) -> None:
        """End the log for its deletion, if it has so many records. Raises Conflict."""
        is_ended = await self.refresh()
        if self.end.seq != expected_seq:
            raise stale(self.place, expected_seq, self.end.seq)
        if not is_ended and await self._objects.create(self._key(len(self._starts) - 1), end_bytes()) is None:
            await self.refresh()
            raise stale(self.place, expected_seq, self.end.seq)

    async def merge(self, number: int) -> None:
        """Merge the appends that end with this number, if they are complete. Nothing is missing at any moment."""
        if (number + 1) % MERGED:
            return
        numbers = range(number + 1 - MERGED, number + 1)
        with suppress(StorageError):  # they can be read one by one
            bodies = await at_once(self._body(one) for one in numbers)
            merged = None if None in bodies else merged_bytes([body for body in bodies if body is not None])
            if (
                merged is not None
                and await self._objects.create(self._merged_key(number // MERGED), merged) is not None
            ):
                await self._objects.remove([self._key(one) for one in numbers])
        self._recent.clear()

    async def redact(self, seq: int, record: bytes) -> None:
        """Put a record without content in the place of one. Raises NotFound and Conflict."""
        check_redaction(await self.read(0, None), seq, record, self.place)
        number = bisect_right([head.seq for head in self._starts], seq - 1) - 1
        index = seq - 1 - self._starts[number].seq
        merged = await self._objects.get(self._merged_key(number // MERGED))
        if merged is not None:
            appends = read_merged(merged.data)
            appends[number % MERGED] = _with_record(appends[number % MERGED], index, record)
            await self._put_in_place(self._merged_key(number // MERGED), merged_bytes(appends) or b"", merged)
        single = await self._objects.get(self._key(number))
        if single is not None:
            await self._put_in_place(self._key(number), _with_record(single.data, index, record), single)
        self._recent.clear()

    async def _put_in_place(self, key: str, data: bytes, found: Found) -> None:
        if await self._objects.replace(key, data, found.tag) is None:
            raise Conflict(f"{self.place}: {key} has changed meanwhile: try again")

    async def _look(self, expected_seq: int) -> None:
        if await self.refresh():
            raise NotFound(f"job {self.run.job_id} was deleted")
        if self.end.seq != expected_seq:
            raise stale(self.place, expected_seq, self.end.seq)

    async def _body(self, number: int) -> bytes | None:
        if number in self._recent:
            return self._recent[number]
        found = await self._objects.get(self._key(number))
        return None if found is None else found.data

    async def _walk(self, number: int) -> AsyncIterator[tuple[int, Append]]:
        """Every append from one on, with its number."""
        ahead = 1
        while True:
            many = await self._objects.get(self._merged_key(number // MERGED)) if number % MERGED == 0 else None
            if many is None:
                until = min(number + ahead, (number // MERGED + 1) * MERGED)
                found = await at_once(self._objects.get(self._key(one)) for one in range(number, until))
                there = list(takewhile(lambda one: one is not None, found))
                for one in there:
                    yield number, self._read_append(number, one.data if one is not None else b"")
                    number += 1
                if len(there) == len(found):
                    ahead = min(ahead * 2, _AHEAD)
                    continue
                many = await self._objects.get(self._merged_key(number // MERGED))
                if many is None:
                    if not any(found[len(there) :]):
                        return
                    if await self._is_missing(number):
                        raise self._damaged(number, f"append {number} is missing")
                    continue
            for append in self._read_merged(number, many.data)[number % MERGED :]:
                yield number, self._read_append(number, append)
                number += 1

    async def _block(self, block: int) -> list[bytes]:
        """The appends that are, or will be, merged into one object, as far as they are there."""
        first = block * MERGED
        many = await self._objects.get(self._merged_key(block))
        if many is None:
            found = await at_once(self._objects.get(self._key(number)) for number in range(first, first + MERGED))
            if found[0] is not None:
                return [one.data for one in takewhile(lambda one: one is not None, found) if one is not None]
            many = await self._objects.get(self._merged_key(block))
        return [] if many is None else self._read_merged(first, many.data)

    async def _last_block(self) -> int:
        """Where the log ends, found by doubling and by halves; -1 if it has not begun."""
        begun, beyond = -1, 0
        while await self._has_begun(beyond):
            begun, beyond = beyond, max(2 * beyond, 1)
        while beyond - begun > 1:
            half = (begun + beyond) // 2
            begun, beyond = (half, beyond) if await self._has_begun(half) else (begun, half)
        return begun

    async def _has_begun(self, block: int) -> bool:
        keys = (self._key(block * MERGED), self._merged_key(block))
        # it may be merged while both are asked for
        return any(await at_once(map(self._objects.head, keys))) or await self.is_merged(block * MERGED)

    async def _is_missing(self, number: int) -> bool:
        """Whether an append is not there though later ones are: it may have come while they were asked for."""
        return await self._objects.get(self._key(number)) is None and not await self.is_merged(number)

    def _learn(self, number: int, head: Head) -> None:
        if number == len(self._starts) - 1:
            self._starts.append(head)

    def _follows(self, head: Head, record: bytes) -> Head:
        try:
            return check(head, record)[1]
        except BrokenSeal as broken:
            raise self._damage_at(head.seq, str(broken)) from broken

    def _read_append(self, number: int, data: bytes) -> Append:
        try:
            return read_append(data)
        except NotAnAppend as wrong:
            raise self._damaged(number, str(wrong)) from wrong

    def _read_merged(self, number: int, data: bytes) -> list[bytes]:
        try:
            return read_merged(data)
        except NotAnAppend as wrong:
            raise self._damaged(number, str(wrong)) from wrong

    def _damaged(self, number: int, what: str) -> Damaged:
        return self._damage_at(self._starts[min(number, len(self._starts) - 1)].seq, what)

    def _damage_at(self, readable: int, what: str) -> Damaged:
        return Damaged(
            f"{self.place}, record {readable + 1}: {what}; records before it that can be read: {readable}. "
            "Put the object back from a copy",
            readable=readable,
        )

    def _key(self, number: int) -> str:
        return self._layout.append(self.run, self._incarnation, number)

    def _merged_key(self, number: int) -> str:
        return self._layout.merged(self.run, self._incarnation, number)


def _with_record(append: bytes, index: int, record: bytes) -> bytes:
    lines = append.split(b"\n")
    lines[index + 1] = record
    return b"\n".join(lines)
