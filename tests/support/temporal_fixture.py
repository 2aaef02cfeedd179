"""The Temporal server that the tests of one process share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from temporal_server import TemporalServer


@pytest.fixture(scope="session")
def temporal() -> Iterator[TemporalServer]:
    """A server; each test has queues of its own in it."""
    from temporal_server import TemporalServer  # its client takes time, and few tests need it

    server = TemporalServer()
    try:
        yield server.start()
    finally:
        server.close()
