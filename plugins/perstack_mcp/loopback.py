"""Where a person's browser is sent back to: an address of this machine that listens for one answer (RFC 8252)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from secrets import compare_digest
from urllib.parse import parse_qs, urlsplit

PATH = "/callback"

_LONGEST = 16_384
_PATIENCE = 10.0
"""Seconds in which a browser has to say what it wants."""

_PAGE = "<!doctype html><meta charset=utf-8><title>Perstack</title><p>{}</p>"
_DONE = "Perstack has got the answer. You may close this window."
_NOT_IT = "This is not an answer to the login that Perstack waits for."


class Loopback:
    """Listens; answers with another state than the one asked for are turned away and passed over."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[dict[str, str]]] = {}
        self.redirect_uri = ""

    @classmethod
    @asynccontextmanager
    async def listening(cls) -> AsyncGenerator[Loopback]:
        """On a free port of 127.0.0.1."""
        loopback = cls()
        server = await asyncio.start_server(loopback._serve, "127.0.0.1", 0, limit=_LONGEST)
        async with server:
            port = server.sockets[0].getsockname()[1]
            loopback.redirect_uri = f"http://127.0.0.1:{port}{PATH}"
            yield loopback

    def expect(self, state: str) -> asyncio.Future[dict[str, str]]:
        """The parameters of the answer with this state, once it comes (RFC 6749, sections 4.1.2 and 4.1.2.1)."""
        return self._waiting.setdefault(state, asyncio.get_running_loop().create_future())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text = self._take(head.decode("latin-1").partition("\r\n")[0])
                body = _PAGE.format(text).encode()
                length = f"Content-Length: {len(body)}\r\nConnection: close\r\nCache-Control: no-store"
                writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{length}\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError):
            pass
        finally:
            writer.close()

    def _take(self, line: str) -> tuple[str, str]:
        method, _, rest = line.partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        answer = {name: values[0] for name, values in parse_qs(target.query).items()}
        state = answer.get("state", "")
        found = next(
            (one for known, one in self._waiting.items() if compare_digest(known.encode(), state.encode())), None
        )
        if method != "GET" or target.path != PATH or found is None:
            return "404 Not Found", _NOT_IT
        if not found.done():
            found.set_result(answer)
        return "200 OK", _DONE
