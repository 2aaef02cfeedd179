"""An S3 server with conditional writes, in its own process, and access to its bucket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from obstore.store import S3Store

BUCKET = "perstack-tests"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1"}
_SERVER = str(Path(__file__).with_name("atomic_moto.py"))
_PATIENCE = 60
"""Maximum seconds for its start: it imports much."""


@contextmanager
def serving(log: Path) -> Iterator[str]:
    """Yield the address of a new server with an empty bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, _SERVER, str(port)], stdout=out, stderr=out)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _make_bucket(endpoint, process)
        yield endpoint
    finally:
        process.kill()
        process.wait()


def _make_bucket(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            httpx.put(f"{endpoint}/{BUCKET}", content=b"").raise_for_status()
        except httpx.TransportError:
            assert process.poll() is None
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.05)  # a poll of another process, bounded above
        else:
            return


def bucket(endpoint: str, prefix: str = "") -> S3Store:
    """Return the bucket, or the part below a prefix, bypassing the storage."""
    return S3Store(
        BUCKET,
        prefix=prefix or None,
        endpoint=endpoint,
        region=KEYS["AWS_REGION"],
        access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        client_options={"allow_http": True},
    )


@contextmanager
def server_variables(endpoint: str) -> Iterator[None]:
    """Set the variables by which this process and its children find the server."""
    before = {name: os.environ.get(name) for name in (*KEYS, "AWS_ENDPOINT_URL_S3")}
    os.environ.update(KEYS, AWS_ENDPOINT_URL_S3=endpoint)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
