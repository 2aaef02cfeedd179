"""The proxy, as a process of its own: `python -m perstack_bubblewrap.proxying SOCKET HANDLE`.

At the handle is a file with what is listed, an entry on each line: there may be more than fits a command line.

Connections, HTTP and tunnels are proxy.py's. Here is only who may be reached: a name must be listed, is resolved here
and once, and the address that it is connected to is the one that was checked. TLS is not opened. What is refused is
told on stdout, a JSON text on each line.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from typing import Any, ClassVar

from proxy import Proxy
from proxy.http.exception import HttpRequestRejected
from proxy.http.parser import HttpParser
from proxy.http.proxy import HttpProxyBasePlugin

from perstack_bubblewrap.network import LOCAL, Refused, check_address, check_named

_PATIENCE = 2
"""Seconds to try an address of this machine."""


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
    """Until stdin ends, which it does with the host."""
    path, handle = sys.argv[1:]
    with os.fdopen(int(handle)) as file:
        Gate.allowed = tuple(file.read().split())  # the library makes its own objects of it
    options = ["--unix-socket-path", path, "--num-workers", "1", "--num-acceptors", "1", "--log-level", "CRITICAL"]
    with Proxy(options, plugins=[Gate]):
        sys.stdout.write("null\n")
        sys.stdout.flush()
        threading.Thread(target=sys.stdin.read, daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
