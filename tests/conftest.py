"""Fixtures and hooks shared by all tests."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import browser
import pytest
from bench_fixture import bench as bench
from bench_fixture import closed_hosts as closed_hosts
from bench_fixture import leave_out_storages
from disk import do_not_wait_for_disk
from hypothesis import settings
from postgres_fixture import postgres as postgres
from processes import at_work
from s3_fixture import s3_server as s3_server
from s3_fixture import s3_store as s3_store
from temporal_fixture import temporal as temporal
from terminal import Terminal, trusting
from warm import SERVERS

_PATIENCE = 10
"""Maximum seconds for ended processes to be gone: the guard of a killed host gives its server two."""


_SANDBOX = Path(__file__).parent / "plugins" / "bubblewrap"

_SEEN: dict[tuple[int, str], str] = {}
"""Processes that existed before the test: those of longer-lived fixtures, or left by a test that failed for them."""

_STATE_HOME = tempfile.TemporaryDirectory(prefix="perstack-state-home-")
"""The user's state directory in tests, of this process: no test writes to the developer's own, and the key of marks is
created once."""
os.environ["XDG_STATE_HOME"] = _STATE_HOME.name

_OF_SERVER = re.compile(
    "^postgres: |/postgres -D |/temporal server start-dev |/atomic_moto.py |/playwright/driver/|/chromium/"
)

do_not_wait_for_disk()

# under nohup, or in the background of a shell, all programs that tests start would ignore these signals, and their
# handling could not be tested
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A deadline for one example would fail on a busy machine. `make fuzz` tries many more examples
settings.register_profile("ordinary", max_examples=30, deadline=None)
settings.register_profile("thorough", max_examples=500, deadline=None)
settings.load_profile("ordinary")


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Check that everything a test started has ended when the test has."""
    folder = tmp_path_factory.getbasetemp()

    def found() -> dict[tuple[int, str], str]:
        # a shared server starts with the first test that needs it, and starts and ends its own processes
        there = at_work(folder).items()
        return {one: command for one, command in there if one[0] not in SERVERS and not _OF_SERVER.search(command)}

    if _has_children():  # listing all processes takes milliseconds, and most tests start without children
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
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Return a folder whose definitions are the user's own to a Host of this process; see `Terminal.as_stranger`."""
    with trusting(tmp_path):
        yield tmp_path


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """Return an empty directory in which to run commands."""
    return Terminal(tmp_path)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the objects made during import and collection, so that garbage collections never scan them.

    Collect rarely afterwards: with Python's thresholds that takes 7 % of the tests' processor time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(5_000, 20, 50)
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that run tests which `make test` leaves out."""
    parser.addoption("--local-model", action="store_true", help="run the tests that need the 1.1 GB weights")
    parser.addoption("--others", action="store_true", help="run the tests with clients of others, from npm")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that need Linux elsewhere, and mark them so that `-m "not linux"` deselects them here.

    Tests on the embedded model take minutes each and the whole machine, and those with clients of others some three
    minutes, so they run only on request.
    """
    leave_out_storages(config, items)
    for item in items:
        if item.get_closest_marker("browser") and not browser.IS_THERE:
            item.add_marker(pytest.mark.skip(reason="needs chromium, playwright and axe"))
        if _SANDBOX in item.path.parents:
            item.add_marker("linux")
        if sys.platform != "linux" and item.get_closest_marker("linux"):
            item.add_marker(pytest.mark.skip(reason="needs Linux"))
    for option, marker, reason in (
        ("--local-model", "local_model", "needs the 1.1 GB weights of the embedded model: make test-local-model"),
        ("--others", "others", "runs a client of others: make test-others"),
    ):
        if not config.getoption(option):
            for item in items:
                if item.get_closest_marker(marker):
                    item.add_marker(pytest.mark.skip(reason=reason))
