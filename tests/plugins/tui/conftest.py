"""Fixtures for tests of the terminal program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import OPENED, Bench, wait_for


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a workspace with a storage in files."""
    return Bench(tmp_path, "file:perstack")


@pytest.fixture(autouse=True)
def closed_hosts() -> Iterator[None]:
    """Close the Hosts that a test left open."""
    yield
    while OPENED:
        wait_for(OPENED.pop().close())
