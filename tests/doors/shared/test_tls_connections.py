"""TLS of `LimitedConnection`: what never becomes TLS is counted from its first moment, closed, and counted no more."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter

import pytest
import trustme
from starlette.responses import PlainTextResponse

from perstack.doors.shared.http_connections import ConnectionLimits, ListenAddress, http_server, listen, protocol

SECONDS = 20


def context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(made)
    return made


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_a_connection_that_is_no_tls_is_counted_until_it_is_closed(data: bytes) -> None:
    limits = ConnectionLimits(seconds=0.3)

    async def main() -> None:
        connection = protocol(limits, context())
        made = asyncio.Event()

        class Watched(connection):  # type: ignore[misc, valid-type]
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                made.set()

        server = http_server(PlainTextResponse("a page"), Watched, max_head_bytes=1 << 10, shutdown_s=1)
        with listen(ListenAddress("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(data)
            await made.wait()
            assert (limits.count, limits.unauthenticated) == (1, Counter({"127.0.0.1": 1}))

            assert b"HTTP" not in await reader.read()
            writer.close()
            server.should_exit = True
            await serving
        assert (limits.count, limits.unauthenticated, connection.unauthenticated) == (0, Counter(), {})

    asyncio.run(asyncio.wait_for(main(), SECONDS))
