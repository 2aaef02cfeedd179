"""Listening sockets, the uvicorn server, and limits for connections that are not authenticated.

The limits are the number of connections, and ten seconds for a complete request. uvicorn gets a protocol class that
wraps its own (`http` of its Config may be a class) and, given a context, speaks TLS. The connection is put into the
state of each request, so that the reader of the request can report when it is complete.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import field
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Scope
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from perstack.dataclass import dataclass
from perstack.doors.shared.signals import handle_stop_signals
from perstack.errors import Conflict, DispatcherError, NeedsPerson, NotAllowed, NotFound, PerstackError, UsageError
from perstack.system.user import notice

# Listening sockets: an address, or a Unix socket for this user.

_UNIX = "unix:"
_BACKLOG = 128  # connections that the system queues until they are accepted


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address to listen on."""

    host: str
    port: int  # 0 for any free port
    socket_path: Path | None = None  # a Unix socket, instead of host and port

    @classmethod
    def parse(cls, text: str, *, allows_socket: bool = True) -> ListenAddress:
        """Return the address for `HOST:PORT`, `[::1]:PORT`, `PORT` on loopback, or `unix:PATH`. Raises UsageError.

        `allows_socket` only changes the message for malformed text.
        """
        if text.startswith(_UNIX):
            if sys.platform != "linux":
                raise UsageError(f"--http {text}: only Linux reports which user connects to a socket: write HOST:PORT")
            return cls("localhost", 0, Path(text.removeprefix(_UNIX)).absolute())
        host, separator, port = text.rpartition(":")
        is_number = port.isascii() and port.isdigit() and len(port) <= 5
        if not is_number or int(port) > 65535 or (separator and not host):
            alternative = ", or unix:PATH" if allows_socket else ""
            raise UsageError(f"--http {text}: write HOST:PORT, such as 127.0.0.1:8765{alternative}")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_everywhere(self) -> bool:
        """True if it means all addresses of the machine."""
        try:
            return ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def url(self, path: str, name: str | None = None, port: int | None = None, *, scheme: str = "http") -> str:
        """Return the URL for clients. `port` is the port that the system chose, if any free port was requested."""
        host = name or self.host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port or self.port}{path}"


@contextmanager
def listen(address: ListenAddress, busy_remedy: str = "name another port") -> Generator[socket.socket]:
    """Yield a listening socket. Raises UsageError, which says what to do if another program has the port."""
    path = address.socket_path
    with _listen_unix(path) if path is not None else _listen_tcp(address, busy_remedy) as listener:
        yield listener


def place_of(address: ListenAddress, listener: socket.socket, path: str) -> str:
    """Return the address that clients connect to, for display."""
    if address.socket_path is not None:
        return f"{_UNIX}{address.socket_path}"
    return address.url(path, port=listener.getsockname()[1])


def _is_of_this_user(connection: socket.socket) -> bool:
    if sys.platform != "linux":
        return False
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return bool(uid == os.geteuid())


def _listen_tcp(address: ListenAddress, busy_remedy: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listener = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
        # connections inherit it. asyncio sets it only for sockets that name their protocol, which this one does not,
        # and each response would wait 40 ms for the client's acknowledgement of its head
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except socket.gaierror as error:
        raise UsageError(
            f"--http {address.host}:{address.port}: no such name: write an address of this machine"
        ) from error
    except OSError as error:
        problem = {
            errno.EADDRINUSE: f"another program listens there: {busy_remedy}",
            errno.EADDRNOTAVAIL: "this machine does not have the address: name one of its own, such as 127.0.0.1",
            errno.EACCES: "only root may listen there: name a port from 1024",
        }.get(error.errno or 0, error.strerror or str(error))
        raise UsageError(f"--http {address.host}:{address.port}: {problem}") from error
    return listener


@contextmanager
def _listen_unix(path: Path) -> Generator[socket.socket]:
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        try:
            _remove_stale_socket(path)
            previous_umask = os.umask(0o177)
            try:
                listener.bind(str(path))
            finally:
                os.umask(previous_umask)
            listener.listen(_BACKLOG)
            info = path.stat()
        except OSError as error:
            raise UsageError(f"--http {_UNIX}{path}: {error.strerror or error}") from error
        try:
            yield listener
        finally:
            with suppress(OSError):
                # keep a socket that another server has created in its place
                if os.path.samestat(info, path.stat()):
                    path.unlink()


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of a server that has ended. Raises OSError, and UsageError for anything else at the path."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(info.st_mode) or info.st_uid != os.geteuid():
        raise UsageError(f"--http {_UNIX}{path}: the path exists and is not a socket of this user: name another path")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise UsageError(f"--http {_UNIX}{path}: another server listens there: name another path")


# uvicorn for public servers.


class StrictProtocol(H11Protocol):
    """H11Protocol that can also refuse a request whose body turns out to be malformed."""

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request and close the connection.

        If its header was valid, the application already has the request and must learn that the client is gone: h11
        raises for a second response, and uvicorn would log a traceback for each such request.
        """
        cycle = self.cycle
        # None before the first request, although uvicorn does not declare that
        if cycle is not None and not cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # a response has begun, so no other can be sent
            self.transport.close()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to the command, which ends Jobs in order before the server stops."""
        yield


def http_server(
    app: ASGIApp,
    http: type[asyncio.Protocol],
    *,
    max_head_bytes: int,
    shutdown_s: int,
    max_connections: int | None = None,
) -> uvicorn.Server:
    """Return a server that handles no signals and logs no errors of unknown clients."""
    return _Server(
        uvicorn.Config(
            app,
            http=http,
            ws="none",
            h11_max_incomplete_event_size=max_head_bytes,
            limit_concurrency=max_connections,
            log_level="error",
            access_log=False,
            use_colors=False,  # by default it asks stdout, which may be closed
            timeout_graceful_shutdown=shutdown_s,
        )
    )


@contextmanager
def stopped_by_signals(server: uvicorn.Server, finish: Callable[[], Awaitable[None]]) -> Generator[None]:
    """Await `finish` at the first stop signal, then end the server; end it at once at the second."""
    stopping: list[asyncio.Task[None]] = []

    async def stop() -> None:
        await finish()
        server.should_exit = True

    def stop_gently() -> None:
        stopping.append(asyncio.create_task(stop()))

    def again() -> None:
        server.force_exit = True

    with handle_stop_signals(stop_gently, again):
        yield


def http_status(error: PerstackError) -> int:
    """Return the status of a response to a request that failed with this error."""
    match error:
        case NotAllowed() | Conflict():
            return 409
        case NotFound():
            return 404
        case NeedsPerson():
            return 403
        case UsageError():
            return 400
        case DispatcherError():
            return 503
        case _:
            return 500


# Limits for connections, above all for unauthenticated ones.

REQUEST_TIME_S = 10.0  # seconds from the first byte of a request, or from connecting, to its last byte
_TLS_GOODBYE_S = 1.0  # maximum seconds for a client to confirm the end of a TLS connection
MAX_CONNECTIONS = 256
MAX_UNAUTHENTICATED = 64  # maximum connections of one address that have not shown the token

_KEY = "perstack.connection"
_NOTICE_INTERVAL_S = 60.0
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 10\r\nContent-Length: 0\r\n\r\n"


@dataclass(slots=True)
class ConnectionLimits:
    """The open connections, counted in total and, while not authenticated, by address."""

    max_connections: int = MAX_CONNECTIONS
    max_unauthenticated: int = MAX_UNAUTHENTICATED
    seconds: float = REQUEST_TIME_S
    # True: a new connection closes the oldest unauthenticated one instead of being refused. Otherwise another user of
    # the machine, who holds as many as are allowed, keeps out the browser, whose cookie comes with its first request.
    replaces_oldest: bool = False
    count: int = 0
    unauthenticated: Counter[str] = field(default_factory=Counter[str])
    _reported_at: float | None = None

    def admit(self, address: str) -> bool:
        """Count a new connection and return True, or return False if a limit is reached."""
        if self.is_full or self.is_full_for(address):
            self._report_refusal()
            return False
        self.count += 1
        self.unauthenticated[address] += 1
        return True

    @property
    def is_full(self) -> bool:
        """True if there are as many connections as may be."""
        return self.count >= self.max_connections

    def is_full_for(self, address: str) -> bool:
        """Return whether an address has as many unauthenticated connections as it may have."""
        return self.unauthenticated[address] >= self.max_unauthenticated

    def release(self, address: str) -> None:
        """Stop counting a connection of the address as not authenticated: it is authenticated or closed."""
        self.unauthenticated[address] -= 1
        if self.unauthenticated[address] <= 0:
            del self.unauthenticated[address]

    def _report_refusal(self) -> None:
        now = time.monotonic()
        if self._reported_at is None or now - self._reported_at > _NOTICE_INTERVAL_S:
            self._reported_at = now
            notice(
                f"too many connections: new ones are refused above {self.max_connections} in total, or"
                f" {self.max_unauthenticated} without authentication from one address"
            )


class LimitedConnection(asyncio.Protocol):
    """One connection: refused beyond the limits, closed if a request is not complete in time.

    With TLS, the handshake is made here, not by the loop's server: that reports a connection only after the handshake,
    so any number that never finish one would be neither counted nor closed. The deadline includes the handshake.
    """

    connection_limits: ConnectionLimits
    tls: ssl.SSLContext | None = None
    unauthenticated: dict[LimitedConnection, None]  # all open ones, the oldest first

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Wrap uvicorn's protocol and put this connection into its application state."""
        self._inner = StrictProtocol(config, server_state, {**app_state, _KEY: self}, _loop)
        self._transport: asyncio.Transport | None = None
        self._address = ""
        self._is_in = False
        self._is_open = False  # True when uvicorn's protocol has the connection: at once, or after the handshake
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""  # data that arrives between the end of the handshake and `_open`
        self._is_authenticated = False
        self._is_between = False  # True if the next byte begins a request
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, refuse it with 503, or abort it if another user opened it."""
        self._transport = cast("asyncio.Transport", transport)
        connection: socket.socket = transport.get_extra_info("socket")
        is_local = connection.family == socket.AF_UNIX
        self._address = "" if is_local else _client_key(transport.get_extra_info("peername")[0])
        if is_local and not _is_of_this_user(connection):
            self._transport.abort()
            return
        if self.connection_limits.replaces_oldest:
            self._make_room()
        if not self.connection_limits.admit(self._address):
            if self.tls is None:
                self._transport.write(_BUSY)
            self._transport.close()
            return
        self._is_in = True
        self.unauthenticated[self] = None
        self._start()
        if self.tls is None:
            self._open(self._transport)
        else:
            self._handshake = asyncio.create_task(self._shake_hands(self._transport, self.tls))

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Continue with TLS; stop counting the connection if the client does not."""
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self.connection_limits.seconds,
                ssl_shutdown_timeout=_TLS_GOODBYE_S,
            )
        except OSError as error:  # no TLS, an older version, a client that does not trust the certificate, or no answer
            self._leave(error)
            return
        # None if the connection was aborted meanwhile, such as by its deadline
        if encrypted is None or not self._is_in:
            self._leave()
            return
        self._transport = encrypted
        self._open(encrypted)
        if self._early:
            self._inner.data_received(self._early)
            self._early = b""

    def _open(self, transport: asyncio.Transport) -> None:
        self._is_open = True
        self._inner.connection_made(transport)

    def _make_room(self) -> None:
        """Close the oldest unauthenticated connection if a limit is reached: one of the same address, or of any."""
        limits, address = self.connection_limits, self._address
        if limits.is_full_for(address):
            oldest = next((other for other in self.unauthenticated if other._address == address), None)
        else:
            oldest = next(iter(self.unauthenticated), None) if limits.is_full else None
        if oldest is not None:
            oldest._leave()  # at once: the loop reports a lost connection only after this one was admitted or refused
            oldest._give_up()

    def _leave(self, exc: Exception | None = None) -> None:
        """Stop counting this connection, and passing its data on."""
        self._stop()
        if not self._is_in:
            return
        self._is_in = False
        self.connection_limits.count -= 1
        if not self._is_authenticated:
            self._release()
        if self._is_open:
            self._inner.connection_lost(exc)

    def _release(self) -> None:
        self.connection_limits.release(self._address)
        del self.unauthenticated[self]

    def data_received(self, data: bytes) -> None:
        """Pass data on; the first byte of a request starts its deadline."""
        if not self._is_in:
            return
        if self._is_between:
            self._is_between = False
            self._start()
        if self._is_open:
            self._inner.data_received(data)
        else:
            self._early += data

    @override
    def eof_received(self) -> None:
        if self._is_in and self._is_open:
            self._inner.eof_received()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._leave(exc)

    @override
    def pause_writing(self) -> None:
        if self._is_in and self._is_open:
            self._inner.pause_writing()

    @override
    def resume_writing(self) -> None:
        if self._is_in and self._is_open:
            self._inner.resume_writing()

    def set_authenticated(self) -> None:
        """Record that the client is authenticated."""
        if self._is_in and not self._is_authenticated:
            self._is_authenticated = True
            self._release()

    def stop_deadline(self) -> None:
        """Stop the deadline, when a request is complete."""
        self._stop()

    def restart_deadline(self) -> None:
        """Restart the deadline after a response: the next request may have begun to arrive."""
        if self._is_in:
            self._is_between = True
            self._start()

    def _start(self) -> None:
        self._stop()
        self._deadline = asyncio.get_running_loop().call_later(self.connection_limits.seconds, self._give_up)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def protocol(connection_limits: ConnectionLimits, tls: ssl.SSLContext | None = None) -> type[LimitedConnection]:
    """Return the protocol class for uvicorn, with separate counts. It speaks TLS if given a context."""

    class Counted(LimitedConnection):
        pass

    Counted.connection_limits = connection_limits
    Counted.tls = tls
    Counted.unauthenticated = {}
    return Counted


def connection_of(scope: Scope) -> LimitedConnection | None:
    """Return the connection of a request; None if it did not come through this protocol."""
    connection = scope.get("state", {}).get(_KEY)
    return connection if isinstance(connection, LimitedConnection) else None


def _client_key(host: str) -> str:
    """Return what counts as one client: an IPv4 address, or the 64-bit IPv6 network that one client has."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or (int(address) >> 64))
    return str(address)
