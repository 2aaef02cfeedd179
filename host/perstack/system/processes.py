"""Starting a program so that nothing of it is left behind, whether we are cancelled or killed."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

from perstack.ports.processes.group import kill_group
from perstack.ports.processes.guard import GUARD
from perstack.ports.processes.identity import MARK
from perstack.ports.uninterrupted import outlasting

Stream: TypeAlias = int | IO[bytes]
"""A file, the number of one, or DEVNULL."""


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
    """A program as the leader of its own group, which ends when our process does, however that ends.

    To be a task that `started` waits for; the program is then to be used in a block of `owned`. Its environment has one
    more variable, PERSTACK_PROGRAM, for the guard. While it runs it is recorded in the folder `records`, if one is
    given: whoever continues our work after we were killed ends it first. `pass_fds` stay open in it.
    Raises OSError or ValueError if it cannot be started.
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


async def started(starting: asyncio.Task[Process]) -> Process:
    """The process, up, of a task that launches it. Raises what the task raises.

    If this is cancelled, what has been started is killed and reaped before the cancellation goes on.
    """
    cancelled = await outlasting(starting)
    if cancelled is None:
        return starting.result()
    if not starting.cancelled() and starting.exception() is None:
        await outlasting(asyncio.create_task(_kill(starting.result())))
    raise cancelled


async def reaped(process: Process) -> None:
    """Wait until a process that has been killed is gone; a cancellation goes on only then."""
    cancelled = await outlasting(asyncio.create_task(process.wait()))
    if cancelled is not None:
        raise cancelled


async def _kill(process: Process) -> None:
    await kill_group(process)
    GUARD.forget(process)
