"""A proxy between client and PostgreSQL: cuts the connection at a statement, kills the client, or pools sessions."""

from __future__ import annotations

import os
import signal
import socket
import struct
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

Cut = Literal["before", "middle", "after", "kill before", "kill after"]
"""For one statement: nothing of it reaches the server; half of it does; all does, but its answer is lost; or the
client is killed with SIGKILL right before it, or after it was done."""

_NAME = ".s.PGSQL.5432"
_READY = b"Z\0\0\0\5"


class _Between(ABC):
    """A listener on a Unix socket in its own folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="px-", dir="/tmp"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / _NAME))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    @abstractmethod
    def cut_all(self) -> None:
        """End every connection."""

    @abstractmethod
    def _accept_client(self, client: socket.socket) -> None:
        """Handle a new client connection."""

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        (self.folder / _NAME).unlink()
        self.folder.rmdir()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._accept_client(client)


class Proxy(_Between):
    """Proxy that forwards traffic until it is told to interfere."""

    def __init__(self, server: Path) -> None:
        self.server = server
        self.statements = 0
        self._at: tuple[int, Cut] | None = None
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_open = True
        self._lit = threading.Event()
        self._lit.set()
        super().__init__()

    def arm(self, at: int, cut: Cut) -> None:
        """Interfere at the statement with that number, counted from 1 over all connections from now on."""
        with self._lock:
            self.statements, self._at = 0, (at, cut)

    @property
    def was_reached(self) -> bool:
        return self._at is None

    def darken(self) -> None:
        """Forward nothing from now on, as behind a pulled cable."""
        self._lit.clear()

    def lighten(self) -> None:
        self._lit.set()

    def shut(self) -> None:
        """Refuse connections from now on, and end existing ones."""
        self._is_open = False
        self.cut_all()

    def open(self) -> None:
        self._is_open = True

    def cut_all(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._lit.set()
        super().close()

    def _accept_client(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        try:
            if not self._is_open:
                raise ConnectionRefusedError
            server.connect(str(self.server / _NAME))
        except OSError:
            server.close()
            client.close()
            return
        self._open += [client, server]
        pair = _Pair(self, client, server)
        for work in (pair.requests, pair.answers):
            threading.Thread(target=work, daemon=True).start()

    def verdict(self) -> Cut | None:
        """Return what to do with the next statement."""
        with self._lock:
            self.statements += 1
            if self._at is None or self._at[0] != self.statements:
                return None
            cut, self._at = self._at[1], None
            return cut

    def pass_dark(self) -> None:
        self._lit.wait()


class _Pair:
    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self.met: Cut | None = None
        self.pid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

    def requests(self) -> None:
        with suppress(OSError):
            for batch, is_statement in self._batches():
                self.proxy.pass_dark()
                cut = self.proxy.verdict() if is_statement else None
                match cut:
                    case None:
                        self.server.sendall(batch)
                    case "before":
                        break
                    case "middle":
                        self.server.sendall(batch[: len(batch) // 2])
                        break
                    case "kill before":
                        os.kill(self.pid, signal.SIGKILL)
                        break
                    case "after" | "kill after":
                        self.met = cut
                        self.server.sendall(batch)
        if self.met is None:
            self.end()

    def answers(self) -> None:
        with suppress(OSError):
            while data := self.server.recv(1 << 16):
                self.proxy.pass_dark()
                if self.met is None:
                    self.client.sendall(data)
                elif data[-6:-1] == _READY:
                    if self.met == "kill after":
                        os.kill(self.pid, signal.SIGKILL)
                    break
        self.end()

    def end(self) -> None:
        for connection in (self.client, self.server):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _batches(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the client's data, split after each statement."""
        buffer, batch, is_started = b"", b"", False
        while data := self.client.recv(1 << 16):
            buffer += data
            while True:
                head = 4 if not is_started else 5
                if len(buffer) < head:
                    break
                length = struct.unpack("!I", buffer[head - 4 : head])[0] + head - 4
                if len(buffer) < length:
                    break
                message, buffer = buffer[:length], buffer[length:]
                if not is_started:
                    # the real startup message follows the answer to an encryption request
                    is_started = struct.unpack("!I", message[4:8])[0] >> 16 == 3
                    yield message, False
                    continue
                batch += message
                if message[:1] in b"QSXp":
                    yield batch, message[:1] in b"QS"
                    batch = b""


Mode = Literal["session", "transaction"]


class Pooler(_Between):
    """Pool of server sessions like pgbouncer's: per client connection, or per transaction."""

    def __init__(self, server: Path, mode: Mode) -> None:
        self._server, self._mode = server, mode
        self._free: list[socket.socket] = []
        self._all: list[socket.socket] = []
        self._hello = b""
        self._lock = threading.Lock()
        super().__init__()

    def cut_all(self) -> None:
        for connection in self._all:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept_client(self, client: socket.socket) -> None:
        self._all.append(client)
        threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        session: socket.socket | None = None
        with suppress(OSError):
            start = client.recv(1 << 16)
            session = self._session(start)
            client.sendall(self._hello)
            if self._mode == "transaction":
                self._free.append(session)
                session = None
            while request := client.recv(1 << 16):
                if request[:1] == b"X":
                    break
                if session is None:
                    session = self._session(start)
                session.sendall(request)
                answer = b""
                while answer[-6:-1] != _READY:
                    answer = session.recv(1 << 16)
                    client.sendall(answer)
                if self._mode == "transaction" and answer[-1:] == b"I":
                    self._free.append(session)
                    session = None
        if session is not None:
            session.close()
        client.close()

    def _session(self, start: bytes) -> socket.socket:
        with self._lock:
            if self._free:
                return self._free.pop()
            session = socket.socket(socket.AF_UNIX)
            session.connect(str(self._server / _NAME))
            self._all.append(session)
            session.sendall(start)
            hello = b""
            while hello[-6:-1] != _READY:
                hello += session.recv(1 << 16)
            key = hello.index(b"K\0\0\0")
            self._hello = hello[: key + 5] + struct.pack("!I", 7) + hello[key + 9 :]
            return session
