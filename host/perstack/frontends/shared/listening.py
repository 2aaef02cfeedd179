"""Where an HTTP server listens: an address, or a Unix socket for one's own user."""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path

from perstack.dataclass import dataclass
from perstack.errors import UsageError

_UNIX = "unix:"
_WAITING = 128
"""Connections that the system keeps until they are accepted."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int
    """0: any that is free."""
    socket_path: Path | None = None
    """A Unix socket, in place of host and port."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """`HOST:PORT`, `[::1]:PORT`, `PORT` on loopback, or `unix:PATH`. Raises UsageError."""
        if text.startswith(_UNIX):
            if sys.platform != "linux":
                raise UsageError(f"--http {text}: only Linux says who connects to a socket: write HOST:PORT")
            return cls("localhost", 0, Path(text.removeprefix(_UNIX)).absolute())
        host, separator, port = text.rpartition(":")
        is_number = port.isascii() and port.isdigit() and len(port) <= 5
        if not is_number or int(port) > 65535 or (separator and not host):
            raise UsageError(f"--http {text}: write HOST:PORT, such as 127.0.0.1:8765, or unix:PATH")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_everywhere(self) -> bool:
        """Whether it is no one address, but all that the machine has."""
        try:
            return ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def url(self, path: str, name: str | None = None, port: int | None = None) -> str:
        """What clients are given, with the port that was free, if any was asked for."""
        host = name or self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{port or self.port}{path}"


@contextmanager
def listening(address: Address) -> Generator[socket.socket]:
    """A socket that takes connections. Raises UsageError if it cannot be had."""
    with _unix(address.socket_path) if address.socket_path is not None else _tcp(address) as listener:
        yield listener


def place_of(address: Address, listener: socket.socket, path: str) -> str:
    """What clients connect to, for a person."""
    if address.socket_path is not None:
        return f"{_UNIX}{address.socket_path}"
    return address.url(path, port=listener.getsockname()[1])


def is_of_this_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket runs as this user."""
    if sys.platform != "linux":
        return False
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return bool(uid == os.geteuid())


def _tcp(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_WAITING)
    except OSError as error:
        raise UsageError(f"--http {address.host}:{address.port}: {error.strerror or error}") from error


@contextmanager
def _unix(path: Path) -> Generator[socket.socket]:
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        try:
            _remove_left(path)
            before = os.umask(0o177)
            try:
                listener.bind(str(path))
            finally:
                os.umask(before)
            listener.listen(_WAITING)
            made = path.stat()
        except OSError as error:
            raise UsageError(f"--http {_UNIX}{path}: {error.strerror or error}") from error
        try:
            yield listener
        finally:
            with suppress(OSError):
                # one that another server has put in its place stays
                if os.path.samestat(made, path.stat()):
                    path.unlink()


def _remove_left(path: Path) -> None:
    """Remove the socket of a server that has ended. Raises OSError and UsageError for anything else that is there."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise UsageError(f"--http {_UNIX}{path}: there is something else: name another path")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise UsageError(f"--http {_UNIX}{path}: another server listens there")
