"""A small HTTP server for tests of providers: sends prepared replies in chunks and records requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from types import TracebackType
from typing import Self

from perstack.dataclass import dataclass

_REPEAT_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class PreparedReply:
    """A prepared reply."""

    chunks: tuple[bytes, ...] = ()  # chunks, sent one by one with chunked transfer encoding
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    ending: str = "whole"
    """`whole`: the reply is complete; `cut`: the connection is closed before the end; `hang`: nothing more is sent;
    `beat`: the last chunk is repeated."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A recorded request."""

    method: str
    path: str
    headers: Mapping[str, str]  # headers by name in lower case
    body: bytes


def events(*data: str, names: Iterable[str] = ()) -> tuple[bytes, ...]:
    """Return each text as a server-sent event. `names` are the names of the first ones."""
    heads = [f"event: {name}\n" for name in names]
    heads += [""] * (len(data) - len(heads))
    return tuple(f"{head}data: {text}\n\n".encode() for head, text in zip(heads, data, strict=True))


class FakeEndpoint:
    """A server on a free local port, as a context manager. Sends the replies in order, or as `choose` selects."""

    def __init__(
        self, *replies: PreparedReply, choose: Callable[[ReceivedRequest], PreparedReply] | None = None
    ) -> None:
        """Prepare the replies. The server starts on entry."""
        self.replies = list(replies)
        self._choose = choose
        self.asked: list[ReceivedRequest] = []
        self.connections = 0
        self.left = asyncio.Event()  # set when a client disconnected while a reply was hanging
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:port`. Raises RuntimeError before the server is entered."""
        if self._server is None:
            raise RuntimeError("enter the FakeEndpoint first: async with FakeEndpoint(...) as endpoint")
        port: int = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    async def __aenter__(self) -> Self:
        """Start the server."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server and cancel its connections."""
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

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.asked.append(await _read(reader))
        if self._choose is not None:
            reply = self._choose(self.asked[-1])
        else:
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        lines = [f"HTTP/1.1 {reply.status} Told", "transfer-encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        for chunk in reply.chunks:
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            await writer.drain()
        while reply.ending == "beat":
            writer.write(b"%x\r\n%s\r\n" % (len(reply.chunks[-1]), reply.chunks[-1]))
            await writer.drain()
            await asyncio.sleep(_REPEAT_INTERVAL_S)
        if reply.ending == "hang":
            await reader.read()
            self.left.set()
        if reply.ending != "whole":
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _read(reader: asyncio.StreamReader) -> ReceivedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return ReceivedRequest(method, path, headers, body)
