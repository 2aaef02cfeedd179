"""What a storage's tests hand to the contract suite: a store, and ways to open, tear and damage it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import field
from typing import TypeVar

from perstack.core.chain import EMPTY_LOG, Head, open_line, seal
from perstack.dataclass import dataclass
from perstack.ports.storage import RunRef, Storage

T = TypeVar("T")

SECONDS = 30.0
"""How long a test waits at most."""

JOB = "job1"
RUN = RunRef(JOB, "job1-1")


@dataclass
class Opener:
    """One store, empty at first. What does not apply to a storage stays None, and its tests are skipped visibly."""

    open: Callable[[], Storage]
    """A storage as a new process would open it on this store."""
    address: tuple[str, str] | None = None
    """The module of the plugin and the location, for opening it in another process."""
    tear: Callable[[RunRef, int], None] | None = None
    """Cut so many bytes off the end of a log, as a crash does."""
    extend: Callable[[RunRef, bytes], None] | None = None
    """Add raw bytes to the end of a log, as a crash can leave them."""
    damage: Callable[[RunRef, int], None] | None = None
    """Change a byte within the payload of the record of that index (from 0)."""
    expiry: float = 0
    """For how many seconds the lease of a dead process may still hold."""
    opened: list[Storage] = field(default_factory=list[Storage])

    def __call__(self) -> Storage:
        """Open it; `close` closes all that were opened."""
        storage = self.open()
        self.opened.append(storage)
        return storage

    def close(self) -> None:
        """Close what was opened."""
        while self.opened:
            wait_for(self.opened.pop().close())


def wait_for(work: Coroutine[object, object, T]) -> T:
    """Run to the end, within a bound."""

    async def bounded() -> T:
        async with asyncio.timeout(SECONDS):
            return await work

    return asyncio.run(bounded())


def payload(text: str) -> bytes:
    """A JSON object with some text in it."""
    return json.dumps({"type": "test", "text": text}, ensure_ascii=False, separators=(",", ":")).encode()


def text_of(record: bytes) -> str:
    """The text that `payload` was given."""
    return str(json.loads(open_line(record).payload)["text"])


@dataclass
class Writer:
    """Appends to one Run as a driver does: it knows the head, and seals what it adds."""

    storage: Storage
    run: RunRef = RUN
    head: Head = EMPTY_LOG
    written: list[bytes] = field(default_factory=list[bytes])

    async def append(self, *texts: str) -> list[bytes]:
        """Append these together; returns the records."""
        return await self.append_payloads([payload(text) for text in texts])

    async def append_payloads(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Append these together; returns the records."""
        records, head = seal(self.head, payloads)
        await self.storage.append(self.run, self.head.seq, records)
        self.head = head
        self.written += records
        return records

    def again(self, storage: Storage) -> Writer:
        """The same knowledge of the log, with another storage."""
        return Writer(storage, self.run, self.head, list(self.written))


async def new_writer(storage: Storage, run: RunRef = RUN) -> Writer:
    """A writer to a new Run of a Job, which is made if need be."""
    if not await storage.has_job(run.job_id):
        await storage.create_job(run.job_id)
    return Writer(storage, run)
