"""Driving a Job from a terminal: events to stdout, messages to stderr, questions, Ctrl-C, and the exit status."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from perstack.core.definitions.job_status import JobStatus
from perstack.core.definitions.project import Project
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.facts import WITHOUT_EFFECT
from perstack.doors.cli.asking.person import ask_person
from perstack.doors.cli.options import HostOptions
from perstack.doors.cli.output import JobOutput, OutputOptions
from perstack.doors.cli.terminal import is_attended, print_err
from perstack.doors.shared.job_status import next_step_of_job, spending_line
from perstack.doors.shared.next_steps import cli_phrase
from perstack.doors.shared.signals import INTERRUPTED, exit_now, handle_stop_signals, on_continued
from perstack.doors.shared.text import local_time
from perstack.engine.log.run_session import OnEvent
from perstack.errors import Conflict, UsageError
from perstack.host import Host
from perstack.system.user import this_user

if TYPE_CHECKING:
    from perstack.iterations.state import SeriesState  # imported for types only: a Job alone does not need it


# Questions and approvals of a Job, answered at the terminal.


def open_attended_host(options: HostOptions, showing: OutputOptions, project: Project | None = None) -> Host:
    """Return the Host of a command whose Job may ask the user at the terminal. Says if programs run without that."""
    host = replace(options, is_attended=lambda: can_ask(asks=not showing.no_input)).open_host(project)
    if not showing.quiet and (note := host.programs_note):
        print_err(f"note: {note}")
    return host


async def drive_and_ask(host: Host, work: Callable[[OnEvent], Awaitable[JobSummary]], lines: JobOutput) -> JobSummary:
    """Drive a Job and ask what it waits for. Without an answer, and with Ctrl-C, it stays as it is."""
    job = await work(lines)
    while (asking := job.asking) is not None and can_ask(asks=lines.may_ask):
        lines.pause()
        lines.is_asking = True
        answer = await ask_person(asking, host, spending_line(job))
        lines.is_asking = False
        if not answer:
            break
        try:
            job = await host.answer(answer, question_id=asking.id, by=this_user("cli"), drive=True, on_event=lines)
        except UsageError as error:
            print_err(error.text_for(cli_phrase))
        except Conflict as error:
            print_err(error.text_for(cli_phrase))
            job = await host.job(job.id)
    return job


async def drive_series_and_ask(
    host: Host, series: SeriesState, lines: JobOutput, resume: Callable[[str], Awaitable[SeriesState]]
) -> SeriesState:
    """Ask what a Job of iterations waits for, and continue the iterations with `resume`."""
    while series.status == "paused" and series.job_id is not None and can_ask(asks=lines.may_ask):
        waiting = await host.job(series.job_id)
        if waiting.asking is None:
            break

        async def as_it_stands(_: OnEvent, job: JobSummary = waiting) -> JobSummary:
            return job

        job = await drive_and_ask(host, as_it_stands, lines)
        if job.asking is not None:
            break
        series = await resume(series.id)
    return series


def can_ask(*, asks: bool) -> bool:
    """Return whether a user at the terminal can read and answer questions; `asks` is false with `--no-input`."""
    is_typed = sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]  # `<&-`
    return asks and is_typed and is_attended()


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

TRY_LATER = 75
"""Status of a pause for a provider's rate limit. Source: EX_TEMPFAIL of sysexits.h."""


def exit_status_of(job: JobSummary) -> int:
    """Return the exit status of a command that drove the Job to its end or stop."""
    return TRY_LATER if job.pause_reason == "rate_limit" else EXIT_STATUS[job.status]


def drive(host: Host, work: Callable[[OnEvent], Awaitable[JobSummary]], lines: JobOutput) -> int:
    """Drive a Job to its end or stop, report the outcome, and return the exit status."""
    summary = run_interruptible(host, lambda: drive_and_ask(host, work, lines), lambda: job_of(host, lines), lines)
    return INTERRUPTED if summary is None else report_outcome(summary, lines)


async def job_of(host: Host, lines: JobOutput) -> JobSummary | None:
    """Return the Job whose events were shown; None if none were."""
    return await host.job(lines.job_id) if lines.job_id is not None else None


def run_interruptible(
    host: Host,
    work: Callable[[], Awaitable[_T]],
    interrupted: Callable[[], Awaitable[_T | None]],
    lines: JobOutput,
    *,
    drives: bool = True,
) -> _T | None:
    """Run the work with the Host open, and return its result; after an interruption the result of `interrupted`.

    The first Ctrl-C (SIGTERM, SIGHUP) abandons the current step and records the interruption; the second ends the
    process. If the reader of `lines` is gone, that interrupts too, silently. `drives` is False if another process
    drives the steps.
    """

    async def main() -> _T | None:
        task = asyncio.ensure_future(work())
        lines.on_lost = task.cancel
        on_continued(lines.forget)
        with handle_stop_signals(lambda: _stop(task, lines, drives=drives), lambda: _leave(lines)):
            async with host:
                try:
                    return await task
                except asyncio.CancelledError:
                    return await interrupted()
                finally:
                    lines.pause()

    result = asyncio.run(main())
    _report_lost(lines, "so this was interrupted")
    return result


def _report_lost(lines: JobOutput, consequence: str) -> None:
    """Say why stdout cannot be written, if it cannot; a reader that stopped early needs no message."""
    if lines.lost is not None and not isinstance(lines.lost, BrokenPipeError):
        reason = (lines.lost.strerror or str(lines.lost)).lower()
        with suppress(OSError):
            print_err(f"error: stdout cannot be written ({reason}), {consequence}")


def _stop(task: asyncio.Future[_T], lines: JobOutput, *, drives: bool) -> None:
    task.cancel()
    if lines.is_asking or not drives:  # nothing is running here
        return
    with suppress(OSError):  # the terminal itself may be gone
        lines.remark("stopping after cleaning up; once more to leave at once")


def _leave(lines: JobOutput) -> None:
    lines.pause()
    exit_now()


def report_outcome(job: JobSummary, lines: JobOutput, next_step: str | None = None) -> int:
    """Show the outcome and next step and return the exit status; a failure is reported on every stderr.

    The status is 1 too if the result of a completed Job could not be written.
    """
    was_lost = lines.lost is not None
    if job.status == "completed":
        lines.result(job.text or "")
    text = outcome_line(job, next_step)
    if job.without_effect and not lines.has_shown(job.text):  # the view has shown the warning with the result
        print_err(f"warning: {job.expert_key}: {WITHOUT_EFFECT}")
    if job.status == "stoppedByError" or (lines.form == "text" and job.status != "completed"):
        print_err(text)
    else:
        lines.remark(text)
    return status_of_output(lines, exit_status_of(job), f"perstack log --job {job.id}", was_lost=was_lost)


def status_of_output(lines: JobOutput, status: int, command: str, *, was_lost: bool) -> int:
    """Return the exit status: 1 in place of 0 if what was shown last was lost, and say which command shows it."""
    if lines.lost is None or was_lost or status != 0:
        return status
    _report_lost(lines, f"so the result is not there; it is kept: {command}")
    return 1


def outcome_line(job: JobSummary, next_step: str | None = None) -> str:
    """Return a line with the Job's status and next step. `next_step` replaces that, for Jobs with own commands."""
    did = spending_line(job)
    text = {
        "completed": f"completed: {did}; perstack log --job {job.id}",
        "stoppedByError": f"failed after {did}: {job.error}",
        "stoppedByInteractiveTool": f"is waiting for an answer: {job.asks}",
        "stoppedByMaxSteps": f"step limit reached ({did})",
        "stoppedByBudget": f"stopped by its budget ({did}): {job.exceeded}",
        "stoppedByInterrupt": f"{_stop_reason(job)} after {did}",
        "running": f"is still running: {did}",
        "queued": f"waits for a worker{_waiting_time(job)}",
    }[job.status]
    step = next_step_of_job(job)
    text = f"{job.expert_key} {text}"
    if step is None or job.status == "completed":
        return text
    once = "then " if job.status == "stoppedByError" else ""  # a resume alone may fail in the same way
    return f"{text}; {once}{next_step or cli_phrase(step)}"


def _waiting_time(job: JobSummary) -> str:
    if job.queued is None:
        return ""
    if job.queued.due:
        return f", not before {local_time(job.queued.due):%Y-%m-%d %H:%M}"
    return f" since {local_time(job.queued.since):%Y-%m-%d %H:%M}"


def _stop_reason(job: JobSummary) -> str:
    if job.pause_reason != "rate_limit" or job.resume_at is None:
        return "interrupted"
    time = local_time(job.resume_at)
    return f"paused until {time:%Y-%m-%d %H:%M}, because of the provider's rate limit,"
