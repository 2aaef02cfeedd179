"""Asking the person at the terminal, in place, to approve of calls that wait for it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from perstack.core.iterations.state import SeriesState
from perstack.core.job import JobSummary
from perstack.core.runs.asking import OpenQuestion
from perstack.engine.emit import OnEvent
from perstack.engine.who import this_user
from perstack.errors import Conflict, UsageError
from perstack.frontends.cli.next_steps import said
from perstack.frontends.cli.output import Output
from perstack.frontends.cli.terminal import err, is_attended
from perstack.host import Host

_LONGEST = 64 << 10
"""Bytes of an answer that is typed."""


async def approved_in_place(host: Host, work: Callable[[OnEvent], Awaitable[JobSummary]], lines: Output) -> JobSummary:
    """Drive a Job, and ask the person at the terminal, if there is one, about each call that waits for approval.

    With an empty answer, and at the end of stdin, the Job stays as it is, to be answered later.
    """
    job = await work(lines)
    lines.pause()
    while (asking := job.asking) is not None and asking.call_digest and _can_ask():
        answer = await _asked(asking, host)
        if not answer:
            break
        try:
            job = await host.answer(answer, question_id=asking.id, by=this_user("cli"), on_event=lines)
        except UsageError as error:
            err(error.said(said))
        except Conflict as error:
            err(error.said(said))
            job = await host.job(job.id)
        lines.pause()
    return job


async def approved_in_series(
    host: Host,
    series: SeriesState,
    lines: Output,
    resume: Callable[[str], Awaitable[SeriesState]],
) -> SeriesState:
    """The same of the calls that a Job of iterations waits with, which continue by `resume`."""
    while series.status == "paused" and series.job_id is not None and _can_ask():
        waiting = await host.job(series.job_id)
        if waiting.asking is None or not waiting.asking.call_digest:
            break

        async def as_it_stands(_: OnEvent, job: JobSummary = waiting) -> JobSummary:
            return job

        job = await approved_in_place(host, as_it_stands, lines)
        if job.asking is not None:
            break
        series = await resume(series.id)
    return series


def _can_ask() -> bool:
    """Whether somebody reads what is asked, and types."""
    is_typed = sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]  # `<&-`
    return is_typed and is_attended()


async def _asked(asking: OpenQuestion, host: Host) -> str:
    from perstack.core.answers import accepted, asked_by  # few Jobs ask
    from perstack.frontends.shared.approvals import call_shown

    for line in call_shown(asking, host.workspace).split("\n"):
        err(line)
    err(f"approve? ({accepted(asked_by(asking))}; nothing: later)")
    return (await _typed()).strip()


async def _typed() -> str:
    """The line that is typed next; empty at the end of stdin. Nothing blocks: Ctrl-C ends the wait."""
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
    typed: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(fd)
        try:
            data = os.read(fd, _LONGEST)
        except OSError:
            data = b""
        if not typed.done():
            typed.set_result(data)

    loop.add_reader(fd, read)
    try:
        return (await typed).decode("utf-8", "replace")
    finally:
        loop.remove_reader(fd)
