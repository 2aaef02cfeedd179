"""The server that the tests of one process share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server; each test has a schema of its own in it."""
    from postgres_server import PostgresServer  # its driver takes time, and few tests need it

    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.close()
