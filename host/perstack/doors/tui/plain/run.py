"""The linear mode from its beginning to its end."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from perstack.config.load import LoadedProject
from perstack.core.plain import plain_text
from perstack.engine.live import LiveProject
from perstack.frontends.shared.stopping import INTERRUPTED, leave, on_stop_signals
from perstack.frontends.tui.definition import changes_of
from perstack.frontends.tui.next_steps import said_plainly
from perstack.frontends.tui.plain.keyboard import Keyboard, TooLong
from perstack.frontends.tui.plain.program import PlainProgram
from perstack.host import Host
from perstack.next_steps import Note


def run_plain(
    host: Host,
    loaded: LoadedProject,
    *,
    expert: str | None = None,
    query: str | None = None,
    job: str | None = None,
    drives: bool = False,
) -> int:
    """Run it until a person leaves; returns the exit status.

    SIGTERM, SIGHUP and a terminal that is gone interrupt what is at work first; Ctrl-C interrupts a Job and stays.
    """
    return asyncio.run(_run(host, loaded, expert, query, job, drives))


async def _run(
    host: Host, loaded: LoadedProject, expert: str | None, query: str | None, job: str | None, drives: bool
) -> int:
    code = 0
    leaving: list[asyncio.Task[None]] = []

    def stop() -> None:
        nonlocal code
        code = INTERRUPTED
        leaving.append(asyncio.ensure_future(program.leave()))

    def put(line: str) -> None:
        try:
            print(plain_text(line), flush=True)  # noqa: T201 - it is what this mode is
        except OSError:  # nobody reads it any more
            if not leaving:
                stop()

    def interrupt() -> None:
        if not program.interrupt():
            leave()

    live = LiveProject(loaded)
    async with host:
        job_id = await host.jobs.find(job)
        with on_stop_signals(stop, interrupt=interrupt), Keyboard(sys.stdin.fileno()) as keyboard:
            program = PlainProgram(host, live, put, discard=keyboard.discard, drives=drives)
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(_typing(program, keyboard)), group.create_task(_following(program, live))]
                try:
                    program.begin(expert, query, job_id)
                    await program.left.wait()
                finally:
                    for task in others:
                        task.cancel()
                    await program.leave()
    return code


async def _typing(program: PlainProgram, keyboard: Keyboard) -> None:
    """Each line is done before the next one is taken."""
    while True:
        line = await keyboard.line()
        if line is None:
            await program.ended()
        elif isinstance(line, TooLong):
            program.cut()
        else:
            await program.typed(line)


async def _following(program: PlainProgram, live: LiveProject) -> None:
    """Use a changed definition. What is wrong with one is said on stderr where it is read: here too, if nobody sees
    that."""
    said: str | None = None
    problem: Note | None = None
    with suppress(asyncio.CancelledError):
        async for is_new in changes_of(live):
            if is_new:
                program.host.use(live.loaded.project)
            is_news, problem = live.problem != problem, live.problem
            if is_news and problem is not None and not sys.stderr.isatty():
                program.put(problem.said(said_plainly))
            held = live.open_change
            if held is not None and held.digest != said:
                said = held.digest
                program.put("> /agree uses the changed definition; until then the one of before is used")
