"""Copies bytes between sockets, for proxies."""

import socket
from contextlib import suppress


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy data until one end closes; then shut both down."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
