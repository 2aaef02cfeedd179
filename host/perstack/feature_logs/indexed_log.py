"""Logs with a stored summary for lists. A log that does not have the summary's head was cut or rewritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from perstack.core.base.chain import EMPTY_LOG, Head, SealedLine, head_in, read_remains, with_head
from perstack.core.base.ids import OwnerKind
from perstack.core.base.records import Record
from perstack.dataclass import dataclass
from perstack.engine.log.event_log import (
    AppendedState,
    E,
    EventLog,
    InvalidEvent,
    LoadedState,
    PartialLog,
    S,
    StoredLine,
    UnknownEvent,
)
from perstack.engine.log.storage_access import log_of, space_of
from perstack.errors import Damaged, NotFound, StorageError
from perstack.next_steps import Inspect
from perstack.ports.storage import RunRef, Storage

# Where summaries are stored: in the storage's index, or in job.json.


@dataclass(frozen=True)
class StoredSummary:
    """Stored summary of one log."""

    text: bytes | None  # the unparsed summary; None without one, or while it is being written
    min_length: int = 0  # minimum length of the log, known even without a summary

    @cached_property
    def head(self) -> Head | None:
        """The end of the log that the summary was made from; None if the summary does not name it."""
        return None if self.text is None else head_in(self.text)


class IndexEntries:
    """Summaries in the storage's index, so that ten thousand logs are listed without opening one.

    The entry is empty while its log is appended to: if the writer dies, a list reads the log.
    """

    name = "its entry"
    shortened_text = "its log has {found} events, but its entry says it had {had}: put it back from a copy"
    rewritten_text = "its log was rewritten: its hash there is not the one in its entry; put it back from a copy"

    def __init__(self, keys: frozenset[str]) -> None:
        """Accept summaries that have all of these `keys`."""
        self._keys = keys

    def is_summary(self, summary: object) -> bool:
        """Return whether the parsed JSON of an entry can be a summary."""
        return type(summary) is dict and summary.keys() >= self._keys

    async def read(self, storage: Storage, owner_id: str) -> StoredSummary:
        seq, text = await storage.entry(owner_id) or (1, b"")
        if not text:
            return StoredSummary(None, seq - 1)
        with suppress(ValueError):
            if self.is_summary(from_json(text)):
                return StoredSummary(text, seq)
        return StoredSummary(text)  # an invalid entry counts as lost

    async def before_append(self, storage: Storage, owner_id: str, head: Head) -> None:
        """Empty the entry before the log is appended to after `head`."""
        expected = (log_of(owner_id), head) if head.seq else None
        await storage.put_entry(owner_id, head.seq + 1, b"", synced=True, expected=expected)

    async def put(self, storage: Storage, owner_id: str, record: Record, head: Head) -> None:
        """Fill the entry with the summary of the log that ends at `head`."""
        await storage.put_entry(
            owner_id, head.seq, with_head(record.to_json(), head), expected=(log_of(owner_id), head)
        )


class SummaryFiles:
    """Summaries in job.json."""

    name = "job.json"
    shortened_text = "the log has {found} events, but job.json says it had {had}: put it back from a copy"
    rewritten_text = "the log was rewritten: its hash there is not the one in job.json; put it back from a copy"

    async def read(self, storage: Storage, owner_id: str) -> StoredSummary:
        return StoredSummary(await storage.summary(owner_id))

    async def before_append(self, storage: Storage, owner_id: str, head: Head) -> None:
        """Do nothing: a log of this kind needs no preparation."""

    async def put(self, storage: Storage, owner_id: str, record: Record, head: Head) -> None:
        """Store the summary of the log that ends at `head`."""
        await storage.put_summary(owner_id, with_head(record.to_json(), head))


SummaryStore = IndexEntries | SummaryFiles  # place of the summaries of one kind of logs


# Logs with a stored summary.

M = TypeVar("M", bound=Record)


@dataclass(frozen=True)
class IndexedLogFormat(Generic[S, E, M]):
    """Definition of one kind of indexed logs: the feature's functions and texts."""

    kind: OwnerKind
    title: str  # the text before an id in messages
    missing_text: str  # the text of NotFound, with `{of}` for the id and `{location}` for the storage
    list_step: Inspect  # the next step that lists all logs of the kind
    check: Callable[[str], str]  # returns the id. Raises UsageError if it is not a valid one
    parse: Callable[[bytes], E]  # returns the event of its JSON. Raises ValidationError for an event of a newer version
    owner: Callable[[E], str]  # returns the id of the owner that an event names
    apply: Callable[[S | None, E], S]
    """Returns the state after one more event. Raises ValueError, LookupError or UsageError if it cannot follow."""
    summary: Callable[[S], M]
    damaged_summary: Callable[[str, S | None, str], M]
    """Returns the summary of an unreadable log, from its id, its last readable state, and the error."""
    jobs: Callable[[S], Sequence[str]]  # returns the ids of the Jobs that the state refers to
    store: SummaryStore

    def name(self, ref: RunRef) -> str:
        return f"{self.title}{ref.job_id}"

    async def event(self, ref: RunRef, seq: int, sealed: SealedLine) -> E:
        """Parse the event at position `seq`. Raises InvalidEvent, and UnknownEvent for one of a newer version."""
        if read_remains(sealed.payload) is not None:
            raise InvalidEvent(ref, self.name(ref), seq, "its content was removed, but such logs are never redacted")
        try:
            event = self.parse(sealed.payload)
        except ValidationError as error:
            reason = "not an event that this version knows: a newer one wrote it"
            raise UnknownEvent(ref, self.name(ref), seq, reason) from error
        if self.owner(event) != ref.job_id:
            raise InvalidEvent(ref, self.name(ref), seq, "its id names another place, so it was not written here")
        return event

    async def follow(self, state: S | None, event: E, head: Head) -> S:
        """Return the state after one more event."""
        return self.apply(state, event)


class IndexedLog(Generic[S, E, M]):
    """Logs of one kind in a storage."""

    def __init__(self, storage: Storage, definition: IndexedLogFormat[S, E, M]) -> None:
        self._space = space_of(storage, definition.kind)
        self._definition = definition
        self._log = EventLog(self._space, definition)
        self.location = storage.location

    async def load(self, owner_id: str) -> LoadedState[S]:
        """Return the state of a log. Raises NotFound and Damaged."""
        loaded = (await self.read_intact(owner_id)).or_raise().loaded
        if loaded is None:
            raise self._not_found(owner_id)
        return loaded

    async def events(self, owner_id: str) -> list[E]:
        """Return the events of a log in order; none without a log of that id. Raises Damaged."""
        return [line.event for line in (await self.read_intact(owner_id)).or_raise().lines]

    async def read_intact(self, owner_id: str) -> PartialLog[S, E]:
        """Read a log up to the first damage."""
        log = await self._read_and_compare(self._definition.check(owner_id))
        if log.damage is None:
            return log
        # The log may have been deleted and created again after its summary was read.
        return await self._read_and_compare(owner_id)

    async def append(self, owner_id: str, loaded: LoadedState[S] | None, events: Sequence[E]) -> AppendedState[S]:
        """Append events, and store the new summary. Raises Conflict if the log has grown since `loaded`."""
        definition = self._definition
        await definition.store.before_append(self._space, owner_id, EMPTY_LOG if loaded is None else loaded.head)
        appended = await self._log.append(log_of(owner_id), loaded, events)
        await definition.store.put(self._space, owner_id, definition.summary(appended.state), appended.head)
        return appended

    async def summary(self, owner_id: str) -> M:
        """Return the summary of a log, computed from its events; an unreadable log's says so. Raises NotFound."""
        state: S | None = None
        try:
            log = await self.read_intact(owner_id)
            state = None if log.loaded is None else log.loaded.state
            loaded = log.or_raise().loaded
            if loaded is not None:
                return await self._summarize(owner_id, loaded)
        except StorageError as error:
            return self._definition.damaged_summary(owner_id, state, str(error))
        raise self._not_found(owner_id)

    async def _summarize(self, owner_id: str, loaded: LoadedState[S]) -> M:
        return self._definition.summary(loaded.state)

    def shortened_log_error(self, owner_id: str, events: int, expected_events: int) -> Damaged:
        """Create the error for a log that has fewer events than its stored summary says."""
        message = self._definition.store.shortened_text.format(found=events, had=expected_events)
        return Damaged(f"{self._definition.title}{owner_id}: {message}", readable=events)

    async def _read_and_compare(self, owner_id: str) -> PartialLog[S, E]:
        stored = await self._definition.store.read(self._space, owner_id)  # before the log, so that its head is there
        log = await self._log.read_intact(log_of(owner_id))
        if log.damage is None:
            log.damage = self._difference(owner_id, stored, log.lines)
        return log

    def _difference(self, owner_id: str, stored: StoredSummary, lines: Sequence[StoredLine[E]]) -> Damaged | None:
        head = stored.head
        expected = stored.min_length or (0 if head is None else head.seq)
        if len(lines) < expected:
            return self.shortened_log_error(owner_id, len(lines), expected)
        if head is None or head.seq > len(lines) or lines[head.seq - 1].head == head:
            return None
        message = self._definition.store.rewritten_text
        return Damaged(f"{self._definition.title}{owner_id}, event {head.seq}: {message}", readable=0)

    def _not_found(self, owner_id: str) -> NotFound:
        message = self._definition.missing_text.format(of=owner_id, location=self.location)
        return NotFound(message, next_steps=(self._definition.list_step,))
