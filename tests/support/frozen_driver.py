"""A process that drives a Job and is stopped by SIGSTOP, and another that takes over meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from perstack.core.base.chain import Head, open_line, seal
from perstack.errors import Conflict
from perstack.ports.storage import Storage
from perstack.testing.storage_fixture import JOB, RUN, SECONDS, wait_for

_DRIVER = """
import asyncio, importlib, sys
from pathlib import Path
from perstack.core.base.chain import Head, seal
from perstack.errors import PerstackError
from perstack.ports.storage import RunRef
module, location = sys.argv[1:]
storage = importlib.import_module(module).perstack_storages()[0].open(location, Path.cwd())

async def main():
    run, head = RunRef("job1", "job1-1"), Head()
    async with storage.lease("job1", "the frozen"):
        try:
            while True:
                lines, after = seal(head, [b'{"by":"frozen"}'])
                await storage.append(run, head.seq, lines)
                await storage.put_summary("job1", b'{"by":"frozen"}')
                head = after
                print(head.seq, flush=True)
                if sys.stdin.readline() == "":
                    return
        except PerstackError as error:
            print(type(error).__name__, error, flush=True)
    await storage.close()

asyncio.run(main())
"""


class Driver:
    """A driver in its own process that appends a record at each step."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def step(self) -> str:
        """Make a step and return its output: the number of records, or an error."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("go\n")
        self._child.stdin.flush()
        return self._child.stdout.readline().strip()

    def steps(self, number: int) -> None:
        """Make steps until there are `number` records."""
        assert self._child.stdout is not None
        reply = self._child.stdout.readline().strip()
        while reply != str(number):
            assert reply in {str(count) for count in range(1, number)}, reply
            reply = self.step()

    def freeze(self) -> None:
        self._child.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._child.send_signal(signal.SIGCONT)


@contextmanager
def driver(address: tuple[str, str]) -> Iterator[Driver]:
    """Yield a driver that holds the Job's lease, on the storage with this plugin module and location."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    env = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", _DRIVER, *address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as child:
        try:
            yield Driver(child)
        finally:
            child.kill()


async def lease_once(storage: Storage) -> None:
    """Take and release the lease. Raises Conflict."""
    async with storage.lease(JOB, "me"):
        pass


async def take_over(storage: Storage) -> tuple[float, list[bytes]]:
    """Wait until the Job is free and append to it. Return the seconds that took, and all records."""
    began = time.monotonic()
    while True:
        try:
            async with storage.lease(JOB, "the next"):
                took, records = time.monotonic() - began, await storage.read(RUN)
                head = Head(len(records), open_line(records[-1]).hash)
                await storage.append(RUN, head.seq, seal(head, [b'{"by":"next"}'])[0])
                return took, await storage.read(RUN)
        except Conflict:
            assert time.monotonic() < began + SECONDS
            await asyncio.sleep(0.2)


def check_frozen(frozen: Driver, storage: Storage) -> float:
    """Check that a frozen driver writes nothing after a takeover. Return the seconds it blocked the other."""
    frozen.steps(3)
    frozen.freeze()
    with pytest.raises(Conflict, match="the frozen"):
        wait_for(lease_once(storage))
    took, records = wait_for(take_over(storage))
    frozen.thaw()
    assert frozen.step().startswith("Conflict")
    assert wait_for(storage.read(RUN)) == records
    assert wait_for(storage.summary(JOB)) == b'{"by":"frozen"}'
    return took
