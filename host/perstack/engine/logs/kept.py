"""What is kept beside a log, for lists: the summary of what it adds up to, and where it ended then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pydantic import ValidationError

from perstack.core.base import Fact
from perstack.core.chain import Head
from perstack.core.verification import head_in, with_head
from perstack.ports.storage import Storage


@dataclass(frozen=True)
class Kept:
    """What was kept of one log."""

    text: bytes | None
    """The summary, unparsed; None if there is none, or if it is being written."""
    floor: int = 0
    """How many events the log had, at least, as is known without the summary's head."""

    @cached_property
    def head(self) -> Head | None:
        """Where the log ended, if the summary says so."""
        return None if self.text is None else head_in(self.text)


class Keeping(Protocol):
    """A way to keep summaries."""

    @property
    def name(self) -> str:
        """What messages call the summary."""
        ...

    @property
    def shorter(self) -> str:
        """What is wrong with a log that has fewer events than were kept."""
        ...

    @property
    def anew(self) -> str:
        """What is wrong with a log that has another hash at the place that was kept."""
        ...

    async def read(self, space: Storage, of: str) -> Kept: ...

    async def before(self, space: Storage, of: str, head: Head) -> None:
        """The log is about to be appended to, after `head`."""
        ...

    async def put(self, space: Storage, of: str, summary: Fact, head: Head) -> None:
        """The log now ends at `head`."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry that a storage has of each log, so that ten thousand are listed without opening one.

    It is emptied before the log is appended to, and filled again after. So whenever a writer dies in between, a list
    has nothing of that log, and looks at it.
    """

    reads: Callable[[bytes], object]
    """Raises ValidationError for what is no summary."""
    name = "its entry"
    shorter = "its log has {found} events, and its entry tells of {had}: put it back from a copy"
    anew = "its log was written anew: its hash there is not the one that its entry tells of; put it back from a copy"

    async def read(self, space: Storage, of: str) -> Kept:
        entry = await space.entry(of)
        if entry is None:
            return Kept(None)
        seq, text = entry
        return Kept(text, seq if self._is_summary(text) else 0) if text else Kept(None, seq - 1)

    async def before(self, space: Storage, of: str, head: Head) -> None:
        await space.put_entry(of, head.seq + 1, b"", synced=True)

    async def put(self, space: Storage, of: str, summary: Fact, head: Head) -> None:
        await space.put_entry(of, head.seq, with_head(summary.to_json(), head))

    def _is_summary(self, text: bytes) -> bool:
        try:
            self.reads(text)
        except ValidationError:
            return False  # it says nothing, as if it were lost
        return True


@dataclass(frozen=True, slots=True)
class JobFile:
    """job.json."""

    name = "job.json"
    shorter = "the log has {found} events, and job.json tells of {had}: put it back from a copy"
    anew = "the log was written anew: its hash there is not the one in job.json; put it back from a copy"

    async def read(self, space: Storage, of: str) -> Kept:
        return Kept(await space.summary(of))

    async def before(self, space: Storage, of: str, head: Head) -> None: ...

    async def put(self, space: Storage, of: str, summary: Fact, head: Head) -> None:
        await space.put_summary(of, with_head(summary.to_json(), head))
