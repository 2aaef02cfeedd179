"""Event logs of any kind: read, fold, append and check them.

A log is a list of JSON lines, each linked to the one before by a hash. It is the only truth about a Run, a task, a
series or a schedule; the state is the fold of its events, and everything else in a storage (job.json, index entries,
checkpoint files) is a cache that can be derived again.

- `EventLog` reads, appends and checks. It decides nothing: a `LogFormat` says how events of one kind are parsed and
  folded. `RunLogFormat` in run_log.py is for Runs; a feature has its own.
- An append names the end of the log that it continues. If another process was faster, it raises Conflict and nothing is
  written; so two writers never mix, even if one does not know that it lost its lease.
- Every event is folded before it is written. An event that cannot follow is refused, because a written one would make
  the log unreadable for ever.
- Damage in the middle never hides what is before it: `readable` returns that part together with the error.

`run_session` writes the log of a Run that is being driven, `delegate_leases_and_stop_requests` says who drives it, and
`storage_access` has the spaces and caches of each kind of owner. A new kind of log needs a `LogFormat`, a line in
`storage_access.OWNER_KINDS` and a check in `audit.auditor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import field
from typing import Generic, Protocol, TypeVar

from perstack.core.base.chain import EMPTY_LOG, BrokenSeal, Head, SealedLine, choose_opener, open_line, seal
from perstack.core.base.records import Record
from perstack.dataclass import dataclass
from perstack.errors import Damaged, NotFound, UsageError
from perstack.ports.storage import RunRef, Storage
from perstack.support.storage import every_id

# Errors in single events of a log whose chain is intact.


class InvalidEvent(Damaged):
    """An event that does not belong in its place. `reason` says why, without naming the place."""

    def __init__(self, ref: RunRef, name: str, seq: int, reason: str, suffix: str = "") -> None:
        super().__init__(f"{name}, event {seq}: {reason}{suffix}", readable=seq - 1)
        self.ref = ref
        self.seq = seq
        self.reason = reason


class UnknownEvent(InvalidEvent):
    """An event that this version cannot read."""


class InvalidTransition(InvalidEvent):
    """An event that cannot follow those before it."""

    def __init__(self, ref: RunRef, name: str, seq: int, error: Exception) -> None:
        super().__init__(ref, name, seq, f"it cannot follow the events before it ({error})")


# Logs as lines, before their events are parsed.


async def read_intact(
    storage: Storage, ref: RunRef, after: int = 0, limit: int | None = None
) -> tuple[list[bytes], Damaged | None]:
    """Return the lines after place `after`, at most `limit`, up to the first damage; and the damage, or None."""
    try:
        return await storage.read(ref, after=after, limit=limit), None
    except Damaged as error:
        count = error.readable - after
        return await storage.read(ref, after=after, limit=count) if count > 0 else [], error


def unseal_lines(lines: Sequence[bytes]) -> Iterator[tuple[SealedLine, Head]]:
    """Yield each line of a whole log, unsealed, with the head after it. Raises BrokenSeal at the first invalid one."""
    head, open_next = EMPTY_LOG, choose_opener(lines)
    for line in lines:
        sealed, head = open_next(head, line)
        yield sealed, head


async def add_payload(storage: Storage, ref: RunRef, payload: bytes) -> None:
    """Append a line that is not an event, so it changes no state. Raises Conflict if another process appended first."""
    lines = await storage.read(ref)
    head = Head(len(lines), open_line(lines[-1]).hash) if lines else EMPTY_LOG
    await storage.append(ref, head.seq, seal(head, [payload])[0])


async def job_ids(storage: Storage) -> list[str]:
    """Return the ids of all Jobs of a storage, or of all owners of a space, the one written to last first."""
    return await every_id(lambda after: storage.jobs(limit=1000, after=after))


async def run_ids(storage: Storage, job_id: str) -> list[str]:
    """Return the ids of all Runs of a Job that have a log, by their number. Raises NotFound."""
    return await every_id(lambda after: storage.runs(job_id, after=after))


S = TypeVar("S")
E = TypeVar("E", bound=Record)
E_co = TypeVar("E_co", bound=Record, covariant=True)

_EVENTS_PER_READ = 10_000

EVENTS_PER_TURN = 500  # events that are folded before other tasks of the event loop run


class LogFormat(Protocol[S, E]):
    """Rules of one kind of log: how its events are parsed and folded."""

    def name(self, ref: RunRef) -> str:
        """Return the name of the log in messages."""
        ...

    async def event(self, ref: RunRef, seq: int, sealed: SealedLine) -> E:
        """Parse the event at a place. Raises InvalidEvent, and UnknownEvent for one of a newer version."""
        ...

    async def follow(self, state: S | None, event: E, head: Head, /) -> S:
        """Return the state after one more event; `head` is the end of the log with it.

        Raises ValueError, LookupError or UsageError for an event that cannot follow; NotFound and Damaged if an event
        that it refers to in another log cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoredLine(Generic[E_co]):
    """An event as stored in a log."""

    head: Head  # the end of the log if this line is its last
    event: E_co
    line: bytes  # the JSON, with the digest and hash of the chain, without newline

    @property
    def seq(self) -> int:
        """The event's place, from 1."""
        return self.head.seq


@dataclass(frozen=True, slots=True)
class LoadedState(Generic[S]):
    """A state, and the end of the log that it was folded from."""

    state: S
    head: Head


@dataclass(slots=True)
class PartialLog(Generic[S, E]):
    """The readable part of a log."""

    loaded: LoadedState[S] | None = None  # the last state that could be folded; None without any
    lines: list[StoredLine[E]] = field(default_factory=list[StoredLine[E]])
    damage: Damaged | None = None  # the damage after the last line; None without any

    def or_raise(self) -> PartialLog[S, E]:
        """Return this log. Raises Damaged if a part of it could not be read."""
        if self.damage is not None:
            raise self.damage
        return self


@dataclass(frozen=True, slots=True)
class AppendedState(LoadedState[S]):
    """A state after events were appended."""

    lines: list[bytes]  # the appended lines


@dataclass(slots=True)
class CheckedLog(Generic[S]):
    """Result of checking one log."""

    lines: list[bytes]  # the lines up to the first damage
    damage: Damaged | None  # the damage after the last line; None without any
    chain: dict[int, str] = field(default_factory=dict[int, str])  # the hash at each place, as far as the chain holds
    wrong: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """The place and reason of each violation."""
    unknown: list[int] = field(default_factory=list[int])  # the places of events that this version cannot read
    state: S | None = None  # the state after the last event that could follow; None without one
    first_invalid: Damaged | NotFound | None = None
    """First event that could not be folded although the chain holds; None if `state` includes the whole log."""


class EventLog(Generic[S, E]):
    """All logs of one kind in a storage."""

    def __init__(self, storage: Storage, log_format: LogFormat[S, E]) -> None:
        self._storage = storage
        self._format = log_format

    async def events(self, ref: RunRef, *, after: int = 0, limit: int | None = None) -> AsyncGenerator[StoredLine[E]]:
        """Yield the events after place `after`; none without a log. Raises Damaged after the intact events."""
        seq, last = after, None if limit is None else after + limit
        while last is None or seq < last:
            size = _EVENTS_PER_READ if last is None else min(_EVENTS_PER_READ, last - seq)
            lines, damage = await read_intact(self._storage, ref, seq, size)
            for line in lines:
                sealed = open_line(line)  # the storage has checked it against the chain
                seq += 1
                yield StoredLine(Head(seq, sealed.hash), await self._format.event(ref, seq, sealed), line)
            if damage is not None:
                raise damage
            if len(lines) < size:
                return

    async def fold(
        self, ref: RunRef, *, limit: int | None = None, since: LoadedState[S] | None = None
    ) -> AsyncGenerator[tuple[StoredLine[E], S]]:
        """Yield each event after `since` with its state. Raises what `events` and `LogFormat.follow` raise."""
        state, after = (None, 0) if since is None else (since.state, since.head.seq)
        async with aclosing(self.events(ref, after=after, limit=limit)) as events:
            async for line in events:
                state = await self._follow(ref, state, line.event, line.head)
                yield line, state
                if line.head.seq % EVENTS_PER_TURN == 0:  # a long log takes seconds: let other tasks run
                    await asyncio.sleep(0)

    async def read_intact(self, ref: RunRef) -> PartialLog[S, E]:
        """Read a log up to the first damage."""
        partial = PartialLog[S, E]()
        try:
            async for line, state in self.fold(ref):
                partial.loaded = LoadedState(state, line.head)
                partial.lines.append(line)
        except Damaged as damage:
            partial.damage = damage
        return partial

    async def append(self, ref: RunRef, loaded: LoadedState[S] | None, events: Sequence[E]) -> AppendedState[S]:
        """Append at least one event after the loaded state, all or nothing.

        Raises InvalidTransition if one of them cannot follow, and Conflict if the log has grown since `loaded`.
        """
        start_head = EMPTY_LOG if loaded is None else loaded.head
        lines, _ = seal(start_head, [event.to_json() for event in events])
        for seq, (event, line) in enumerate(zip(events, lines, strict=True), start_head.seq + 1):
            head = Head(seq, open_line(line).hash)
            loaded = LoadedState(await self._follow(ref, loaded.state if loaded else None, event, head), head)
        if loaded is None:
            raise ValueError("a log begins with an event")
        await self._storage.append(ref, start_head.seq, lines)
        return AppendedState(loaded.state, loaded.head, lines)

    async def check(self, ref: RunRef, observe: Callable[[StoredLine[E], SealedLine, S | None], None]) -> CheckedLog[S]:
        """Check each line of a log against the chain, and each event against those before it.

        `observe` gets each event that can be read, and the state after it; None once an event did not follow.
        """
        result = CheckedLog[S](*await read_intact(self._storage, ref))
        try:
            for sealed, head in unseal_lines(result.lines):
                result.chain[head.seq] = head.hash
                try:
                    event = await self._format.event(ref, head.seq, sealed)
                except InvalidEvent as error:
                    result.first_invalid = result.first_invalid or error
                    if isinstance(error, UnknownEvent):
                        result.unknown.append(head.seq)
                    else:
                        result.wrong.append((head.seq, error.reason))
                    continue
                if result.first_invalid is None:
                    try:
                        result.state = await self._follow(ref, result.state, event, head)
                    except (Damaged, NotFound) as error:
                        result.first_invalid = error
                if head.seq % EVENTS_PER_TURN == 0:  # a long log takes seconds: let other tasks run
                    await asyncio.sleep(0)
                line = StoredLine(head, event, result.lines[head.seq - 1])
                observe(line, sealed, result.state if result.first_invalid is None else None)
        except BrokenSeal as error:
            result.wrong.append((len(result.chain) + 1, str(error)))
        return result

    async def _follow(self, ref: RunRef, state: S | None, event: E, head: Head) -> S:
        try:
            return await self._format.follow(state, event, head)
        except NotFound:
            raise
        except (ValueError, LookupError, UsageError) as error:
            raise InvalidTransition(ref, self._format.name(ref), head.seq, error) from error
