"""The fixture `bench`: a workspace on each real storage in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hosts import OPENED, STORAGES, Bench, storage_of, wait_for

_ONE_IN = {"sqlite:perstack/state.db": 8, "postgresql": 20, "s3": 100}
"""One test in so many also runs on this storage and not only on folders; all do with PERSTACK_STORAGES=all.

Each storage passes the whole contract suite in any case.
"""


def leave_out_storages(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect most tests on other storages than folders, unless PERSTACK_STORAGES or PERSTACK_FAULTS is `all`."""
    if "all" in (os.environ.get("PERSTACK_STORAGES"), os.environ.get("PERSTACK_FAULTS")):
        return
    left_out = [item for item in items if isinstance(item, pytest.Function) and _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        excluded = set(left_out)
        items[:] = [item for item in items if item not in excluded]


def _is_left_out(item: pytest.Function) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    storage = next((value for value in params.values() if isinstance(value, str) and value in _ONE_IN), "")
    if storage.startswith("sqlite:") and item.get_closest_marker("sweep") is not None:
        return False  # it tries other points than folders
    return crc32(item.originalname.encode()) % _ONE_IN.get(storage, 1) != 0


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
