"""A front for a PostgreSQL server that accepts only TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from socket_copy import pump

_WISH = bytes((0, 0, 0, 8, 4, 210, 22, 47))
"""A client's request for encryption."""


class Front:
    """A listener on a local port. A client that does not request encryption is disconnected."""

    def __init__(self, server: Path, context: ssl.SSLContext) -> None:
        self._server, self._context = server, context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []

    def __enter__(self) -> Front:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if client.recv(len(_WISH), socket.MSG_WAITALL) != _WISH:
                return
            client.sendall(b"S")
            with self._context.wrap_socket(client, server_side=True) as inner, socket.socket(socket.AF_UNIX) as server:
                server.connect(str(self._server / ".s.PGSQL.5432"))
                self._open += [inner, server]
                answers = threading.Thread(target=pump, args=(server, inner), daemon=True)
                answers.start()
                pump(inner, server)
                answers.join()
