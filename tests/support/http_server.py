"""`perstack mcp --http` in its own process."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import warm
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from socket_copy import pump
from terminal import SECONDS, Terminal

TOKEN = "a-secret-of-a-test-with-enough-characters"
AUTH_HEADERS = {"Authorization": f"Bearer {TOKEN}"}
DECISION_TOKEN = "another-secret-of-a-test-which-may-decide"
DECIDING_HEADERS = {"Authorization": f"Bearer {DECISION_TOKEN}"}


@contextmanager
def serving(terminal: Terminal, *args: str, token: str = TOKEN) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a server and yield its address and process. It is stopped by a signal, and must end cleanly.

    With an empty `token` it makes its own.
    """
    process = warm.perstack(
        *("mcp", "--provider", "scripted", "--http", "127.0.0.1:0", *args),
        cwd=terminal.workspace,
        env={**terminal.env, "PERSTACK_MCP_TOKEN": token, "PERSTACK_DECISION_TOKEN": DECISION_TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        match = re.search(r"serving MCP at (\S+)", process.stderr.readline())
        assert match, process.stderr.read()
        yield match[1], process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, out) == (0, "")
        expected = ("Invalid ", "Missing Host", "perstack: too many")
        assert all(line.startswith(expected) for line in err.splitlines()), err
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def authorized_client(
    url: str, mode: str, *, host: str | None = None, token: str = TOKEN, **callbacks: Any
) -> AsyncIterator[Client]:
    """Yield an SDK client that sends the token."""
    headers = {"Authorization": f"Bearer {token}", **({} if host is None else {"Host": host})}
    timeout = httpx2.Timeout(SECONDS, read=300)
    knowing = httpx2.AsyncClient(headers=headers, timeout=timeout, follow_redirects=True)
    transport = streamable_http_client(url, http_client=knowing)
    async with knowing, Client(transport, mode=mode, **callbacks) as client:  # type: ignore[arg-type]
        yield client


@contextmanager
def forwarded(path: Path) -> Iterator[str]:
    """Yield a local address that forwards to a Unix socket, for clients without support for tokens or such sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=_accept_clients, args=(listener, path), daemon=True)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(SECONDS)


def _accept_clients(listener: socket.socket, path: Path) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_connect_both, args=(client, path), daemon=True).start()


def _connect_both(client: socket.socket, path: Path) -> None:
    with client, socket.socket(socket.AF_UNIX) as far, suppress(OSError):
        far.connect(str(path))
        backward = threading.Thread(target=pump, args=(far, client), daemon=True)
        backward.start()
        pump(client, far)
        backward.join()
