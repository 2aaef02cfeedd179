"""Start programs, and leave none running even if we are killed: `launch`, `await_start`, `end_with_block`."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TypeAlias

from perstack.system.concurrency import wait_despite_cancellation
from perstack.system.module_path import module_path
from perstack.system.process_groups import MARK, end_group, kill_group
from perstack.system.process_guard import GUARD

Stream: TypeAlias = int | IO[bytes]  # a file, a file descriptor, or DEVNULL

ISOLATED = ("-B", "-E", "-P")
"""Options of every Python interpreter that we start. It ignores PYTHONPATH and similar variables, and does not
import from the current folder: a file `json.py` that an Expert wrote there would run with our rights."""

_RUN = (
    "import os, sys; path, module = sys.argv[1:3]; del sys.argv[1:3]; "
    "sys.path += [folder for folder in path.split(os.pathsep) if folder not in sys.path]; "
    "from runpy import run_module; run_module(module, run_name='__main__', alter_sys=True)"
)


def python_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module in this interpreter, as `python -m` does, but isolated.

    It finds all modules that this process finds, and modules in folders that were taken out of its path. The standard
    library and installed packages take precedence, in whatever order this process has them.
    """
    path = os.pathsep.join(dict.fromkeys(map(os.path.abspath, module_path())))
    return (sys.executable, *ISOLATED, "-c", _RUN, path, module, *arguments)


async def launch(
    argv: Sequence[str],
    *,
    cwd: str | Path,
    env: Mapping[str, str],
    stdin: Stream,
    stdout: Stream,
    stderr: Stream,
    records: Path | None = None,
    pass_fds: Collection[int] = (),
) -> Process:
    """Start a program as the leader of its own group, which ends when our process ends, however that happens.

    Call it in a task that `await_start` waits for, then use the process in a block of `end_with_block`. The guard adds
    the variable PERSTACK_PROGRAM to its environment. With `records`, the program is recorded in that folder while it
    runs: after we were killed, the process that resumes our work ends it first. The program inherits the descriptors
    `pass_fds`. Raises OSError or ValueError if it cannot be started.
    """
    mark = GUARD.expect(records)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env={**env, MARK: mark},
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except BaseException:
        GUARD.forget(mark)
        raise
    GUARD.watch(mark, process)
    return process


async def await_start(starting: asyncio.Task[Process]) -> Process:
    """Return the process of a `launch` task, or raise its error. If cancelled, kill and reap the process first."""
    cancelled = await wait_despite_cancellation(starting)
    if cancelled is None:
        return starting.result()
    if not starting.cancelled() and starting.exception() is None:
        await wait_despite_cancellation(asyncio.create_task(_kill(starting.result())))
    raise cancelled


async def reap(process: Process) -> None:
    """Wait until a killed process is gone, delaying any cancellation until then."""
    cancelled = await wait_despite_cancellation(asyncio.create_task(process.wait()))
    if cancelled is not None:
        raise cancelled


async def _kill(process: Process) -> None:
    await kill_group(process)
    GUARD.forget(process)


@asynccontextmanager
async def end_with_block(process: Process) -> AsyncGenerator[None]:
    """End a process from `launch`, and its group, at the end of the block. A program with `setsid` leaves the group."""
    try:
        yield
    finally:
        # even if cancelled repeatedly, all signals are sent before this returns
        try:
            await end_group(process)
        finally:
            try:
                await reap(process)
            finally:
                GUARD.forget(process)
