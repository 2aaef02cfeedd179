"""Carries bytes between sockets, for what stands between a client and a server."""

import socket
from contextlib import suppress


def pump(source: socket.socket, sink: socket.socket) -> None:
    """What comes, until one of the two ends; then both do."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
