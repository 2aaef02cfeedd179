"""Fixtures of the storage contract: a store, and ways to open, tear and damage it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import field
from functools import wraps
from typing import ParamSpec, TypeVar

import pytest

from perstack.core.base.chain import EMPTY_LOG, Head, SealedBatch, open_line, seal
from perstack.dataclass import dataclass
from perstack.ports.storage import RunRef, Storage

P = ParamSpec("P")
T = TypeVar("T")

SECONDS = 30.0  # maximum seconds that a test may wait

JOB = "job1"
RUN = RunRef(JOB, "job1-1")


@dataclass
class Opener:
    """A store, empty at first. Leave a hook None if the storage has no such ability: its tests are skipped."""

    open: Callable[[], Storage]  # opens a storage on this store as a new process would
    address: tuple[str, str] | None = None  # plugin module and location, for opening the store in another process
    # function that cuts a number of bytes off the end of a log, as a crash does
    tear: Callable[[RunRef, int], None] | None = None
    # function that appends raw bytes to a log, as a crash may leave them
    extend: Callable[[RunRef, bytes], None] | None = None
    damage: Callable[[RunRef, int], None] | None = None
    """Function that changes a byte in the payload of the record with that index, counted from 0."""
    shares_blobs: bool = False  # True if equal blobs of several Jobs are stored once
    expiry: float = 0  # maximum seconds for which the lease of a dead process stays held
    opened: list[Storage] = field(default_factory=list[Storage])

    def __call__(self) -> Storage:
        """Open a storage, which `close` will close."""
        storage = self.open()
        self.opened.append(storage)
        return storage

    def close(self) -> None:
        """Close all opened storages."""
        while self.opened:
            wait_for(self.opened.pop().close())


def wait_for(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end, with a timeout."""

    async def run_with_timeout() -> T:
        async with asyncio.timeout(SECONDS):
            return await work

    return asyncio.run(run_with_timeout())


def in_loop(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run an async test in a new event loop, with a timeout. For suites that need no pytest plugin."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        wait_for(test(*args, **kwargs))

    return run


def payload(text: str) -> bytes:
    """Return a JSON object that contains the text."""
    return json.dumps({"type": "test", "text": text}, ensure_ascii=False, separators=(",", ":")).encode()


def text_of(record: bytes) -> str:
    """Return the text that was passed to `payload`."""
    return str(json.loads(open_line(record).payload)["text"])


@dataclass
class Writer:
    """A writer that appends to one Run as a driver does: it tracks the head and seals records."""

    storage: Storage
    ref: RunRef = RUN
    head: Head = EMPTY_LOG
    written: list[bytes] = field(default_factory=list[bytes])

    async def append(self, *texts: str) -> list[bytes]:
        """Append these texts together and return the records."""
        return await self.append_payloads([payload(text) for text in texts])

    async def append_payloads(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Append these payloads together and return the records."""
        lines, head = seal(self.head, payloads)
        records, seq = SealedBatch(lines, self.head, head), self.head.seq
        # alternate between the two ways to append
        is_written = seq % 2 == 1 and self.storage.append_now(self.ref, seq, records)
        if not is_written:
            await self.storage.append(self.ref, seq, records)
        self.head = head
        self.written += records
        return records

    def again(self, storage: Storage) -> Writer:
        """Return a writer with this view of the log on another storage."""
        return Writer(storage, self.ref, self.head, list(self.written))


async def new_writer(storage: Storage, ref: RunRef = RUN) -> Writer:
    """Return a writer for a new Run, creating its Job if necessary."""
    if not await storage.has_job(ref.job_id):
        await storage.create_job(ref.job_id)
    return Writer(storage, ref)


# The fixtures of the storage contract.

MakeOpener = Callable[[], Opener]


class ContractBase:
    """Fixtures shared by all parts of the contract."""

    @pytest.fixture
    def make_opener(self) -> MakeOpener:
        """Return a function that makes a fresh, empty store at every call. Must be overridden."""
        raise pytest.UsageError("override the fixture `make_opener` of StorageContract")

    @pytest.fixture
    def opener(self, make_opener: MakeOpener) -> Iterator[Opener]:
        """Yield one store, and close the storages opened on it after the test."""
        opener = make_opener()
        yield opener
        opener.close()

    @pytest.fixture
    def storage(self, opener: Opener) -> Storage:
        """Return an open storage on an empty store."""
        return opener()
