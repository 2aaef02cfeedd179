"""The proxy, as a process of its own: `python -m perstack_bubblewrap.proxying SOCKET HANDLE`.

At the handle is a file with what is listed, an entry on each line: there may be more than fits a command line.

Connections, HTTP and tunnels are proxy.py's. Here is only who may be reached: a name must be listed, is resolved here
and once, and the address that it is connected to is the one that was checked. TLS is not opened. What is refused is
told on stdout, a JSON text on each line.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from multiprocessing import active_children
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, ClassVar

from proxy import Proxy
from proxy.http.exception import HttpRequestRejected
from proxy.http.handler import HttpProtocolHandler
from proxy.http.parser import HttpParser, httpParserStates
from proxy.http.proxy import HttpProxyBasePlugin

from perstack_bubblewrap.network import LOCAL, Refused, check_address, check_named

_PATIENCE = 2
"""Seconds to try an address of this machine."""
_MOST_HEAD = 64 << 10
_MOST_BODY = 64 << 20
"""Bytes of a request that is no tunnel: the library holds it all, and looks at it again with every piece."""
_MOST_MEMORY = 1 << 30
"""Bytes of this process, which counts to no program's memory; what a program sends faster than it is taken is held."""
_MANY = 64
"""Pieces that wait to be taken."""
_TOO_LARGE = memoryview(b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")


class Bounded(HttpProtocolHandler):
    """A connection of a program, on which no request is endless."""

    _taken = 0

    def handle_data(self, data: memoryview) -> bool | None:
        """True ends the connection."""
        if data and not self.request.is_complete:
            self._taken += len(data)
            is_head = self.request.state < httpParserStates.HEADERS_COMPLETE
            if self._taken > (_MOST_HEAD if is_head else _MOST_BODY):
                self.work.queue(_TOO_LARGE)
                return True
        return super().handle_data(data)

    async def handle_events(self, readables: list[int], writables: list[int]) -> bool:
        """True ends the connection."""
        try:
            return await super().handle_events(readables, writables) or self._holds_too_much()
        except MemoryError:
            os._exit(1)  # nothing can be relied on: the next program gets another proxy

    def _holds_too_much(self) -> bool:
        """Whether this connection is to make room: the library never stops reading what nobody takes."""
        upstream = getattr(self.plugin, "upstream", None)
        waiting = max(len(self.work.buffer), 0 if upstream is None else len(upstream.buffer))
        return waiting > _MANY and _memory() > _MOST_MEMORY // 2


def _memory() -> int:
    """Bytes that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Gate(HttpProxyBasePlugin):
    """Lets through what is listed."""

    allowed: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._address: str | None = None

    def before_upstream_connection(self, request: HttpParser) -> HttpParser | None:
        """Raises HttpRequestRejected, with the reason as its body."""
        host, port = (request.host or b"").decode("ascii", "replace"), request.port or 0
        try:
            self._address = address_of(host, port, self.allowed)
        except Refused as refused:
            sys.stdout.write(json.dumps(str(refused)) + "\n")
            sys.stdout.flush()
            raise HttpRequestRejected(
                status_code=403, reason=b"Forbidden by the sandbox", body=f"perstack: {refused}\n".encode()
            ) from None
        return request

    def resolve_dns(self, host: str, port: int) -> tuple[str | None, tuple[str, int] | None]:
        """The address that was checked."""
        return self._address, None


def address_of(host: str, port: int, allowed: tuple[str, ...]) -> str:
    """Where a place is. Raises Refused if it may not be reached."""
    name = host.removeprefix("[").removesuffix("]")
    check_named(name, port, allowed)
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Refused(f"{name}:{port} cannot be resolved: {error}") from error
    addresses = [str(one[4][0]) for one in found]
    for address in addresses:
        check_address(name, port, address, allowed)
    is_own = name.casefold() == LOCAL and len(addresses) > 1
    return next((one for one in addresses if _answers(one, port)), addresses[0]) if is_own else addresses[0]


def _answers(address: str, port: int) -> bool:
    """Whether somebody listens there: a service of this machine may do so by one version of IP only."""
    try:
        socket.create_connection((address, port), _PATIENCE).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Until stdin ends, which it does with the host, or the library's own process does."""
    path, handle = sys.argv[1:]
    with os.fdopen(int(handle)) as file:
        Gate.allowed = tuple(file.read().split())  # the library makes its own objects of it
    options = ["--unix-socket-path", path, "--num-workers", "1", "--num-acceptors", "1", "--log-level", "CRITICAL"]
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    with Proxy(options, plugins=[Gate], work_klass=Bounded):
        sys.stdout.write("null\n")
        sys.stdout.flush()
        wait([sys.stdin.fileno(), *(child.sentinel for child in active_children())])
        for child in active_children():
            child.kill()


if __name__ == "__main__":
    main()
