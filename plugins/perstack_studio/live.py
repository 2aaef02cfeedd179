"""Follow Jobs: one reader of a Job for all its open pages, and server-sent events.

While a Job has listeners, its new events are read, and its `Feed` wakes them. Each listener then reads the log itself,
from the place up to which its page is complete. So a page that was disconnected, also by a restart of the server,
misses no event and shows none twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator
from contextlib import contextmanager, suppress

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from perstack.engine.log.storage_access import heads_in_summary
from perstack.errors import PerstackError
from perstack.host import Host

_READ_INTERVAL_S = 2.0  # seconds between two reads of a Job that nobody drives
_HEARTBEAT_INTERVAL_S = 15.0  # seconds after which a silent stream sends a comment, so that no proxy closes it
_MIN_MESSAGE_INTERVAL_S = 0.25  # minimum seconds between two messages of a stream
_MESSAGE_INTERVAL_PER_STREAM_S = 0.02  # further seconds between two messages, for each open stream
_RETRY_MS = 1_000  # milliseconds until a browser reconnects
_RETRY_AFTER_ERROR_MS = 15_000  # milliseconds until a browser reconnects after the Job could not be read
_MAX_STREAMS = 200


class Feed:
    """The version of one Job, which counts its changes, and the listeners that wait for the next one."""

    def __init__(self) -> None:
        self.version = 0
        self.listeners = 0
        self._changed = asyncio.Event()
        self._render_lock = asyncio.Lock()
        self._rendered: tuple[int, str] | None = None  # the version that was rendered last, and its text

    def notify(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, known: int) -> bool:
        """Wait for a version after `known`, at most one heartbeat interval. Return whether there is one."""
        if self.version == known:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _HEARTBEAT_INTERVAL_S)
        return self.version != known

    async def render_once(self, render: Callable[[], Awaitable[str]]) -> str:
        """Return the text of the current version, which `render` makes once for all listeners."""
        async with self._render_lock:
            if self._rendered is None or self._rendered[0] != self.version:
                version = self.version  # read before the await: an event recorded during it makes this text outdated
                self._rendered = (version, await render())
            return self._rendered[1]


class Feeds:
    """The feeds of all Jobs on open pages."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._feeds: dict[str, Feed] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    @property
    def is_closing(self) -> bool:
        """True once `close` was called: streams should end."""
        return self._closing.is_set()

    async def pause(self) -> None:
        """Wait between two messages of a stream, longer if there are more streams."""
        seconds = max(_MIN_MESSAGE_INTERVAL_S, _MESSAGE_INTERVAL_PER_STREAM_S * self._listeners)
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
        """Yield the feed of a Job. The Job's logs are read while a listener is in this context."""
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
        """Watch a Job until cancelled, and notify its feed of each new event and of the end of a drive."""
        positions: dict[str, int] = {}
        was_driven: bool | None = None
        while True:
            with suppress(PerstackError):  # the page shows the error when it is loaded again
                if not positions:
                    positions = await self._start_positions(job_id)
                async for line in self._host.jobs.watch(job_id, after=positions):
                    positions[line.event.run_id] = line.seq
                    was_driven = True
                    feed.notify()
                if was_driven is not False:
                    was_driven = False
                    feed.notify()  # the page must show that no process drives the Job, which no event records
            await asyncio.sleep(_READ_INTERVAL_S)

    async def _start_positions(self, job_id: str) -> dict[str, int]:
        """Return the positions to watch from: the ends of the logs by job.json. Later events are changes."""
        heads = heads_in_summary(await self._host.storage.summary(job_id))
        return {run_id: head.seq for run_id, head in heads}


def format_event(name: str, data: str, event_id: int | None = None) -> str:
    """Return one server-sent event (HTML standard, section 9.2)."""
    head = f"event: {name}\n" + ("" if event_id is None else f"id: {event_id}\n")
    return head + "".join(f"data: {line}\n" for line in data.split("\n")) + "\n"


class EventStream(StreamingResponse):
    """A response of server-sent events."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterable[str]) -> None:
        super().__init__(_with_retry(events), headers={"X-Accel-Buffering": "no"})

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # its response has no body, so a stream without an end must not begin
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
            return
        await super().__call__(scope, receive, send)


async def _with_retry(events: AsyncIterable[str]) -> AsyncGenerator[str]:
    yield f"retry: {_RETRY_MS}\n\n"
    try:
        async for event in events:
            yield event
    except PerstackError:  # the response has begun, so it cannot be an error page: a reload shows the error
        yield f"retry: {_RETRY_AFTER_ERROR_MS}\n\n"
