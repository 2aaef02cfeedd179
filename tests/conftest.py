"""What all tests share."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from postgres_fixture import postgres as postgres
from processes import at_work
from s3_fixture import s3_server as s3_server
from s3_fixture import s3_store as s3_store
from temporal_fixture import temporal as temporal
from terminal import Terminal
from warm import SERVERS

_PATIENCE = 10
"""Seconds for what has been told to end to be gone: the guard of a killed host gives its server two."""


_SANDBOX = Path(__file__).parent / "plugins" / "bubblewrap"

_SEEN: dict[tuple[int, str], str] = {}
"""Processes that were there before the test: of fixtures that live longer, or left by a test that failed for it."""

_OF_SERVER = re.compile("^postgres: |/postgres -D |/temporal server start-dev |/atomic_moto.py ")

# under nohup, or in the background of a shell, every program that a test starts would ignore them, and what is promised
# of them could not be seen
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever a test starts has ended when it has."""
    folder = tmp_path_factory.getbasetemp()

    def found() -> dict[tuple[int, str], str]:
        # a server that tests share begins with the first that needs it, and makes and ends processes of its own
        there = at_work(folder).items()
        return {one: command for one, command in there if one[0] not in SERVERS and not _OF_SERVER.search(command)}

    if _has_children():  # looking at every process takes milliseconds, and most tests begin with none of their own
        _SEEN.update(found())
    yield
    until = time.monotonic() + _PATIENCE
    while left := {one: command for one, command in found().items() if one not in _SEEN}:
        if time.monotonic() >= until:
            _SEEN.update(left)  # the next test is not to blame
            pytest.fail(f"left behind: {left}")
        time.sleep(0.02)  # a poll of other processes, bounded above


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """An empty directory to give commands in."""
    return Terminal(tmp_path)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: no search for garbage need look at it, now or in any test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--local-model`: also run the tests on the embedded model."""
    parser.addoption("--local-model", action="store_true", help="run the tests that need the 1.1 GB weights")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs Linux is skipped elsewhere, and `-m "not linux"` leaves it out here.

    Tests on the embedded model take minutes each and all of the machine: they are asked for by name.
    """
    for item in items:
        if _SANDBOX in item.path.parents:
            item.add_marker("linux")
        if sys.platform != "linux" and item.get_closest_marker("linux"):
            item.add_marker(pytest.mark.skip(reason="needs Linux"))
    if config.getoption("--local-model"):
        return
    for item in items:
        if item.get_closest_marker("local_model"):
            item.add_marker(
                pytest.mark.skip(reason="needs the 1.1 GB weights of the embedded model: make test-local-model")
            )
