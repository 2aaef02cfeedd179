"""A program that ends with the block that it is used in, and with our own process, however that ends.

Nobody is left to end anything when our process is killed by SIGKILL. So each program has a guard: a shell that waits
for a pipe to break, and then ends the group. PR_SET_PDEATHSIG would reach the leader alone, which for npx is not the
server.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from perstack.ports.processes.group import end_group
from perstack.ports.processes.start import reaped, started

_WATCH = 'read -r _ && exit; kill -s TERM -- "-$1"; sleep 2; kill -s KILL -- "-$1"'


@asynccontextmanager
async def owned(process: Process) -> AsyncGenerator[None]:
    """After the block nothing is left of a process, which leads its own group, and of that group.

    What left the group on purpose (`setsid`) goes on.
    """
    guard: Process | None = None
    try:
        guard = await _guard(process.pid)
        yield
    finally:
        # however often this is cancelled, all signals come before it goes on
        try:
            await end_group(process)
        finally:
            try:
                if guard is not None:
                    with suppress(ProcessLookupError):
                        guard.kill()
                    await reaped(guard)
            finally:
                await reaped(process)


async def _guard(group: int) -> Process | None:
    starting = asyncio.create_subprocess_exec(
        "/bin/sh", "-c", _WATCH, "guard", str(group),
        stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, env={"PATH": os.defpath}, start_new_session=True,
    )  # fmt: skip
    with suppress(OSError):
        return await started(asyncio.create_task(starting))
    return None
