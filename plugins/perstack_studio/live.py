"""Follow Jobs: one reader of a Job for all who look at it, and server-sent events.

A `Feed` reads a Job's new events for as long as somebody listens, and wakes the listeners; each reads what it shows
from the log, after the place that its page has. So a listener that was away, or whose server was restarted, misses
nothing and sees nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator
from contextlib import contextmanager, suppress

from starlette.responses import StreamingResponse

from perstack.engine.log.storage_access import heads_in_summary
from perstack.errors import PerstackError
from perstack.host import Host

_REST_S = 2.0  # seconds between two reads of a Job that nobody drives
_BEAT_S = 15.0  # seconds after which a silent stream sends a comment, which proxies and browsers wait for
_MIN_REST_S = 0.25  # minimum seconds between two messages of a stream
_REST_PER_STREAM_S = 0.02  # seconds between two messages of a stream, for each stream there is
_RETRY_MS = 1_000  # milliseconds after which a browser connects again
_RETRY_AFTER_ERROR_MS = 15_000  # milliseconds after which it does if the Job could not be read
_MAX_STREAMS = 200


class Feed:
    """The number of changes of one Job, and who waits for the next."""

    def __init__(self) -> None:
        self.version = 0
        self.listeners = 0
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        self._made: tuple[int, str] | None = None  # what all listeners show, with the version that it was made of

    def notify(self) -> None:
        """Wake all listeners."""
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()

    async def wait(self, known: int) -> bool:
        """Wait for a version after `known`, at most for a beat; return whether there is one."""
        if self.version == known:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _BEAT_S)
        return self.version != known

    async def render_once(self, make: Callable[[], Awaitable[str]]) -> str:
        """Return what `make` returns for the current version, made once for all listeners."""
        async with self._turn:
            if self._made is None or self._made[0] != self.version:
                version = self.version  # before the first await: what is recorded meanwhile makes another one
                self._made = (version, await make())
            return self._made[1]


class Feeds:
    """The feeds of all Jobs on open pages."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._feeds: dict[str, Feed] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    @property
    def is_closing(self) -> bool:
        """True once streams end."""
        return self._closing.is_set()

    async def rest(self) -> None:
        """Wait between two messages of a stream: the longer, the more streams there are."""
        seconds = max(_MIN_REST_S, _REST_PER_STREAM_S * self._listeners)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    @property
    def _listeners(self) -> int:
        return sum(feed.listeners for feed in self._feeds.values())

    @property
    def is_full(self) -> bool:
        """True if there are as many streams as the studio serves."""
        return self._listeners >= _MAX_STREAMS

    @contextmanager
    def feed(self, job_id: str) -> Generator[Feed]:
        """Yield the feed of a Job, which is read for as long as it is used."""
        feed = self._feeds.setdefault(job_id, Feed())
        feed.listeners += 1
        if job_id not in self._readers:
            self._readers[job_id] = asyncio.create_task(self._read(job_id, feed))
        try:
            yield feed
        finally:
            feed.listeners -= 1
            if not feed.listeners:
                self._feeds.pop(job_id, None)
                self._readers.pop(job_id).cancel()

    async def close(self) -> None:
        """End all streams: a browser connects again to the next server."""
        self._closing.set()
        for feed in self._feeds.values():
            feed.notify()
        readers = [*self._readers.values()]
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    async def _read(self, job_id: str, feed: Feed) -> None:
        positions: dict[str, int] = {}
        was_driven: bool | None = None
        while True:
            with suppress(PerstackError):  # the page that is loaded says what is wrong with the Job
                if not positions:
                    positions = await self._heads(job_id)
                async for line in self._host.jobs.watch(job_id, after=positions):
                    positions[line.event.run_id] = line.seq
                    was_driven = True
                    feed.notify()
                if was_driven is not False:
                    was_driven = False
                    feed.notify()  # nobody drives it any more, which no event says
            await asyncio.sleep(_REST_S)

    async def _heads(self, job_id: str) -> dict[str, int]:
        """Return where to begin: at the ends of the logs by job.json. What it does not have yet is a change."""
        heads = heads_in_summary(await self._host.storage.summary(job_id))
        return {run_id: head.seq for run_id, head in heads}


def event_of(name: str, data: str, event_id: int | None = None) -> str:
    """Return one server-sent event (HTML standard, section 9.2)."""
    head = f"event: {name}\n" + ("" if event_id is None else f"id: {event_id}\n")
    return head + "".join(f"data: {line}\n" for line in data.split("\n")) + "\n"


class EventStream(StreamingResponse):
    """A response of server-sent events."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterable[str]) -> None:
        super().__init__(_with_retry(events), headers={"X-Accel-Buffering": "no"})


async def _with_retry(events: AsyncIterable[str]) -> AsyncGenerator[str]:
    yield f"retry: {_RETRY_MS}\n\n"
    try:
        async for event in events:
            yield event
    except PerstackError:  # the response has begun: the page that is loaded again says what is wrong
        yield f"retry: {_RETRY_AFTER_ERROR_MS}\n\n"
