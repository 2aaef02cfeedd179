"""Asking the person at the terminal, in place, what a Job waits for: answers, and approvals of calls."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from perstack.core.job import JobSummary
from perstack.core.runs.asking import OpenQuestion
from perstack.engine.emit import OnEvent
from perstack.engine.who import this_user
from perstack.errors import Conflict, UsageError
from perstack.frontends.cli.next_steps import said
from perstack.frontends.cli.output import Output
from perstack.frontends.cli.terminal import err, is_attended
from perstack.host import Host

if TYPE_CHECKING:
    from perstack.core.iterations.state import SeriesState  # a Job alone needs none of it

_LONGEST = 64 << 10
"""Bytes of an answer that is typed."""


async def answered_in_place(host: Host, work: Callable[[OnEvent], Awaitable[JobSummary]], lines: Output) -> JobSummary:
    """Drive a Job, and ask the person at the terminal, if there is one, all that it waits for.

    With an empty answer, with Ctrl-C and at the end of stdin the Job stays as it is, to be answered later.
    """
    job = await work(lines)
    while (asking := job.asking) is not None and can_ask(lines):
        lines.pause()
        lines.is_asking = True
        answer = await _asked(asking, host)
        lines.is_asking = False
        if not answer:
            break
        try:
            job = await host.answer(answer, question_id=asking.id, by=this_user("cli"), drive=True, on_event=lines)
        except UsageError as error:
            err(error.said(said))
        except Conflict as error:
            err(error.said(said))
            job = await host.job(job.id)
    return job


async def answered_in_series(
    host: Host,
    series: SeriesState,
    lines: Output,
    resume: Callable[[str], Awaitable[SeriesState]],
) -> SeriesState:
    """The same of what a Job of iterations waits for, which continue by `resume`."""
    while series.status == "paused" and series.job_id is not None and can_ask(lines):
        waiting = await host.job(series.job_id)
        if waiting.asking is None:
            break

        async def as_it_stands(_: OnEvent, job: JobSummary = waiting) -> JobSummary:
            return job

        job = await answered_in_place(host, as_it_stands, lines)
        if job.asking is not None:
            break
        series = await resume(series.id)
    return series


def can_ask(lines: Output) -> bool:
    """Whether somebody reads what is asked, and types."""
    is_typed = sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]  # `<&-`
    return lines.asks and is_typed and is_attended()


async def _asked(asking: OpenQuestion, host: Host) -> str:
    """What is answered; nothing: it is left for later."""
    import termios

    from perstack.core.answers import accepted, asked_by  # few Jobs ask
    from perstack.frontends.shared.approvals import call_shown
    from perstack.frontends.shared.questions import chosen, question_shown

    is_approval = bool(asking.call_digest)
    text = call_shown(asking, host.workspace) if is_approval else question_shown(asking)
    for line in text.split("\n"):
        err(line)
    asked = asked_by(asking)
    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # what was typed before is no answer to this
    number = "give a number, or " if asked.options and not is_approval else ""
    err(f"{'approve' if is_approval else 'answer'}? ({number}{accepted(asked)}; nothing: later)")
    try:
        answer = (await _typed()).strip()
    except asyncio.CancelledError:  # Ctrl-C: the Job has stopped already, and waits
        err("")
        return ""
    return answer if is_approval else chosen(asked, answer)


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
