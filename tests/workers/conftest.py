"""Fixtures for tests of workers."""

from __future__ import annotations

import pytest
from postgres_server import PostgresServer
from terminal import Terminal
from worker_processes import Cluster


@pytest.fixture
def cluster(terminal: Terminal, postgres: PostgresServer) -> Cluster:
    return Cluster(terminal, postgres.address())
