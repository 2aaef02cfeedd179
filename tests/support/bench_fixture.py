"""What tests of the host share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hosting import OPENED, STORAGES, Bench, storage_of, wait_for

_ONE_IN = {"postgresql": 10, "s3": 100}
"""Of how many tests one runs on a server too; all do with PERSTACK_STORAGES=all."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out those that are run on a server by request only."""
    if os.environ.get("PERSTACK_STORAGES") == "all":
        return
    left_out = [one for one in items if isinstance(one, pytest.Function) and _is_left_out(one)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [one for one in items if one not in gone]


def _is_left_out(item: pytest.Function) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    server = next((one for one in params.values() if one in ("postgresql", "s3")), "")
    return crc32(item.originalname.encode()) % _ONE_IN.get(server, 1) != 0


@pytest.fixture(params=STORAGES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """A workspace, on each real storage in turn."""
    return Bench(tmp_path, storage_of(request))


@pytest.fixture(autouse=True)
def closed_hosts() -> Iterator[None]:
    """Close what a test left open, so that no connection is left to the garbage collector."""
    yield
    while OPENED:
        wait_for(OPENED.pop().close())
