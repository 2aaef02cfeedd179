"""A local web server with a few pages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping


class Pages:
    """A server of bodies by path, while entered; other paths are not found."""

    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self._pages = pages
        self.url = ""

    async def __aenter__(self) -> Pages:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        body = self._pages.get(head.split()[1])
        status = "200 OK" if body is not None else "404 Not Found"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nConnection: close\r\n".encode())
        writer.write(f"Content-Length: {len(body or b'')}\r\n\r\n".encode() + (body or b""))
        await writer.drain()
        writer.close()
