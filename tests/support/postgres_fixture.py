"""The PostgreSQL server shared by the tests of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Yield the server; each test uses its own schema in it."""
    from postgres_server import PostgresServer  # its driver takes time, and few tests need it

    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.close()
