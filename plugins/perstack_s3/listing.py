"""What lists are made of: an object for each Job, and all of them in one, which spares asking for thousands."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from perstack.errors import StorageError
from perstack_s3.layout import Layout
from perstack_s3.objects import Objects, at_once
from perstack_s3.stored import EntryHeader, Stamp, read

_WORTH_KEEPING = 64
"""So many objects that had to be asked for one by one make a reader write the index anew."""

_LARGEST_INDEX = 64_000_000

_INDEX = TypeAdapter(dict[str, tuple[str, str]])


class Indexed:
    """The objects of one kind. A tag tells whether one has changed since it was read."""

    def __init__(self, objects: Objects, layout: Layout, kind: str) -> None:
        self._objects = objects
        self._layout = layout
        self._kind = kind
        self._known: dict[str, tuple[str, bytes]] = {}
        self._has_read_index = False

    async def all(self) -> Mapping[str, bytes]:
        """Every object there is, by Job."""
        prefix = self._layout.below(self._kind)
        tags = {listed.key.removeprefix(prefix): listed.tag for listed in await self._objects.list(prefix)}
        if len(tags) > _WORTH_KEEPING and not self._has_read_index:
            await self._read_index()
        stale = [name for name, tag in tags.items() if self._known.get(name, ("", b""))[0] != tag]
        found = await at_once(self._objects.get(prefix + name) for name in stale)
        for name, one in zip(stale, found, strict=True):
            self._known.pop(name, None)
            if one is not None:
                self._known[name] = (one.tag, one.data)
        if len(stale) > _WORTH_KEEPING:
            await self._write_index(tags)
        return {name: self._known[name][1] for name in tags if name in self._known}

    async def _read_index(self) -> None:
        self._has_read_index = True
        found = await self._objects.get(self._layout.index(self._kind))
        if found is None or len(found.data) > _LARGEST_INDEX:
            return
        with suppress(ValidationError, UnicodeError, RecursionError):  # a cache: without it all are asked for
            index = _INDEX.validate_json(found.data)
            self._known.update({name: (tag, text.encode("latin-1")) for name, (tag, text) in index.items()})

    async def _write_index(self, tags: Mapping[str, str]) -> None:
        index = {name: (tag, data.decode("latin-1")) for name, (tag, data) in self._known.items() if name in tags}
        with suppress(StorageError):  # whoever may only read asks for each next time, too
            await self._objects.put(self._layout.index(self._kind), _INDEX.dump_json(index))


def stamped(at: int, data: bytes) -> bytes:
    """A summary with the time of its writing, in nanoseconds: the server's times are whole seconds."""
    return Stamp(at=at).to_bytes() + b"\n" + data


def unstamped(data: bytes) -> tuple[int, bytes]:
    """The time, or 0 if it is not legible, and the summary."""
    first, _, summary = data.partition(b"\n")
    stamp = read(Stamp, first)
    return (0, data) if stamp is None else (stamp.at, summary)


def place_in_time(written: datetime, at: int = 0) -> int:
    """Nanoseconds by the server's clock; within a second by the writer's, as far as the two agree."""
    second = int(written.timestamp()) * 1_000_000_000
    within = min(max(at - second + 1_000_000_000, 0), 1_999_999_999) // 2 if at else 0
    return second + within


def entry_bytes(header: EntryHeader, entry: bytes) -> bytes:
    """An entry, with what it is of."""
    return header.to_bytes() + b"\n" + entry


def read_entry(data: bytes) -> tuple[EntryHeader, bytes]:
    """What an entry is of, and the entry; of nothing, if that is not legible."""
    first, _, entry = data.partition(b"\n")
    header = read(EntryHeader, first)
    return (EntryHeader(of="", seq=0), b"") if header is None else (header, entry)
