"""Driving a Job from a terminal: events to stdout, words to stderr, Ctrl-C, and the exit status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from perstack.core.events import Event, SkillDisconnected
from perstack.core.job import JobStatus, JobSummary
from perstack.core.plain import one_line
from perstack.engine.emit import OnEvent
from perstack.frontends.cli.approving import approved_in_place
from perstack.frontends.cli.next_steps import said
from perstack.frontends.cli.terminal import data, discard_stdout, err, remark
from perstack.frontends.shared.following import after_job
from perstack.frontends.shared.stopping import INTERRUPTED, on_stop_signals
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
}

_STREAMED = frozenset({"streamText", "streamReasoning"})


class JsonLines:
    """Writes each event as one line of JSON to stdout, flushed, and to stderr which skills are missing.

    When stdout cannot be written any more, `on_lost` is called once, and nothing is written from then on.
    """

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self.job_id: str | None = None
        self._warned: set[str] = set()
        self.on_lost: Callable[[], object] = lambda: None
        self.lost: OSError | None = None
        """Why stdout cannot be written any more."""

    def __call__(self, event: Event, line: bytes) -> None:
        self.job_id = event.job_id
        if event.type not in _STREAMED or self._stream:
            self.write(line)
        if isinstance(event, SkillDisconnected) and event.reason:
            self._warn(event.skill_name, event.said(said))

    def write(self, line: bytes) -> None:
        """One line, if stdout can be written."""
        if self.lost is not None:
            return
        try:
            data(line)
        except OSError as error:
            self.lost = error
            discard_stdout()
            self.on_lost()

    def _warn(self, skill_name: str, reason: str) -> None:
        text = reason if repr(skill_name) in reason else f"skill {skill_name!r}: {reason}"
        if text not in self._warned:
            self._warned.add(text)
            err(f"warning: {one_line(text)}")


def drive(host: Host, work: Callable[[OnEvent], Awaitable[JobSummary]], *, stream: bool) -> int:
    """Drive a Job to the end or stop, and say how it stands; returns the exit status."""
    lines = JsonLines(stream=stream)
    summary = until_done(host, lambda: approved_in_place(host, work, lines), lambda: job_of(host, lines), lines)
    return INTERRUPTED if summary is None else say(summary)


async def job_of(host: Host, lines: JsonLines) -> JobSummary | None:
    """Where the Job stands whose events were written; None if none were."""
    return await host.job(lines.job_id) if lines.job_id is not None else None


def until_done(
    host: Host, work: Callable[[], Awaitable[_T]], interrupted: Callable[[], Awaitable[_T | None]], lines: JsonLines
) -> _T | None:
    """Work to the end, with the Host open; `interrupted` tells what became of work that was cut short.

    The first Ctrl-C (SIGTERM, SIGHUP) abandons the step in hand and records the interrupt; the second ends the process.
    So does the end of whoever reads `lines`, quietly.
    """

    async def main() -> _T | None:
        task = asyncio.ensure_future(work())
        lines.on_lost = task.cancel
        with on_stop_signals(lambda: _stop(task)):
            async with host:
                try:
                    return await task
                except asyncio.CancelledError:
                    return await interrupted()

    ended = asyncio.run(main())
    if lines.lost is not None and not isinstance(lines.lost, BrokenPipeError):
        reason = (lines.lost.strerror or str(lines.lost)).lower()
        with suppress(OSError):
            err(f"error: stdout cannot be written ({reason}), so this was interrupted")
    return ended


def _stop(task: asyncio.Future[_T]) -> None:
    task.cancel()
    with suppress(OSError):  # the terminal may be what has gone
        remark("stopping after cleaning up; once more to leave at once")


def say(job: JobSummary) -> int:
    """One line for a person: how it stands, and what to do next. Returns the exit status.

    That it failed is said on every stderr, all else at a terminal only.
    """
    did = spent(job)
    text = {
        "completed": f"completed: {did}; perstack log --job {job.id}",
        "stoppedByError": f"failed after {did}: {job.error}",
        "stoppedByInteractiveTool": f"asks: {job.asks}",
        "stoppedByMaxSteps": f"step limit reached ({did})",
        "stoppedByBudget": f"stopped by its budget ({did}): {job.exceeded}",
        "stoppedByInterrupt": f"{_why_stopped(job)} after {did}",
        "running": f"is still running: {did}",
    }[job.status]
    if job.without_effect:
        err(f"warning: {job.expert_key}: {WITHOUT_EFFECT}")
    step = after_job(job)
    if step is not None and job.status != "completed":
        text = f"{text}; {said(step)}"
    if job.status == "stoppedByError":
        err(f"{job.expert_key} {text}")
    else:
        remark(f"{job.expert_key} {text}")
    return EXIT_STATUS[job.status]


def _why_stopped(job: JobSummary) -> str:
    if job.pause_reason != "rate_limit" or job.resume_at is None:
        return "interrupted"
    when = local_time(job.resume_at)
    return f"paused until {when:%Y-%m-%d %H:%M}, because of the provider's rate limit,"
