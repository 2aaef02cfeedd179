"""Driving a Job from a terminal: events to stdout, words to stderr, Ctrl-C, and the exit status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from perstack.core.job import JobStatus, JobSummary
from perstack.engine.emit import OnEvent
from perstack.frontends.cli.asking import answered_in_place
from perstack.frontends.cli.next_steps import said
from perstack.frontends.cli.output import Output
from perstack.frontends.cli.terminal import err
from perstack.frontends.shared.following import after_job
from perstack.frontends.shared.stopping import INTERRUPTED, leave, on_continued, on_stop_signals
from perstack.frontends.shared.words import WITHOUT_EFFECT, local_time, spent
from perstack.host import Host

_T = TypeVar("_T")

EXIT_STATUS: dict[JobStatus, int] = {
    "completed": 0,
    "stoppedByError": 1,
    "stoppedByInteractiveTool": 3,
    "stoppedByMaxSteps": 4,
    "stoppedByBudget": 4,
    "stoppedByInterrupt": INTERRUPTED,
    "running": 1,
    "queued": 0,
}


def drive(host: Host, work: Callable[[OnEvent], Awaitable[JobSummary]], lines: Output) -> int:
    """Drive a Job to the end or stop, and say how it stands; returns the exit status."""
    summary = until_done(host, lambda: answered_in_place(host, work, lines), lambda: job_of(host, lines), lines)
    return INTERRUPTED if summary is None else say(summary, lines)


async def job_of(host: Host, lines: Output) -> JobSummary | None:
    """Where the Job stands whose events were shown; None if none were."""
    return await host.job(lines.job_id) if lines.job_id is not None else None


def until_done(
    host: Host,
    work: Callable[[], Awaitable[_T]],
    interrupted: Callable[[], Awaitable[_T | None]],
    lines: Output,
    *,
    drives: bool = True,
) -> _T | None:
    """Work to the end, with the Host open; `interrupted` tells what became of work that was cut short.

    The first Ctrl-C (SIGTERM, SIGHUP) abandons the step in hand and records the interrupt; the second ends the process.
    So does the end of whoever reads `lines`, quietly. Without `drives` another process has the steps.
    """

    async def main() -> _T | None:
        task = asyncio.ensure_future(work())
        lines.on_lost = task.cancel
        on_continued(lines.forget)
        with on_stop_signals(lambda: _stop(task, lines, drives=drives), lambda: _leave(lines)):
            async with host:
                try:
                    return await task
                except asyncio.CancelledError:
                    return await interrupted()
                finally:
                    lines.pause()

    ended = asyncio.run(main())
    if lines.lost is not None and not isinstance(lines.lost, BrokenPipeError):
        reason = (lines.lost.strerror or str(lines.lost)).lower()
        with suppress(OSError):
            err(f"error: stdout cannot be written ({reason}), so this was interrupted")
    return ended


def _stop(task: asyncio.Future[_T], lines: Output, *, drives: bool) -> None:
    task.cancel()
    if lines.is_asking or not drives:  # nothing is at work here
        return
    with suppress(OSError):  # the terminal may be what has gone
        lines.remark("stopping after cleaning up; once more to leave at once")


def _leave(lines: Output) -> None:
    lines.pause()
    leave()


def say(job: JobSummary, lines: Output, then: str | None = None) -> int:
    """The result, and a line for a person: how it stands, and what to do next. Returns the exit status.

    That it failed is said on every stderr, and so is why there is no result if that was asked for; all else at a
    terminal only.
    """
    if job.status == "completed":
        lines.result(job.text or "")
    text = standing(job, then)
    if job.without_effect:
        err(f"warning: {job.expert_key}: {WITHOUT_EFFECT}")
    if job.status == "stoppedByError" or (lines.form == "text" and job.status != "completed"):
        err(text)
    else:
        lines.remark(text)
    return EXIT_STATUS[job.status]


def standing(job: JobSummary, then: str | None = None) -> str:
    """How a Job stands, and what to do next, in a line: `then`, where the door is not one of those for every Job."""
    did = spent(job)
    text = {
        "completed": f"completed: {did}; perstack log --job {job.id}",
        "stoppedByError": f"failed after {did}: {job.error}",
        "stoppedByInteractiveTool": f"asks: {job.asks}",
        "stoppedByMaxSteps": f"step limit reached ({did})",
        "stoppedByBudget": f"stopped by its budget ({did}): {job.exceeded}",
        "stoppedByInterrupt": f"{_why_stopped(job)} after {did}",
        "running": f"is still running: {did}",
        "queued": f"waits for a worker{_since_when(job)}",
    }[job.status]
    step = after_job(job)
    text = f"{job.expert_key} {text}"
    return f"{text}; {then or said(step)}" if step is not None and job.status != "completed" else text


def _since_when(job: JobSummary) -> str:
    if job.queued is None:
        return ""
    if job.queued.due:
        return f", not before {local_time(job.queued.due):%Y-%m-%d %H:%M}"
    return f" since {local_time(job.queued.since):%Y-%m-%d %H:%M}"


def _why_stopped(job: JobSummary) -> str:
    if job.pause_reason != "rate_limit" or job.resume_at is None:
        return "interrupted"
    when = local_time(job.resume_at)
    return f"paused until {when:%Y-%m-%d %H:%M}, because of the provider's rate limit,"
