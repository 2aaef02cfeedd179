"""The fixture `bench`: a workspace on each real storage in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hosting import OPENED, STORAGES, Bench, storage_of, wait_for

_ONE_IN = {"postgresql": 10, "s3": 100}
"""One test in so many also runs on a server; all do with PERSTACK_STORAGES=all."""


def leave_out_servers(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect most tests on servers unless PERSTACK_STORAGES=all."""
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
    """Return a workspace on each real storage in turn."""
    return Bench(tmp_path, storage_of(request))


@pytest.fixture(autouse=True)
def closed_hosts() -> Iterator[None]:
    """Close the Hosts that a test left open, so that no connection is left to the garbage collector."""
    yield
    while OPENED:
        wait_for(OPENED.pop().close())
