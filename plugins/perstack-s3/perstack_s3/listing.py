"""Lists of Jobs: one object per Job, and an index object that combines them and saves thousands of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import groupby

from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from perstack.errors import StorageError
from perstack.ports.storage import Page, Watch
from perstack.support.storage import newest_first, place_in_jobs
from perstack_s3.layout import EntryHeader, Layout, Marker, SummaryStamp, read
from perstack_s3.objects import Listed, Objects, gather_limited

_MIN_REQUESTS_FOR_INDEX = 64  # maximum single requests of a reader; with more, it rewrites the index

_MAX_INDEX_BYTES = 64_000_000

_INDEX = TypeAdapter(dict[str, tuple[str, str]])


class ObjectCache:
    """Cached objects of one kind, by Job id. The tag shows whether an object has changed since it was read."""

    def __init__(self, objects: Objects, layout: Layout, kind: str) -> None:
        self._objects = objects
        self._layout = layout
        self._kind = kind
        self._cache: dict[str, tuple[str, bytes]] = {}
        self._has_read_index = False

    async def all(self) -> Mapping[str, bytes]:
        """Return all objects by Job id."""
        prefix = self._layout.prefix_of(self._kind)
        tags = {entry.key.removeprefix(prefix): entry.tag for entry in await self._objects.list(prefix)}
        if len(tags) > _MIN_REQUESTS_FOR_INDEX and not self._has_read_index:
            await self._read_index()
        stale = [name for name, tag in tags.items() if self._cache.get(name, ("", b""))[0] != tag]
        objects = await gather_limited(self._objects.get(prefix + name) for name in stale)
        for name, read_object in zip(stale, objects, strict=True):
            self._cache.pop(name, None)
            if read_object is not None:
                self._cache[name] = (read_object.tag, read_object.data)
        if len(stale) > _MIN_REQUESTS_FOR_INDEX:
            await self._write_index(tags)
        return {name: self._cache[name][1] for name in tags if name in self._cache}

    async def _read_index(self) -> None:
        self._has_read_index = True
        index_object = await self._objects.get(self._layout.index(self._kind))
        if index_object is None or len(index_object.data) > _MAX_INDEX_BYTES:
            return
        # the index is a cache: without it each object is requested
        with suppress(ValidationError, UnicodeError, RecursionError):
            index = _INDEX.validate_json(index_object.data)
            self._cache.update({name: (tag, text.encode("latin-1")) for name, (tag, text) in index.items()})

    async def _write_index(self, tags: Mapping[str, str]) -> None:
        index = {name: (tag, data.decode("latin-1")) for name, (tag, data) in self._cache.items() if name in tags}
        with suppress(StorageError):  # a reader without write permission requests each object again next time
            await self._objects.put(self._layout.index(self._kind), _INDEX.dump_json(index))


def add_stamp(at: int, data: bytes) -> bytes:
    """Encode a summary with its write time in nanoseconds, since the server's times are whole seconds."""
    return SummaryStamp(at=at).to_bytes() + b"\n" + data


def split_stamp(data: bytes) -> tuple[int, bytes]:
    """Decode a summary and its write time; the time is 0 if it is unreadable."""
    first, _, summary = data.partition(b"\n")
    stamp = read(SummaryStamp, first)
    return (0, data) if stamp is None else (stamp.at, summary)


def write_time_ns(written: datetime, at: int = 0) -> int:
    """Return a time in nanoseconds: the server's second, with the fraction of the writer's clock if both agree."""
    second = int(written.timestamp()) * 1_000_000_000
    fraction = min(max(at - second + 1_000_000_000, 0), 1_999_999_999) // 2 if at else 0
    return second + fraction


def entry_bytes(header: EntryHeader, entry: bytes) -> bytes:
    """Encode an index entry with its header."""
    return header.to_bytes() + b"\n" + entry


def read_entry(data: bytes) -> tuple[EntryHeader, bytes]:
    """Decode an index entry and its header; both are empty if unreadable."""
    first, _, entry = data.partition(b"\n")
    header = read(EntryHeader, first)
    return (EntryHeader(of="", seq=0), b"") if header is None else (header, entry)


class WriteOrder:
    """The order of Jobs by the server's whole seconds, and within a second by the times in the objects.

    Reads only objects of the seconds that a page covers, each once.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._write_times: dict[str, tuple[str, int]] = {}

    async def page(
        self, markers: Mapping[str, Listed], summaries: Mapping[str, Listed], limit: int, after: str | None
    ) -> Page:
        """Return a page of Jobs by their markers and existing summaries. Raises UsageError for an invalid cursor."""
        cursor = None if after is None else place_in_jobs(after)
        latest = {name: summaries.get(name, marker) for name, marker in markers.items()}
        self._write_times = {name: entry for name, entry in self._write_times.items() if name in latest}
        rows: list[tuple[int, str]] = []
        by_time = sorted(latest, key=lambda name: latest[name].written, reverse=True)
        for second, names in groupby(by_time, key=lambda name: write_time_ns(latest[name].written)):
            if cursor is not None and second > cursor[0]:
                continue
            times = await self._times_within_second({name: latest[name] for name in names}, summaries)
            rows += [item for item in times if cursor is None or item < cursor]
            if len(rows) > limit:
                break
        return newest_first(rows, limit, after)

    async def _times_within_second(
        self, latest: Mapping[str, Listed], summaries: Mapping[str, Listed]
    ) -> list[tuple[int, str]]:
        """Return the write times of Jobs of one second. If there are several, the times in their objects decide."""
        if len(latest) == 1:
            return [(write_time_ns(entry.written), name) for name, entry in latest.items()]
        unread = [name for name, entry in latest.items() if self._write_times.get(name, ("", 0))[0] != entry.tag]
        objects = await gather_limited(self._objects.get(latest[name].key) for name in unread)
        for name, read_object in zip(unread, objects, strict=True):
            time_ns = (
                0
                if read_object is None
                else split_stamp(read_object.data)[0]
                if name in summaries
                else _creation_time(read_object.data)
            )
            self._write_times[name] = (latest[name].tag, time_ns)
        return [(write_time_ns(entry.written, self._write_times[name][1]), name) for name, entry in latest.items()]


def _creation_time(data: bytes) -> int:
    marker = read(Marker, data)
    return 0 if marker is None else marker.made


# S3 sends no notifications. One small request at a time replaces reading every log.

_POLL_INTERVAL_S = 0.3  # seconds between requests of a watcher


class S3Watch(Watch):
    """Watcher of a Job by polling its summary, which is rewritten as its steps end."""

    def __init__(self, objects: Objects, key: str) -> None:
        self._objects = objects
        self._key = key
        self._tag: str | None = None

    @override
    async def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(_POLL_INTERVAL_S, remaining))
            if await self.check_for_change():
                return

    async def check_for_change(self) -> bool:
        """Return whether the summary was written since the last call."""
        try:
            entry = await self._objects.head(self._key)
        except StorageError:
            return False  # the next read of the logs reports the error
        tag = None if entry is None else entry.tag
        previous, self._tag = self._tag, tag
        return tag != previous
