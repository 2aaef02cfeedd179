"""Event logs: read, folded, appended to and checked in one way, whatever their events are of.

What differs from one kind to another is a `Definition`: those of tasks, series and Runs are in modules of these names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import field
from typing import Generic, Protocol, TypeVar

from perstack.core.base import Fact
from perstack.core.chain import EMPTY_LOG, BrokenSeal, Head, Sealed, open_line, seal
from perstack.dataclass import dataclass
from perstack.engine.logs.damage import BadEvent, DoesNotFollow, UnknownEvent
from perstack.engine.logs.lines import checked, readable
from perstack.errors import Damaged, NotFound, UsageError
from perstack.ports.storage import RunRef, Storage

S = TypeVar("S")
E = TypeVar("E", bound=Fact)
E_co = TypeVar("E_co", bound=Fact, covariant=True)

_PAGE = 10_000

_AT_ONCE = 500
"""Events that are folded before others have their turn."""


class Definition(Protocol[S, E]):
    """What one kind of logs is made of."""

    def name(self, ref: RunRef) -> str:
        """What a message calls the log."""
        ...

    async def event(self, ref: RunRef, seq: int, sealed: Sealed) -> E:
        """The event at a place. Raises BadEvent; UnknownEvent for one that a newer version has written."""
        ...

    async def follow(self, state: S | None, event: E, head: Head) -> S:
        """The state after one event more, with which the log ends at `head`.

        Raises ValueError, LookupError or UsageError for an event that cannot follow; NotFound and Damaged if what it
        refers to in another log cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoredLine(Generic[E_co]):
    """One event as it stands in a log."""

    head: Head
    """The end of the log, if this were the last."""
    event: E_co
    line: bytes
    """The JSON, with the digest and hash of the chain, without newline."""

    @property
    def seq(self) -> int:
        """Its place, from 1."""
        return self.head.seq


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """A state, and the end of the log that it was folded from."""

    state: S
    head: Head


@dataclass(slots=True)
class Readable(Generic[S, E]):
    """A log as far as it can be read."""

    loaded: Loaded[S] | None = None
    """None if that is not far enough for a state."""
    lines: list[StoredLine[E]] = field(default_factory=list[StoredLine[E]])
    damage: Damaged | None = None
    """What is wrong after that, if anything is."""

    def whole(self) -> Readable[S, E]:
        """The same. Raises Damaged if that is not all of it."""
        if self.damage is not None:
            raise self.damage
        return self


@dataclass(frozen=True, slots=True)
class Appended(Loaded[S]):
    """The same, after events were appended."""

    lines: list[bytes]
    """Those that were appended."""


@dataclass(slots=True)
class CheckedLog(Generic[S]):
    """What a check of one log came to."""

    lines: list[bytes]
    """As far as they can be read."""
    damage: Damaged | None
    """What is wrong after the last line, if anything is."""
    chain: dict[int, str] = field(default_factory=dict[int, str])
    """The hash at each place, as far as the chain holds."""
    wrong: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """What does not hold, and at which place."""
    unknown: list[int] = field(default_factory=list[int])
    """The places of events that this version cannot read."""
    state: S | None = None
    """The state after the last event that could follow; None if there is none."""
    misfit: Damaged | NotFound | None = None
    """Why `state` is not that of the whole log, if it is not, though the chain holds."""


class EventLog(Generic[S, E]):
    """The logs of one kind in a storage. It decides nothing."""

    def __init__(self, storage: Storage, definition: Definition[S, E]) -> None:
        self._storage = storage
        self._definition = definition

    async def events(self, ref: RunRef, *, after: int = 0, limit: int | None = None) -> AsyncGenerator[StoredLine[E]]:
        """The events after place `after`, at most `limit`; none of a log that is not there.

        Raises Damaged, after those before the damage.
        """
        seq, last = after, None if limit is None else after + limit
        while last is None or seq < last:
            size = _PAGE if last is None else min(_PAGE, last - seq)
            lines, damage = await readable(self._storage, ref, seq, size)
            for line in lines:
                sealed = open_line(line)  # the storage has checked it against the chain
                seq += 1
                yield StoredLine(Head(seq, sealed.hash), await self._definition.event(ref, seq, sealed), line)
            if damage is not None:
                raise damage
            if len(lines) < size:
                return

    async def folded(
        self, ref: RunRef, *, limit: int | None = None, since: Loaded[S] | None = None
    ) -> AsyncGenerator[tuple[StoredLine[E], S]]:
        """Each event of a log, or of what followed `since`, at most `limit`, with the state after it.

        Raises as `events` and `Definition.follow`.
        """
        state, after = (None, 0) if since is None else (since.state, since.head.seq)
        async with aclosing(self.events(ref, after=after, limit=limit)) as events:
            async for one in events:
                state = await self._after(ref, state, one.event, one.head)
                yield one, state
                if one.head.seq % _AT_ONCE == 0:  # a long log takes seconds, in which others have their turn
                    await asyncio.sleep(0)

    async def readable(self, ref: RunRef, *, limit: int | None = None) -> Readable[S, E]:
        """A log, or at most so many events of it, as far as it can be read."""
        found = Readable[S, E]()
        try:
            async for line, state in self.folded(ref, limit=limit):
                found.loaded = Loaded(state, line.head)
                found.lines.append(line)
        except Damaged as damage:
            found.damage = damage
        return found

    async def append(self, ref: RunRef, loaded: Loaded[S] | None, events: Sequence[E]) -> Appended[S]:
        """Write these events, one at least, after those that were loaded: all or nothing.

        Raises DoesNotFollow, and writes nothing, if one of them cannot follow, and Conflict if the log does not end
        there any more.
        """
        start = EMPTY_LOG if loaded is None else loaded.head
        lines, _ = seal(start, [event.to_json() for event in events])
        for seq, (event, line) in enumerate(zip(events, lines, strict=True), start.seq + 1):
            head = Head(seq, open_line(line).hash)
            loaded = Loaded(await self._after(ref, loaded.state if loaded else None, event, head), head)
        if loaded is None:
            raise ValueError("a log begins with an event")
        await self._storage.append(ref, start.seq, lines)
        return Appended(loaded.state, loaded.head, lines)

    async def check(self, ref: RunRef, observe: Callable[[StoredLine[E], Sealed, S | None], None]) -> CheckedLog[S]:
        """Check each line of a log against the chain, and each event against those before it.

        `observe` sees the events that this version can read, with the state after them as far as they can follow.
        """
        found = CheckedLog[S](*await readable(self._storage, ref))
        try:
            for sealed, head in checked(found.lines):
                found.chain[head.seq] = head.hash
                try:
                    event = await self._definition.event(ref, head.seq, sealed)
                except BadEvent as error:
                    found.misfit = found.misfit or error
                    if isinstance(error, UnknownEvent):
                        found.unknown.append(head.seq)
                    else:
                        found.wrong.append((head.seq, error.reason))
                    continue
                if found.misfit is None:
                    try:
                        found.state = await self._after(ref, found.state, event, head)
                    except (Damaged, NotFound) as error:
                        found.misfit = error
                line = StoredLine(head, event, found.lines[head.seq - 1])
                observe(line, sealed, found.state if found.misfit is None else None)
        except BrokenSeal as error:
            found.wrong.append((len(found.chain) + 1, str(error)))
        return found

    async def _after(self, ref: RunRef, state: S | None, event: E, head: Head) -> S:
        try:
            return await self._definition.follow(state, event, head)
        except NotFound:
            raise
        except (ValueError, LookupError, UsageError) as error:
            raise DoesNotFollow(ref, self._definition.name(ref), head.seq, error) from error
