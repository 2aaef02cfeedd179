"""What is kept beside a log, for lists: the summary of what it adds up to, and where it ended then."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from perstack.core.base import Fact
from perstack.core.chain import Head
from perstack.core.ids import run_id_of
from perstack.core.job import JobSummary
from perstack.core.verification import head_in, with_head
from perstack.dataclass import dataclass
from perstack.ports.storage import RunRef, Storage

M = TypeVar("M", bound=Fact)


def log_of(of: str) -> RunRef:
    """The one log of a task or a series."""
    return RunRef(of, run_id_of(of, 1))


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


class Entry:
    """The entry that a storage has of each log, so that ten thousand are listed without opening one.

    It is emptied before the log is appended to, and filled again after. So whenever a writer dies in between, a list
    has nothing of that log, and looks at it.
    """

    name = "its entry"
    shorter = "its log has {found} events, and its entry names {had}: put it back from a copy"
    anew = "its log was rewritten: its hash there is not the one in its entry; put it back from a copy"

    def __init__(self, keys: frozenset[str]) -> None:
        """`keys` are what every summary has."""
        self._keys = keys

    def reads(self, summary: object) -> bool:
        """Whether what stands in an entry, as JSON has it, can be its summary."""
        return type(summary) is dict and summary.keys() >= self._keys

    async def read(self, space: Storage, of: str) -> Kept:
        """What was kept of one."""
        seq, text = await space.entry(of) or (1, b"")
        if not text:
            return Kept(None, seq - 1)
        with suppress(ValueError):
            if self.reads(from_json(text)):
                return Kept(text, seq)
        return Kept(text)  # it says nothing, as if it were lost

    async def before(self, space: Storage, of: str, head: Head) -> None:
        """The log is about to be appended to, after `head`."""
        expected = (log_of(of), head) if head.seq else None
        await space.put_entry(of, head.seq + 1, b"", synced=True, expected=expected)

    async def put(self, space: Storage, of: str, summary: Fact, head: Head) -> None:
        """The log ends at `head` now, and adds up to this."""
        await space.put_entry(of, head.seq, with_head(summary.to_json(), head), expected=(log_of(of), head))


class JobFile:
    """job.json."""

    name = "job.json"
    shorter = "the log has {found} events, and job.json names {had}: put it back from a copy"
    anew = "the log was rewritten: its hash there is not the one in job.json; put it back from a copy"

    async def read(self, space: Storage, of: str) -> Kept:
        return Kept(await space.summary(of))

    async def before(self, space: Storage, of: str, head: Head) -> None: ...

    async def put(self, space: Storage, of: str, summary: Fact, head: Head) -> None:
        await space.put_summary(of, with_head(summary.to_json(), head))


Keeping = Entry | JobFile
"""What tasks and series do."""


async def summary_kept(space: Storage, of: str, model: type[M]) -> M | None:
    """What job.json says; None if there is none, or it does not read. Raises StorageError."""
    kept = await space.summary(of)
    with suppress(ValidationError):
        return None if kept is None else model.model_validate_json(kept)
    return None


def heads_kept(summary: bytes | None) -> list[tuple[str, Head]]:
    """The ends of a Job's logs that job.json keeps."""
    with suppress(ValidationError):
        runs = () if summary is None else JobSummary.model_validate_json(summary).runs
        return [(run.id, Head(run.head_seq, run.head_hash)) for run in runs if run.head_seq]
    return []
