"""A Temporal server for tests, from PyPI: it needs no installed server, and ends with the tests."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from socket_copy import pump
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

SECONDS = 30.0
_PROGRAM = Path(sys.executable).parent / "temporal"
_SETTINGS = (
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    "frontend.namespaceRPS.visibility=1000",
    "frontend.namespaceBurstRatio.visibility=10",
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class TemporalServer:
    """A server in a temporary folder, on a local port. Its data survives a restart."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="temporal-", dir="/tmp"))
        self.port = free_port()
        self._number = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> TemporalServer:
        """Start the server and return when it accepts connections."""
        settings = [part for setting in _SETTINGS for part in ("--dynamic-config-value", setting)]
        command = [_PROGRAM, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--log-level", "error"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port), "--db-filename", self.folder / "db", *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + SECONDS
        while not asyncio.run(self._is_ready()):
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)
        return self

    async def _is_ready(self) -> bool:
        with suppress(RuntimeError, RPCError):  # raised by the SDK if it cannot connect
            client = await Client.connect(f"127.0.0.1:{self.port}")
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
            return True
        return False

    def stop(self, sign: int = signal.SIGTERM) -> None:
        """Stop it; SIGKILL simulates a crash."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(sign)
            try:
                self._process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def address(self, queue: str | None = None, *, port: int | None = None) -> str:
        """Return the address of a new queue, or of the named one."""
        self._number += 1
        return f"temporal://127.0.0.1:{port or self.port}/default?queue={queue or f'test-{self._number}'}"


class Wire:
    """A connection to a server that can be closed."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._is_open = True
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        self._is_open = False
        self._close_all()

    def open(self) -> None:
        self._is_open = True

    def close(self) -> None:
        self._is_open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._close_all()

    def _close_all(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._is_open:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._to))
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=_copy_stream, args=(source, sink), daemon=True).start()


def _copy_stream(source: socket.socket, sink: socket.socket) -> None:
    pump(source, sink)
    source.close()
