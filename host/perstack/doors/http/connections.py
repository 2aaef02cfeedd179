"""What a connection may cost before anybody is known: a place of a few, and ten seconds for a whole request.

uvicorn is handed a protocol of ours around its own (`http` of its Config may be a class). The connection stands in the
state of each request, so that whoever reads the request can say that it is whole.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from dataclasses import field
from ipaddress import IPv6Address, ip_address
from typing import Any, cast

import uvicorn
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from perstack.dataclass import dataclass
from perstack.engine.notices import notice
from perstack.frontends.shared.listening import is_of_this_user

TIME_FOR_REQUEST = 10.0
"""Seconds from the first byte of a request, or from connecting, to its last."""
MOST_CONNECTIONS = 256
MOST_STRANGERS = 64
"""Connections of one address on which nobody has shown the token yet."""

_KEY = "perstack.connection"
_BETWEEN_NOTICES = 60.0
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 10\r\nContent-Length: 0\r\n\r\n"


@dataclass(slots=True)
class Census:
    """The connections that there are."""

    most: int = MOST_CONNECTIONS
    most_strangers: int = MOST_STRANGERS
    seconds: float = TIME_FOR_REQUEST
    count: int = 0
    strangers: Counter[str] = field(default_factory=Counter[str])
    _said_at: float | None = None

    def enter(self, address: str) -> bool:
        """Whether there is a place for one more of this address."""
        if self.count >= self.most or self.strangers[address] >= self.most_strangers:
            self._say()
            return False
        self.count += 1
        self.strangers[address] += 1
        return True

    def know(self, address: str) -> None:
        """One of them is no stranger any more."""
        self.strangers[address] -= 1
        if self.strangers[address] <= 0:
            del self.strangers[address]

    def _say(self) -> None:
        now = time.monotonic()
        if self._said_at is None or now - self._said_at > _BETWEEN_NOTICES:
            self._said_at = now
            notice(
                f"there are too many connections: of {self.most}, or {self.most_strangers} of one address; "
                "more are refused"
            )


class Connection(asyncio.Protocol):
    """One connection: refused if there are too many, closed if a request does not come whole in time."""

    census: Census

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._inner = H11Protocol(config, server_state, {**app_state, _KEY: self}, _loop)
        self._transport: asyncio.Transport | None = None
        self._address = ""
        self._is_in = False
        self._is_known = False
        self._is_between = False
        """Whether the next byte begins a request."""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        connection: socket.socket = transport.get_extra_info("socket")
        is_local = connection.family == socket.AF_UNIX
        self._address = "" if is_local else _network(transport.get_extra_info("peername")[0])
        if is_local and not is_of_this_user(connection):
            self._transport.abort()
        elif not self.census.enter(self._address):
            self._transport.write(_BUSY)
            self._transport.close()
        else:
            self._is_in = True
            self._inner.connection_made(self._transport)
            self._start()

    def data_received(self, data: bytes) -> None:
        if not self._is_in:
            return
        if self._is_between:
            self._is_between = False
            self._start()
        self._inner.data_received(data)

    def eof_received(self) -> None:
        if self._is_in:
            self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if not self._is_in:
            return
        self._is_in = False
        self.census.count -= 1
        if not self._is_known:
            self.census.know(self._address)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._is_in:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._is_in:
            self._inner.resume_writing()

    def knows(self) -> None:
        """Its client has shown that it may be here."""
        if not self._is_known:
            self._is_known = True
            self.census.know(self._address)

    def has_request(self) -> None:
        """A request has come whole."""
        self._stop()

    def has_answered(self) -> None:
        """The answer has been given. The next request may be here already, in part."""
        if self._is_in:
            self._is_between = True
            self._start()

    def _start(self) -> None:
        self._stop()
        self._deadline = asyncio.get_running_loop().call_later(self.census.seconds, self._give_up)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def protocol(census: Census) -> type[Connection]:
    """The class that uvicorn makes a connection of."""

    class Counted(Connection):
        pass

    Counted.census = census
    return Counted


def connection_of(scope: Scope) -> Connection | None:
    """That which a request came by; None for one that uvicorn did not bring."""
    found = scope.get("state", {}).get(_KEY)
    return found if isinstance(found, Connection) else None


def _network(host: str) -> str:
    """What is counted as one client: an IPv4 address, or the 64 bits of IPv6 that one client has."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or (int(address) >> 64))
    return str(address)
