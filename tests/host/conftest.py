"""What tests of the host share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hosting import OPENED, Bench, wait_for


@pytest.fixture(params=["file:perstack", "sqlite:perstack/state.db"], ids=["file", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """A workspace, on each real storage in turn."""
    return Bench(tmp_path, request.param)


@pytest.fixture(autouse=True)
def closed_hosts() -> Iterator[None]:
    """Close what a test left open, so that no connection is left to the garbage collector."""
    yield
    while OPENED:
        wait_for(OPENED.pop().close())
