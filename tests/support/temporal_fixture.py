"""The Temporal server shared by the tests of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from temporal_server import TemporalServer


@pytest.fixture(scope="session")
def temporal() -> Iterator[TemporalServer]:
    """Yield the server; each test uses its own queues in it."""
    from temporal_server import TemporalServer  # its client takes time, and few tests need it

    server = TemporalServer()
    try:
        yield server.start()
    finally:
        server.close()
