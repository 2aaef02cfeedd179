"""What tests of the terminal program share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import OPENED, Bench, wait_for


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A workspace."""
    return Bench(tmp_path, "file:perstack")


@pytest.fixture(autouse=True)
def closed_hosts() -> Iterator[None]:
    """Close what a test left open."""
    yield
    while OPENED:
        wait_for(OPENED.pop().close())
