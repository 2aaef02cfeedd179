"""What is one log in a space of its own, with a summary kept beside it for lists: a task, a series of iterations.

What is kept has the place in the log that it tells of, and its hash: a log that is shorter, or that has another hash
there, was cut or written anew, and is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from pydantic import ValidationError

from perstack.core.base import Fact
from perstack.core.chain import EMPTY_LOG, Head, Sealed, taken_out
from perstack.core.verification import Kind
from perstack.dataclass import dataclass
from perstack.engine.logs.damage import BadEvent, UnknownEvent
from perstack.engine.logs.kept import Keeping, Kept, log_of
from perstack.engine.logs.log import Appended, E, EventLog, Loaded, Readable, S, StoredLine
from perstack.errors import Damaged, NotFound, StorageError
from perstack.next_steps import Look
from perstack.ports.storage import RunRef, Storage

M = TypeVar("M", bound=Fact)


@dataclass(frozen=True)
class Summarized(Generic[S, E, M]):
    """What is different between them."""

    kind: Kind
    space: str
    title: str
    """What messages say before an id."""
    missing: str
    """What there is not, with `{of}` for its id and `{location}` for that of the storage."""
    listed: Look
    """Where it can be seen what there is."""
    check: Callable[[str], str]
    """The id itself. Raises UsageError if it cannot be one."""
    parse: Callable[[bytes], E]
    """The event of its JSON. Raises ValidationError for one that this version does not know."""
    after: Callable[[S | None, E], S]
    """The state after one event more. Raises ValueError, LookupError or UsageError if it cannot follow."""
    summary: Callable[[S], M]
    damaged: Callable[[str, S | None, str], M]
    """The summary of one that does not read, by its id, its state as far as it was readable, and what is wrong."""
    jobs: Callable[[S], Sequence[str]]
    """The Jobs that it names."""
    keeping: Keeping

    def name(self, ref: RunRef) -> str:
        return f"{self.title}{ref.job_id}"

    async def event(self, ref: RunRef, seq: int, sealed: Sealed) -> E:
        if taken_out(sealed.payload) is not None:
            raise BadEvent(ref, self.name(ref), seq, "its content was taken out, which is not done here")
        try:
            return self.parse(sealed.payload)
        except ValidationError as error:
            reason = "no event that this version knows: a newer one has written it"
            raise UnknownEvent(ref, self.name(ref), seq, reason) from error

    async def follow(self, state: S | None, event: E, head: Head) -> S:
        return self.after(state, event)


class SummarizedLog(Generic[S, E, M]):
    """Reads and writes the logs of one kind, and decides nothing."""

    def __init__(self, storage: Storage, definition: Summarized[S, E, M]) -> None:
        self._space = storage.space(definition.space)
        self._definition = definition
        self._log = EventLog(self._space, definition)
        self.location = storage.location

    async def load(self, of: str) -> Loaded[S]:
        """The state of one. Raises NotFound, and Damaged."""
        loaded = (await self.readable(of)).whole().loaded
        if loaded is None:
            raise self._missing(of)
        return loaded

    async def events(self, of: str) -> list[E]:
        """What happened to one, in order; nothing if there is none of that id. Raises Damaged."""
        return [line.event for line in (await self.readable(of)).whole().lines]

    async def readable(self, of: str) -> Readable[S, E]:
        """One as far as it can be read."""
        found = await self._compared(self._definition.check(of))
        if found.damage is None:
            return found
        return await self._compared(of)  # it may have been deleted and made anew between what was kept and the log

    async def append(self, of: str, loaded: Loaded[S] | None, events: Sequence[E]) -> Appended[S]:
        """Write more events, and keep the summary. Raises Conflict if the log does not end there any more."""
        definition = self._definition
        await definition.keeping.before(self._space, of, EMPTY_LOG if loaded is None else loaded.head)
        appended = await self._log.append(log_of(of), loaded, events)
        await definition.keeping.put(self._space, of, definition.summary(appended.state), appended.head)
        return appended

    async def summary(self, of: str) -> M:
        """From its log; that of one which does not read says so. Raises NotFound."""
        state: S | None = None
        try:
            found = await self.readable(of)
            state = None if found.loaded is None else found.loaded.state
            loaded = found.whole().loaded
            if loaded is not None:
                return await self._shown(of, loaded)
        except StorageError as error:
            return self._definition.damaged(of, state, str(error))
        raise self._missing(of)

    async def _shown(self, of: str, loaded: Loaded[S]) -> M:
        return self._definition.summary(loaded.state)

    def shorter(self, of: str, events: int, had: int) -> Damaged:
        """The error for a log that has fewer events than were kept."""
        words = self._definition.keeping.shorter.format(found=events, had=had)
        return Damaged(f"{self._definition.title}{of}: {words}", readable=events)

    async def _compared(self, of: str) -> Readable[S, E]:
        kept = await self._definition.keeping.read(self._space, of)  # before the log, which may only grow meanwhile
        found = await self._log.readable(log_of(of))
        if found.damage is None:
            found.damage = self._against(of, kept, found.lines)
        return found

    def _against(self, of: str, kept: Kept, lines: Sequence[StoredLine[E]]) -> Damaged | None:
        head = kept.head
        had = kept.floor or (0 if head is None else head.seq)
        if len(lines) < had:
            return self.shorter(of, len(lines), had)
        if head is None or head.seq > len(lines) or lines[head.seq - 1].head == head:
            return None
        words = self._definition.keeping.anew
        return Damaged(f"{self._definition.title}{of}, event {head.seq}: {words}", readable=0)

    def _missing(self, of: str) -> NotFound:
        words = self._definition.missing.format(of=of, location=self.location)
        return NotFound(words, next_steps=(self._definition.listed,))
