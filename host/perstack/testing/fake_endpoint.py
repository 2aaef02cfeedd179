"""A small HTTP server for tests of providers: replies as it was told, chunk by chunk, and keeps what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from types import TracebackType
from typing import Self

from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply."""

    chunks: tuple[bytes, ...] = ()
    """Sent one by one, in HTTP's chunked coding."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    ending: str = "whole"
    """`whole`; `cut`: the connection is closed in the middle; `hang`: nothing more comes until the client leaves."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    """With lower-case names."""
    body: bytes


def events(*data: str, names: Iterable[str] = ()) -> tuple[bytes, ...]:
    """Each text as one server-sent event, with its name if there is one."""
    heads = [f"event: {name}\n" for name in names]
    heads += [""] * (len(data) - len(heads))
    return tuple(f"{head}data: {text}\n\n".encode() for head, text in zip(heads, data, strict=True))


class FakeEndpoint:
    """Serves on a free port of this machine while it is entered. Replies are given in order; the last one stays.

    `choose` gives the reply to each request in their place.
    """

    def __init__(self, *replies: Reply, choose: Callable[[Asked], Reply] | None = None) -> None:
        self.replies = list(replies)
        self._choose = choose
        self.asked: list[Asked] = []
        self.connections = 0
        self.left = asyncio.Event()
        """Set when a client closed its connection while a reply hung."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:port`."""
        if self._server is None:
            raise RuntimeError("enter the FakeEndpoint first: async with FakeEndpoint(...) as endpoint")
        port: int = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _next(self) -> Reply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; false if the connection is to be closed."""
        self.asked.append(await _read(reader))
        reply = self._next() if self._choose is None else self._choose(self.asked[-1])
        lines = [f"HTTP/1.1 {reply.status} Told", "transfer-encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        for chunk in reply.chunks:
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            await writer.drain()
        if reply.ending == "hang":
            await reader.read()
            self.left.set()
        if reply.ending != "whole":
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body)
