"""The process of the proxy: `python -m perstack_bubblewrap.proxy_main SOCKET HANDLE`.

HANDLE is a descriptor of a file with the allowed entries, one per line, since they may not fit on a command line.

The library proxy.py handles connections, HTTP and tunnels; this module decides which hosts may be reached. A name must
be listed and is resolved here, once, and the connection goes to the checked address. TLS is not decrypted. Refusals are
reported on stdout, a JSON string per line.
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

from perstack_bubblewrap.network import LOCAL, PlaceRefused, check_address, check_named

_PROBE_TIMEOUT_S = 2  # seconds for a connection attempt to an address of this machine
_MAX_HEAD_BYTES = 64 << 10
_MAX_BODY_BYTES = 64 << 20
"""Maximum bytes of a request that is not a tunnel: the library buffers it and scans all of it again for every piece."""
_MAX_MEMORY_BYTES = 1 << 30
"""Memory limit of this process in bytes: it does not count for any program's limit, and buffers unread data.
"""
_MAX_BUFFERED_PIECES = 64  # buffered pieces above which memory is checked
_TOO_LARGE = memoryview(b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")


class BoundedHandler(HttpProtocolHandler):
    """Connection handler that limits the size of requests and buffers."""

    _received_bytes = 0

    def handle_data(self, data: memoryview) -> bool | None:
        """Handle received data. Return True to close the connection."""
        if data and not self.request.is_complete:
            self._received_bytes += len(data)
            is_head = self.request.state < httpParserStates.HEADERS_COMPLETE
            if self._received_bytes > (_MAX_HEAD_BYTES if is_head else _MAX_BODY_BYTES):
                self.work.queue(_TOO_LARGE)
                return True
        return super().handle_data(data)

    async def handle_events(self, readables: list[int], writables: list[int]) -> bool:
        """Handle socket events. Return True to close the connection."""
        try:
            return await super().handle_events(readables, writables) or self._must_free_memory()
        except MemoryError:
            os._exit(1)  # the state is no longer reliable; the next program gets another proxy

    def _must_free_memory(self) -> bool:
        """Return whether to close this connection to free memory: the library buffers without a limit."""
        upstream = getattr(self.plugin, "upstream", None)
        buffered = max(len(self.work.buffer), 0 if upstream is None else len(upstream.buffer))
        return buffered > _MAX_BUFFERED_PIECES and _read_memory_bytes() > _MAX_MEMORY_BYTES // 2


def _read_memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class AllowListPlugin(HttpProxyBasePlugin):
    """Proxy plugin that allows only listed addresses."""

    allowed: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._address: str | None = None

    def before_upstream_connection(self, request: HttpParser) -> HttpParser | None:
        """Resolve and check the requested host. Raises HttpRequestRejected with the reason as its body."""
        host, port = (request.host or b"").decode("ascii", "replace"), request.port or 0
        try:
            self._address = resolve_allowed(host, port, self.allowed)
        except PlaceRefused as refusal:
            sys.stdout.write(json.dumps(str(refusal)) + "\n")
            sys.stdout.flush()
            raise HttpRequestRejected(
                status_code=403, reason=b"Forbidden by the sandbox", body=f"perstack: {refusal}\n".encode()
            ) from None
        return request

    def resolve_dns(self, host: str, port: int) -> tuple[str | None, tuple[str, int] | None]:
        """Return the checked address."""
        return self._address, None


def resolve_allowed(host: str, port: int, allowed: tuple[str, ...]) -> str:
    """Resolve a host to the IP address to connect to. All its addresses must be allowed. Raises PlaceRefused.

    For localhost with several addresses, the first address that accepts connections is returned.
    """
    name = host.removeprefix("[").removesuffix("]")
    check_named(name, port, allowed)
    try:
        results = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise PlaceRefused(f"{name}:{port} cannot be resolved: {error}") from error
    addresses = [str(result[4][0]) for result in results]
    for address in addresses:
        check_address(name, port, address, allowed)
    is_own = name.casefold() == LOCAL and len(addresses) > 1
    return (
        next((address for address in addresses if _accepts_connections(address, port)), addresses[0])
        if is_own
        else addresses[0]
    )


def _accepts_connections(address: str, port: int) -> bool:
    """Return whether a service listens at this address: services on this machine may use only one IP version."""
    try:
        socket.create_connection((address, port), _PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Run until stdin closes, which happens when the host ends, or until the library's process ends."""
    path, handle = sys.argv[1:]
    with os.fdopen(int(handle)) as file:
        AllowListPlugin.allowed = tuple(file.read().split())  # a class variable: the library creates the plugin objects
    options = ["--unix-socket-path", path, "--num-workers", "1", "--num-acceptors", "1", "--log-level", "CRITICAL"]
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    with Proxy(options, plugins=[AllowListPlugin], work_klass=BoundedHandler):
        sys.stdout.write("null\n")
        sys.stdout.flush()
        wait([sys.stdin.fileno(), *(child.sentinel for child in active_children())])
        for child in active_children():
            child.kill()


if __name__ == "__main__":
    main()
